"""The open ways of a cluster."""

from __future__ import annotations

import pytest

from backends.controller.ways import End, Ways
from backends.data_place import DataPlace
from backends.errors import PeerUnreachable
from backends.link.way import LinkRoute, PlainWay, Way, WayKind


class Tunnel(PlainWay):
    """A way that can break, and remembers that it was closed."""

    closed = 0

    async def close(self) -> None:
        self.closed += 1

    def breaks(self) -> None:
        self.open = False
        assert self.on_broken is not None
        self.on_broken()


class Opener:
    """Opens tunnels and keeps them."""

    def __init__(self) -> None:
        self.tunnels: list[Tunnel] = []

    async def __call__(self) -> Way:
        tunnel = Tunnel("127.0.0.1:7", WayKind.TUNNEL, 3.0)
        tunnel.incarnation = str(len(self.tunnels))
        self.tunnels.append(tunnel)
        return tunnel


async def test_a_route_is_told_while_the_way_is_open() -> None:
    ways, opener = Ways(lambda: None), Opener()
    place = DataPlace(address="10.0.0.7")
    assert ways.route("w", place, 4) == LinkRoute()
    await ways.lead("w", End("ada", "port 1"), opener)
    opener.tunnels[0].trouble = "forbidden"
    assert ways.route("w", place, 4) == LinkRoute(
        WayKind.TUNNEL, direct="10.0.0.7:4", trouble="forbidden"
    )
    nowhere = ways.route("w", DataPlace(why="none"), 4)
    assert (nowhere.direct, nowhere.why) == ("", "none")
    opener.tunnels[0].breaks()
    assert ways.route("w", place, 4) == LinkRoute()


async def test_a_way_is_opened_once_and_again_when_it_leads_elsewhere() -> None:
    ways, opener = Ways(lambda: None), Opener()
    first = await ways.lead("ada", End("ada", "port 7"), opener)
    assert await ways.lead("ada", End("ada", "port 7"), opener) is first
    second = await ways.lead("ada", End("ada", "port 8"), opener)
    assert second is not first
    assert [tunnel.closed for tunnel in opener.tunnels] == [1, 0]
    assert ways.incarnations == {"ada": "1"}
    assert ways.rtt_ms("ada") == 3.0


async def test_a_broken_way_is_told_blamed_on_its_machine_and_replaced() -> None:
    told: list[str] = []
    ways, opener = Ways(lambda: told.append("broken")), Opener()
    end = End("ada", "port 7")
    await ways.lead("w", end, opener)
    ways.require_open()
    opener.tunnels[0].breaks()
    assert told == ["broken"]
    with pytest.raises(PeerUnreachable, match="connection to ada"):
        ways.require_open()
    await ways.lead("w", end, opener)
    ways.require_open()
    assert ways.incarnations == {"w": "1"}


async def test_what_is_not_kept_is_closed() -> None:
    ways, opener = Ways(lambda: None), Opener()
    for name in ("a", "b"):
        await ways.lead(name, End(name, ""), opener)
    await ways.keep(["b", "c"])
    assert [tunnel.closed for tunnel in opener.tunnels] == [1, 0]
    assert set(ways.incarnations) == {"b"}
    assert ways.rtt_ms("a") is None
