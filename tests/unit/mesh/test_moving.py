"""A connection to a lent machine moves to a better way; nothing through it ends."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from backends.errors import MachineError
from backends.machines.agent import AgentSession
from backends.machines.ssh.connection import ConnectionPhase, ConnectionState
from backends.machines.ssh.lent import LentConnection
from backends.mesh.dialling import LAST_LOOK_S, Dialled, listening_at
from backends.mesh.quic_dial import QuicDialler
from backends.mesh.token import Token
from backends.tasks import TaskSet
from tests.kit.waiting import until
from tests.unit.mesh.lent import LentMachine, lent
from tests.unit.mesh.needing_iroh import needs_iroh
from tests.unit.mesh.test_join_listener import Console, Joiner
from tests.unit.mesh.test_quic import lent_by_quic

pytestmark = needs_iroh
FIRST_PAUSE_S = 0.2


class Door:
    """A port that leads to another, once it is open; shut, it passes nothing on."""

    def __init__(self, port: int, within: str, own_port: int) -> None:
        self.leads_to = port
        self._within = within
        self._open = asyncio.Event()
        self._tasks = TaskSet()
        self._listening = listening_at("127.0.0.1", own_port)
        self.came = 0
        self.place = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._tasks.start(self._accept())

    def open(self) -> None:
        self._open.set()

    def shut(self) -> None:
        self._open.clear()

    def forget(self) -> None:
        """Pass on nothing of the connections until now."""
        self._open.clear()
        self._open = asyncio.Event()
        self._open.set()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            made, _ = await loop.sock_accept(self._listening)
            self.came += 1
            within = socket.socket()
            within.setblocking(False)
            await loop.sock_connect(within, (self._within, self.leads_to))
            is_open = self._open
            self._tasks.start(self._pass(made, within, is_open))
            self._tasks.start(self._pass(within, made, is_open))

    async def _pass(
        self, source: socket.socket, sink: socket.socket, is_open: asyncio.Event
    ) -> None:
        loop = asyncio.get_running_loop()
        with source, contextlib.suppress(OSError):
            while data := await loop.sock_recv(source, 1 << 16):
                await is_open.wait()
                await loop.sock_sendall(sink, data)
            sink.shutdown(socket.SHUT_WR)

    async def close(self) -> None:
        await self._tasks.end()
        self._listening.close()


@contextlib.asynccontextmanager
async def door_to(
    port: int, address: str = "127.0.0.1", own_port: int = 0
) -> AsyncIterator[Door]:
    made = Door(port, address, own_port)
    try:
        yield made
    finally:
        await made.close()


class Moving:
    """A connection that is kept up, by a door of TCP and by QUIC."""

    def __init__(self, machine: LentMachine, door: Door, dialler: QuicDialler) -> None:
        self.machine = machine
        self.door = door
        self.states: list[ConnectionState] = []
        quic = machine.token().quic
        assert quic is not None
        dial = dialler.beside(Dialled([door.place]), quic)
        key = machine.console.console_key_file
        self.connection = LentConnection("nuc", dial, machine.host_key, key)
        self.connection.on_state = self.states.append

    @property
    def is_up(self) -> bool:
        return self.connection.state.phase is ConnectionPhase.CONNECTED

    @property
    def is_by_tcp(self) -> bool:
        return self.is_up and self.connection._indirect is None

    @property
    def phases(self) -> list[ConnectionPhase]:
        """Each as it came, without the heartbeats."""
        found = [state.phase for state in self.states]
        return [one for i, one in enumerate(found) if i == 0 or found[i - 1] != one]


@pytest.fixture
async def moving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Moving]:
    for name, pause_s in (("FIRST_LOOK_S", FIRST_PAUSE_S), ("PROVE_S", 0.5)):
        monkeypatch.setattr(f"backends.machines.ssh.lent.{name}", pause_s)
    monkeypatch.setattr("backends.mesh.dialling.BANNER_S", 0.5)
    async with (
        lent_by_quic(tmp_path) as machine,
        door_to(machine.pairings.read().port) as door,
    ):
        await machine.pair()
        dialler = QuicDialler(machine.console)
        made = Moving(machine, door, dialler)
        made.connection.start()
        try:
            yield made
        finally:
            await made.connection.stop()
            await dialler.close()


UP = [ConnectionPhase.CONNECTING, ConnectionPhase.CONNECTED]


async def test_it_moves_to_tcp_once_that_goes_and_is_never_down(moving: Moving) -> None:
    connection, tenants = moving.connection, moving.machine.tenants
    await until(lambda: moving.is_up, "the connection")
    before = connection._open_link()
    assert not moving.is_by_tcp

    async def opened() -> object:
        return await connection.hold("")

    agent = AgentSession("nuc", opened, restarts=True)  # type: ignore[arg-type]
    await agent.connect()
    tunnel = await connection.forward(1)
    moving.door.open()
    await until(lambda: moving.is_by_tcp, "TCP")
    assert connection.path is None
    await until(before.is_closed, "the end of the way before")
    assert await connection.ping_ms() > 0
    assert (await agent.memory()).usable_bytes > 0
    assert tunnel.open
    assert moving.phases == UP
    (tenant,) = tenants.known.values()
    await until(lambda: len(tenant.links) == 1, "one link there")
    # The agent tells where we came from, for data that go directly.
    assert (await agent.machine()).variables["SSH_CONNECTION"].count("127.0.0.1") == 2
    await agent.close()
    assert "\n".join(tenants.lines).count("has connected") == 1


async def test_it_stays_while_a_move_would_break_something(moving: Moving) -> None:
    busy = True
    moving.connection.is_busy = lambda: busy
    await until(lambda: moving.is_up, "the connection")
    moving.door.open()
    (tenant,) = moving.machine.tenants.known.values()
    await until(lambda: len(tenant.links) == 2, "the other way")
    await asyncio.sleep(1.0)
    assert not moving.is_by_tcp
    busy = False
    await until(lambda: moving.is_by_tcp, "TCP")
    assert moving.phases == UP


async def test_a_way_that_falls_silent_on_trial_is_not_taken(
    moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backends.machines.ssh.lent.PROVE_S", 30.0)
    await until(lambda: moving.is_up, "the connection")
    before = moving.connection._open_link()
    answered = asyncio.Event()

    def is_busy() -> bool:
        answered.set()
        return False

    moving.connection.is_busy = is_busy
    moving.door.open()
    await until(answered.is_set, "the other way")
    moving.door.shut()
    came = moving.door.came
    await until(lambda: moving.door.came > came, "another try")
    assert moving.connection._open_link() is before
    assert not before.is_closed()
    assert moving.phases == UP


async def test_another_machine_at_its_address_is_not_moved_to(
    moving: Moving, tmp_path: Path
) -> None:
    await until(lambda: moving.is_up, "the connection")
    before = moving.connection._open_link()
    async with lent(tmp_path / "other") as other:
        moving.door.leads_to = other.pairings.read().port
        came = moving.door.came
        moving.door.open()
        await until(lambda: moving.door.came > came + 2, "tries")
    assert moving.connection._open_link() is before


async def test_tries_are_rarer_and_rarer_and_never_two_at_a_time(
    moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    running = most = 0

    async def waited(_: asyncio.Event, pause_s: float) -> None:
        waits.append(pause_s)
        await asyncio.sleep(0.01)

    async def tried() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        raise MachineError("It does not go")

    await until(lambda: moving.is_up, "the connection")
    connection = moving.connection
    monkeypatch.setattr("backends.machines.ssh.lent.wait_for", waited)
    monkeypatch.setattr(connection, "_try_another_way", tried)
    connection.poke()
    await until(lambda: len(waits) > 12, "many tries")
    assert most == 1
    assert waits[1:] == [min(LAST_LOOK_S, 2 * pause_s) for pause_s in waits[:-1]]


async def test_a_silent_way_is_left_for_one_that_answers(moving: Moving) -> None:
    """TCP goes dead, as when one leaves the house: QUIC goes on."""
    moving.door.open()
    connection = moving.connection
    await until(lambda: moving.is_by_tcp, "TCP")
    moving.door.shut()
    await until(lambda: moving.is_up and not moving.is_by_tcp, "QUIC")
    assert connection.state.phase is ConnectionPhase.CONNECTED
    await until(lambda: not connection.state.suspect, "an answer")
    assert moving.phases == UP


def silent(connection: LentConnection, for_s: float) -> None:
    suspect = for_s > 0
    connection._tell(replace(connection.state, suspect=suspect, silent_for_s=for_s))


async def test_a_way_that_is_silent_again_soon_is_kept_for_a_while(
    moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be slow, and have much to send."""
    moving.door.open()
    connection = moving.connection
    await until(lambda: moving.is_by_tcp, "TCP")
    tries: list[float] = []

    async def tried() -> None:
        tries.append(time.monotonic())
        silent(connection, 0.0)

    monkeypatch.setattr(connection, "_try_another_way", tried)
    silent(connection, 60.0)
    await until(lambda: tries, "a try")
    while len(tries) < 2:
        silent(connection, 60.0)
        await asyncio.sleep(0.01)
    assert tries[1] - tries[0] >= 2 * FIRST_PAUSE_S


