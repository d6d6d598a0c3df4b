"""The open ways of a cluster, and its relays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from backends.config import Config
from backends.controller.links import End, Links, Transports
from backends.controller.snapshot_store import SnapshotStore
from backends.direct_address import DirectAddress
from backends.errors import MachineError, PeerUnreachable, UsageError
from backends.link.transport import (
    LinkRoute,
    LinkTransport,
    PlainTransport,
    TransportKind,
)
from backends.link.wire import Line, PairLine
from backends.planning.relay_pairs import Pairing
from backends.state import LAB_DELAY_MAX_MS, LAB_RATE_MAX_MB_S, Lab, ServerSettings
from tests.kit.waiting import until


class Tunnel(PlainTransport):
    closed = 0

    async def close(self) -> None:
        self.closed += 1

    def breaks(self) -> None:
        self.open = False
        assert self.on_broken is not None
        self.on_broken()


class Opener:
    def __init__(self) -> None:
        self.tunnels: list[Tunnel] = []

    async def __call__(self) -> LinkTransport:
        tunnel = Tunnel("127.0.0.1:7", TransportKind.TUNNEL, 3.0)
        tunnel.incarnation = str(len(self.tunnels))
        self.tunnels.append(tunnel)
        return tunnel


async def test_a_route_is_told_while_the_way_is_open() -> None:
    ways, opener = Transports(lambda: None), Opener()
    place = DirectAddress(address="10.0.0.7")
    assert ways.route("w", place, 4) == LinkRoute()
    await ways.lead("w", End("ada", "port 1"), opener)
    opener.tunnels[0].trouble = "forbidden"
    assert ways.route("w", place, 4) == LinkRoute(
        TransportKind.TUNNEL, direct="10.0.0.7:4", trouble="forbidden"
    )
    nowhere = ways.route("w", DirectAddress(why="none"), 4)
    assert (nowhere.direct, nowhere.why) == ("", "none")
    opener.tunnels[0].breaks()
    assert ways.route("w", place, 4) == LinkRoute()


async def test_a_way_is_opened_once_and_again_when_it_leads_elsewhere() -> None:
    ways, opener = Transports(lambda: None), Opener()
    first = await ways.lead("ada", End("ada", "port 7"), opener)
    assert await ways.lead("ada", End("ada", "port 7"), opener) is first
    second = await ways.lead("ada", End("ada", "port 8"), opener)
    assert second is not first
    assert [tunnel.closed for tunnel in opener.tunnels] == [1, 0]
    assert ways.incarnations == {"ada": "1"}
    assert ways.rtt_ms("ada") == 3.0


async def test_a_broken_way_is_told_blamed_on_its_machine_and_replaced() -> None:
    told: list[str] = []
    ways, opener = Transports(lambda: told.append("broken")), Opener()
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
    ways, opener = Transports(lambda: None), Opener()
    for name in ("a", "b"):
        await ways.lead(name, End(name, ""), opener)
    await ways.keep(["b", "c"])
    assert [tunnel.closed for tunnel in opener.tunnels] == [1, 0]
    assert set(ways.incarnations) == {"b"}
    assert ways.rtt_ms("a") is None


# --- relays -------------------------------------------------------------------------


def links_of(told: list[str] | None = None) -> Links:
    news = [] if told is None else told
    recorder: Any = SimpleNamespace(mended=news.append)
    return Links(SnapshotStore(Config), Transports(lambda: None), recorder)


def follow(links: Links, socket: Path) -> None:
    facts: Any = SimpleNamespace(pairings={"w": Pairing(why="")}, ports={})
    plan: Any = SimpleNamespace(server=ServerSettings())
    links.follow(plan, facts, {"w": socket})


def following(socket: Path, told: list[str] | None = None) -> Links:
    """Links with one relay, whose counters nobody gives out."""
    links = links_of(told)
    follow(links, socket)
    return links


async def test_rows_are_known_until_a_relay_stops_reading(tmp_path: Path) -> None:
    links = following(tmp_path / "s")
    assert links.rows() is None
    (reader,) = links._readers.values()
    reader.meter.take(Line(type="snapshot", rows=0))
    assert links.rows() == 0
    reader.meter.take(Line(type="snapshot", rows=0, mode="plain"))
    assert links.rows() is None
    await links.unfollow()
    assert links.carried_bytes() == {}


async def test_broken_connection_is_told_once_the_link_goes_on(tmp_path: Path) -> None:
    told: list[str] = []
    links = following(tmp_path / "s", told)
    (reader,) = links._readers.values()
    for reconnects in (3, 3, 4, 4):
        pair = PairLine(up=True, reconnects=reconnects, pause_ms=12)
        reader.meter.take(Line(type="snapshot", protocol="7.0.0", pair=pair))
        links._show()
    await links.unfollow()
    assert told == [
        "The link to w broke and went on over another connection after 12 ms"
    ]


MOST = Lab(
    latency_ms=LAB_DELAY_MAX_MS, jitter_ms=LAB_DELAY_MAX_MS, rate_mb_s=LAB_RATE_MAX_MB_S
)


@pytest.mark.parametrize(
    ("beyond", "sentence"),
    [
        ({"latency_ms": LAB_DELAY_MAX_MS + 1}, "delays by 60 s at most"),
        ({"jitter_ms": LAB_DELAY_MAX_MS + 1}, "delays by 60 s at most"),
        ({"rate_mb_s": LAB_RATE_MAX_MB_S + 1}, "limits a link to 1000 GB/s at most"),
        ({"latency_ms": -1.0}, "less than nothing"),
        ({"seed": -1}, "less than nothing"),
    ],
)
async def test_what_no_relay_takes_is_refused(
    beyond: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    links = following(tmp_path / "s")
    with pytest.raises(UsageError, match=sentence):
        await links.set_lab(None, replace(MOST, **beyond))
    # What it can do reaches the relay, which is not there.
    with pytest.raises(MachineError, match="relay of w does not answer"):
        await links.set_lab(None, MOST)
    await links.unfollow()


@asynccontextmanager
async def relay_at(socket: Path) -> AsyncIterator[list[Lab | None]]:
    """The labs that are put on a relay, which takes each of them."""
    labs: list[Lab | None] = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            lab = msgspec.convert(msgspec.json.decode(line)["lab"], Lab | None)
            labs.append(lab)
            writer.write(msgspec.json.encode(Line(type="snapshot", lab=lab)) + b"\n")
        writer.close()

    async with await asyncio.start_unix_server(relay, socket):
        yield labs


SLOW, SLOWER, NO_LIMIT = Lab(rate_mb_s=20), Lab(rate_mb_s=10), Lab()


async def test_a_launch_loads_behind_its_lab(tmp_path: Path) -> None:
    links = links_of()
    links.asked_labs = {"w": SLOW}
    async with relay_at(tmp_path / "s") as labs:
        follow(links, tmp_path / "s")
        await until(lambda: labs, "a line at the relay")
        await links.unfollow()
    assert labs == [SLOW]


async def test_a_relay_that_is_used_again_forgets_a_lab_of_before(
    tmp_path: Path,
) -> None:
    async with relay_at(tmp_path / "s") as labs:
        links = following(tmp_path / "s")
        await until(lambda: labs, "a line at the relay")
        await links.unfollow()
    assert labs == [None]


@pytest.mark.parametrize("changed", [NO_LIMIT, SLOWER])
async def test_a_load_after_that_is_behind_the_lab_as_it_was_changed(
    changed: Lab, tmp_path: Path
) -> None:
    async def sockets() -> dict[str, Path]:
        return {"w": tmp_path / "s"}

    links = links_of()
    links.asked_labs = {"w": SLOW}
    async with relay_at(tmp_path / "s") as labs:
        await links.put_labs(sockets)
        follow(links, tmp_path / "s")
        await until(lambda: len(labs) == 2, "the lab at the relay")
        await links.set_lab("w", changed)
        await until(lambda: len(labs) == 3, "the other lab at the relay")
        await links.unfollow()
        await links.put_labs(sockets)
    assert labs == [SLOW, SLOW, changed, *([changed] if changed != NO_LIMIT else [])]


async def test_what_runs_goes_on_with_another_lab(tmp_path: Path) -> None:
    links = links_of()
    links.asked_labs = {"w": SLOW}
    async with relay_at(tmp_path / "s") as labs:
        follow(links, tmp_path / "s")
        await until(lambda: labs, "the lab at the relay")
        await links.ask_for({"w": SLOWER})
        await until(lambda: labs == [SLOW, SLOWER], "the other lab at the relay")
        await links.unfollow()
    follow(links, tmp_path / "gone")
    await links.ask_for({"w": SLOW})
    assert links.lab_of("w") == SLOW
    await links.unfollow()
