"""What a GPU has free is asked of the engine now, and never while it serves."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from backends.config import Config, PeerConfig
from backends.engine.ask import Engine
from backends.errors import ControllerError, DllmError, MachineError, UsageError
from backends.machines import bare
from backends.machines import local_inventory as module
from backends.machines.bare import LOOK_FIRST_S, LOOK_MOST_S, BarePeer, next_pause_s
from backends.machines.local import local_agent
from backends.machines.local_inventory import DEVICES_LAST_S, LocalInventory
from backends.machines.peers import Peers
from backends.paths import Paths
from backends.state import Device, EngineInfo, EngineSource, Peer, PeerState
from backends.tasks import forever
from tests.kit.clusters import paths_in
from tests.kit.waiting import until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LOCATION = EngineInfo(
    directory="/e", server_path="/e/s", worker_path="/e/w", source=EngineSource.CACHE
)


def gpu(free_bytes: int) -> Device:
    return Device(id="local/CUDA0", name="CUDA0", free_bytes=free_bytes)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An engine whose GPU has one byte less at every question; the questions."""
    questions: list[int] = []

    async def read_engine(*_: object, light: bool) -> Engine:
        info = replace(LOCATION, rpc_protocol="7.0.0", devices=(gpu(7),))
        return Engine(info=info, flags=frozenset())

    async def list_devices(agent: object, engine: EngineInfo) -> tuple[Device, ...]:
        questions.append(len(questions))
        return (gpu(1000 - len(questions)),)

    monkeypatch.setattr(module, "read_engine", read_engine)
    monkeypatch.setattr(module, "list_devices", list_devices)
    monkeypatch.setattr(module, "find_engine", lambda *_: LOCATION)
    return questions


@pytest.fixture
def inventory(tmp_path: Path, paths: Paths) -> LocalInventory:
    paths.config_dir.mkdir()
    return LocalInventory(paths, local_agent(tmp_path))


async def free(inventory: LocalInventory) -> int:
    return (await inventory.engine("/e")).info.devices[0].free_bytes


async def test_disks_old_figure_is_not_used(
    inventory: LocalInventory, asked: list[int]
) -> None:
    assert await free(inventory) == 999
    assert await free(inventory) == 999, "asked once for a while"
    assert len(asked) == 1


async def test_it_is_asked_anew_after_a_while_but_not_while_serving(
    inventory: LocalInventory, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await free(inventory) == 999
    start = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: start + DEVICES_LAST_S + 1)
    inventory.serves = lambda: True
    assert await free(inventory) == 999
    inventory.serves = lambda: False
    assert await free(inventory) == 998
    assert len(asked) == 2


def test_settings_that_cannot_be_read_are_those_before(
    inventory: LocalInventory,
) -> None:
    """Also for a controller that never read them: the one before left a copy."""
    file = inventory.paths.config_file
    file.write_text("api_port = 8123\n")
    assert inventory.settings().api_port == 8123
    file.write_text("workres = 3\n")
    for reads in (inventory, LocalInventory(inventory.paths, inventory.agent)):
        assert reads.settings().api_port == 8123
        with pytest.raises(DllmError, match="workres"):
            reads.config()
    file.write_text("")
    assert inventory.config().api_port is None
    file.unlink()
    assert LocalInventory(inventory.paths, inventory.agent).settings() == Config()


def test_a_file_is_read_once(
    inventory: LocalInventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Config] = []

    def load(*_: object) -> Config:
        reads.append(Config())
        return reads[-1]

    monkeypatch.setattr(module, "load_config", load)
    inventory.paths.config_file.write_text("workers = 3\n")
    for _ in range(3):
        inventory.settings()
    assert len(reads) == 1


# --- Looking after the peers of the settings, also after an error of our own ---


class Clumsy:
    """A peer whose looking after fails a few times, for no good reason."""

    def __init__(self, failures: int) -> None:
        self.peer = Peer(name="ada", state=PeerState.READY)
        self.runs = 0
        self.closed = False
        self.connected = True
        self.fine = asyncio.Event()
        self._failures = failures

    async def run(self) -> None:
        self.runs += 1
        if self.runs <= self._failures:
            raise KeyError("what")
        self.fine.set()
        try:
            await asyncio.Event().wait()
        finally:
            # As closing a connection takes a moment.
            await asyncio.sleep(0.01)
            self.closed = True

    async def look(self) -> None:
        pass

    def fail(self, note: str) -> None:
        self.peer = msgspec.structs.replace(
            self.peer, state=PeerState.FAILED, note=note
        )


class OnePeer:
    peers = {"ada": PeerConfig(ssh="ada")}


class OneReader:
    def settings(self) -> OnePeer:
        return OnePeer()


def peers_with(known: Clumsy, home: Path, serves: bool = False) -> Peers:
    made = Peers(
        cast("Any", None),
        cast("Any", OneReader()),
        paths_in(home),
        show=lambda _: None,
        serves=lambda _: serves,
    )
    made._made = lambda *_: cast("Any", known)  # type: ignore[method-assign]
    return made


async def nothing(_: object) -> None:
    pass


async def test_a_token_that_is_good_is_known_to_keep_the_controller(
    tmp_path: Path,
) -> None:
    peers = peers_with(Clumsy(failures=0), tmp_path)
    assert not peers.invites
    peers.__dict__["_join_listener"] = SimpleNamespace(invites=True)
    assert peers.invites


