"""How often a bare rpc-server is looked at, and what its devices are called."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from backends.config import PeerConfig
from backends.errors import UsageError
from backends.machines import bare
from backends.machines.bare import LOOK_FIRST_S, LOOK_MOST_S, BarePeer, next_pause_s
from backends.state import Device, PeerState
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import Sequence

READY, FAILED, GONE = PeerState.READY, PeerState.FAILED, PeerState.UNREACHABLE


@pytest.mark.parametrize("state", [READY, FAILED])
def test_one_that_stays_as_it_is_is_looked_at_ever_more_rarely(
    state: PeerState,
) -> None:
    """Its backlog is 1: each look may be in the way of somebody's connection."""
    pauses = [LOOK_FIRST_S]
    for _ in range(8):
        pauses.append(next_pause_s(pauses[-1], state, state))
    assert pauses == sorted(pauses)
    assert pauses[-1] == LOOK_MOST_S >= 300
    assert sum(pauses) > 15 * 60, "nine looks in a quarter of an hour, not ninety"


def test_news_and_absence_are_followed_closely() -> None:
    assert next_pause_s(LOOK_MOST_S, READY, GONE) == LOOK_FIRST_S
    assert next_pause_s(LOOK_MOST_S, GONE, GONE) == LOOK_FIRST_S
    assert next_pause_s(LOOK_MOST_S, FAILED, READY) == LOOK_FIRST_S


class Relay:
    """Stands for the relay through which it is asked."""

    idle = True
    address = "127.0.0.1:1"

    async def end(self) -> None:
        """It needs no end."""


async def asked(
    monkeypatch: pytest.MonkeyPatch, names: Sequence[str], **budgets: float
) -> tuple[Device, ...]:
    """What a peer is known by whose server lists these devices."""
    listed = tuple(
        Device(id=f"local/{name}", name=name, total_bytes=8, free_bytes=4)
        for name in names
    )

    async def connects(address: str) -> tuple[str, float]:
        return address, 0.1

    async def list_devices(*_: Any, **__: Any) -> tuple[Device, ...]:
        return listed

    async def start(*_: Any) -> Relay:
        return Relay()

    async def engine() -> Any:
        return SimpleNamespace(info=SimpleNamespace(rpc_protocol="7.0.0"))

    monkeypatch.setattr(bare, "connects", connects)
    monkeypatch.setattr(bare, "list_devices", list_devices)
    monkeypatch.setattr(bare.AskingRelay, "start", start)
    config = PeerConfig(bare="10.0.0.3:50052", memory_gib=dict(budgets))
    readers: Any = SimpleNamespace(engine=engine, host=None)
    peer = BarePeer("box", config, readers, lambda: None, lambda name: False)
    await peer.look()
    return peer.peer.devices


def test_all_devices_of_a_server_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head's own GPU, listed beside them, is none of them."""
    names = ("Vulkan0", "RPC0", "RPC1")
    found = asyncio.run(asked(monkeypatch, names, RPC1=2.0))
    assert [d.id for d in found] == ["box/RPC0", "box/RPC1"]
    assert [d.budget_bytes for d in found] == [None, 2 << 30]


def test_the_only_device_has_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = asyncio.run(asked(monkeypatch, ("RPC0",), RPC=1.0))
    assert (found.id, found.budget_bytes) == ("box/RPC", 1 << 30)


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "ada", ":1", "ada:0", "a:b"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="host:port"):
        bare.require_address(address)


async def test_a_relay_to_ask_through_ends_with_who_started_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[asyncio.subprocess.Process] = []
    real = asyncio.create_subprocess_exec

    async def start(*_: str, **options: Any) -> asyncio.subprocess.Process:
        started.append(await real("sleep", "60", **options))
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    starting = asyncio.create_task(bare.AskingRelay.start("ada", "127.0.0.1:1"))
    await until(lambda: started)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    assert started[0].returncode is not None