async def test_a_busy_way_that_falls_silent_is_left_for_the_one_on_trial(
    moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_silent = False
    told = property(lambda _: is_silent)
    monkeypatch.setattr(LentConnection, "_is_silent", told)
    moving.connection.is_busy = lambda: True
    await until(lambda: moving.is_up, "the connection")
    moving.door.open()
    (tenant,) = moving.machine.tenants.known.values()
    await until(lambda: len(tenant.links) == 2, "the other way")
    is_silent = True
    await until(lambda: moving.is_by_tcp, "TCP")
    assert moving.phases == UP


async def test_what_is_sent_is_not_broken_off_by_silence(moving: Moving) -> None:
    moving.door.open()
    await until(lambda: moving.is_by_tcp, "TCP")
    connection = moving.connection
    connection._files_users = 1
    silent(connection, 60.0)
    with pytest.raises(MachineError, match="break off"):
        await connection._try_another_way()
    connection._files_users = 0


async def test_who_joined_by_quic_moves_to_tcp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backends.mesh.worker.FIRST_LOOK_S", 0.2)
    monkeypatch.setattr("backends.machines.ssh.lent.PROVE_S", 0.5)
    monkeypatch.setattr("backends.mesh.dialling.BANNER_S", 0.5)
    async with joining(tmp_path) as (console, joiner):
        token = await console.invite_by_quic()
        async with door_to(token.port) as door:
            port = int(door.place.rpartition(":")[2])
            assert await joiner.worker.join(replace(token, port=port)) == "studio"
            (known,) = joiner.pairings.read().consoles
            assert known.quic == token.quic
            connection = console.connection
            assert connection is not None
            async with joiner.running():
                connection.start()
                await until(lambda: connection.path is not None, "QUIC")
                before = connection._open_link()
                door.open()
                await until(lambda: connection._indirect is None, "TCP")
                assert connection.connected
                assert before.is_closed()
                await connection.stop()


async def test_who_joined_dials_anew_once_the_console_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backends.mesh.worker.SILENT_S", 1.0)
    monkeypatch.setattr("backends.mesh.worker.BEAT_S", 0.2)
    async with joining(tmp_path) as (console, joiner):
        token = console.bell.invite(60.0, "", ["127.0.0.1"])
        async with door_to(token.port) as door:
            door.open()
            port = int(door.place.rpartition(":")[2])
            await joiner.worker.join(replace(token, port=port))
            connection = console.connection
            assert connection is not None
            async with joiner.running():
                connection.start()
                await until(lambda: connection.connected, "the connection")
                before, came = connection._open_link(), door.came
                # As a router that has forgotten it.
                door.forget()
                await until(lambda: door.came > came, "another dial")
                await until(lambda: connection._open_link() is not before, "a move")
                assert await connection.ping_ms() > 0
                await connection.stop()


async def test_a_machine_joins_by_quic_alone(tmp_path: Path) -> None:
    async with joining(tmp_path) as (console, joiner):
        token = await console.invite_by_quic()
        assert token.quic is not None
        assert await joiner.worker.join(replace(token, port=1)) == "studio"
        connection = console.connection
        assert connection is not None
        async with joiner.running():
            await connection.connect()
            assert connection.hello.name == "nuc"
            assert connection._indirect is not None
            connection._open_link().abort()
            await until(lambda: not connection.connected, "the loss")
            # It dials again by itself.
            await connection.connect()


class QuicConsole(Console):
    """A console that is dialled by QUIC, too."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.quic = QuicDialler(Joiner(folder / "home").paths)
        self.bell._quic = self.quic

    async def invite_by_quic(self) -> Token:
        place = await self.quic.own_place()
        return self.bell.invite(60.0, "", ["127.0.0.1"], place)


@contextlib.asynccontextmanager
async def joining(folder: Path) -> AsyncIterator[tuple[QuicConsole, Joiner]]:
    console, joiner = QuicConsole(folder / "console"), Joiner(folder / "nuc")
    try:
        yield console, joiner
    finally:
        if console.connection is not None:
            await console.connection.stop()
        await console.bell.close()
        await console.quic.close()
        await joiner.worker._dialler.close()