async def test_each_pairing_ends_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where both were begun at once: none is left without an owner."""
    closed: list[str] = []

    async def begun(place: str, *_: object) -> Any:
        await asyncio.sleep(0)
        return SimpleNamespace(
            name=place,
            digits="012345",
            outcome=forever,
            close=lambda: closed.append(place),
        )

    monkeypatch.setattr("backends.mesh.digits.begin_pairing", begun)
    peers = peers_with(Clumsy(failures=0), tmp_path)
    first, second = "10.0.0.7:1", "10.0.0.7:2"
    await asyncio.gather(
        peers.begin_pairing("", first), peers.begin_pairing("", second)
    )
    await peers.close()
    assert closed == [first, second]
    with pytest.raises(UsageError, match="'mini' is no place"):
        await peers.begin_pairing("", "mini")


async def test_an_error_of_ours_is_shown_and_the_peer_looked_after_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    known = Clumsy(failures=6)
    sleep = asyncio.sleep

    async def short(seconds: float) -> None:
        assert known.peer.state is PeerState.FAILED
        assert "KeyError: 'what'" in known.peer.note
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr("backends.machines.peers.asyncio.sleep", short)
    peers = peers_with(known, tmp_path)
    peers.start(nothing)
    async with asyncio.timeout(60):
        await known.fine.wait()
    assert known.runs == 7
    assert pauses == [1, 4, 15, 60, 60, 60]
    await peers.close()


async def test_a_peer_that_serves_cannot_be_removed(tmp_path: Path) -> None:
    peers = peers_with(Clumsy(0), tmp_path, serves=True)
    peers.start(nothing)
    with pytest.raises(ControllerError, match="part of the cluster"):
        await peers.remove("ada")
    await peers.close()


async def test_a_peer_removed_twice_at_once_is_closed_once(tmp_path: Path) -> None:
    known = Clumsy(0)
    peers = peers_with(known, tmp_path)
    peers.start(nothing)
    await known.fine.wait()
    await asyncio.gather(peers.remove("ada"), peers.remove("ada"))
    assert known.closed
    with pytest.raises(MachineError, match="There is no peer ada"):
        await peers.remove("ada")


async def test_a_peer_may_be_removed_while_all_are_gone_through(tmp_path: Path) -> None:
    known = Clumsy(0)
    peers = peers_with(known, tmp_path)
    peers.start(nothing)
    await known.fine.wait()
    seen: list[object] = []
    for machine in peers.all():
        seen.append(machine)
        if len(seen) == 2:
            await peers.remove("ada")
    assert known in seen


async def test_peer_that_cannot_be_removed_from_settings_stays(tmp_path: Path) -> None:
    known = Clumsy(0)
    peers = peers_with(known, tmp_path)
    peers.start(nothing)
    await known.fine.wait()
    # No file can be written there, whoever runs this.
    (tmp_path / "config" / "config.toml").mkdir(parents=True)
    with pytest.raises(DllmError, match="Cannot write"):
        await peers.remove("ada")
    assert peers.known("ada").peer is known.peer
    assert not known.closed
    await peers.close()


async def test_peers_of_changed_settings_come_go_and_are_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy: set[str] = set()
    peers = peers_with(Clumsy(0), tmp_path)
    monkeypatch.setattr(peers, "_serves", busy.__contains__)
    monkeypatch.setattr(peers, "_made", lambda *_: Clumsy(0))
    peers.start(cast("Any", None))
    ada = peers.known("ada")
    try:
        assert await peers.follow(OnePeer.peers)
        assert peers.known("ada") is ada
        two = {**OnePeer.peers, "bob": PeerConfig(ssh="bob")}
        assert await peers.follow(two)
        assert peers.known("ada") is ada
        bob = peers.known("bob")
        busy.add("bob")
        assert not await peers.follow(OnePeer.peers)
        assert peers.known("bob") is bob
        busy.clear()
        assert await peers.follow(OnePeer.peers)
        with pytest.raises(MachineError):
            peers.known("bob")
        assert await peers.follow({"ada": PeerConfig(ssh="ada@elsewhere")})
        assert peers.known("ada") is not ada
    finally:
        await peers.close()


# --- How often a bare rpc-server is looked at, and what its devices are called ---

READY, FAILED, GONE = PeerState.READY, PeerState.FAILED, PeerState.UNREACHABLE


@pytest.mark.parametrize("state", [READY, FAILED])
def test_what_stays_as_it_is_is_looked_at_ever_more_rarely(state: PeerState) -> None:
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


async def devices_of(
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
    inventory: Any = SimpleNamespace(engine=engine, agent=None)
    peer = BarePeer("box", config, inventory, lambda: None, lambda name: False)
    await peer.look()
    return peer.peer.devices


def test_all_devices_of_a_server_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head's own GPU, listed beside them, is none of them."""
    names = ("Vulkan0", "RPC0", "RPC1")
    found = asyncio.run(devices_of(monkeypatch, names, RPC1=2.0))
    assert [d.id for d in found] == ["box/RPC0", "box/RPC1"]
    assert [d.budget_bytes for d in found] == [None, 2 << 30]


def test_the_only_device_has_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = asyncio.run(devices_of(monkeypatch, ("RPC0",), RPC=1.0))
    assert (found.id, found.budget_bytes) == ("box/RPC", 1 << 30)


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "ada", ":1", "ada:0", "a:b"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="host:port"):
        bare.require_endpoint(address)


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
