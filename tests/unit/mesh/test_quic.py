"""Lent machines by QUIC: real endpoints of iroh on loopback, and our relay."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from backends.errors import HostError, UsageError
from backends.machines.ssh.invited import Dialled, InvitedConnection, pair
from backends.mesh.dialling import listening_at
from backends.mesh.quic import QuicEndpoint
from backends.mesh.quic_dial import QuicDialler
from backends.mesh.quic_place import QuicPlace, parse_quic_place
from backends.mesh.reflector import Reflector
from backends.mesh.relay_access import RelayAccess, RelayFile, parse_access
from backends.mesh.relay_server import RelayServer
from backends.mesh.token import TokenKind, read_token
from backends.state import PeerPath
from backends.tasks import end_tasks
from tests.kit.waiting import until
from tests.unit.mesh.lent import LentMachine, lent
from tests.unit.mesh.needing_iroh import needs_iroh

pytestmark = needs_iroh
WITHIN_S = 30.0
SEED, OTHER_SEED = bytes(range(32)), bytes(range(1, 33))
NOWHERE = Dialled(["127.0.0.1:1"])


class Relay:
    """A relay and its reflector, on loopback."""

    def __init__(self, server: RelayServer, access: RelayAccess) -> None:
        self.server = server
        self.access = access


@contextlib.asynccontextmanager
async def a_relay(**limits: float) -> AsyncIterator[Relay]:
    server = RelayServer("k3y", **limits)  # type: ignore[arg-type]
    listening = listening_at("127.0.0.1", 0)
    await server.start(listening)
    port = listening.getsockname()[1]
    access = RelayAccess(url=f"http://127.0.0.1:{port}", key="k3y")
    reflector = await Reflector.bound(access, "127.0.0.1", port)
    answering = asyncio.create_task(reflector.run())
    try:
        yield Relay(server, access)
    finally:
        await end_tasks(answering)
        await reflector.close()
        await server.close()
        listening.close()


@pytest.fixture
async def relay() -> AsyncIterator[Relay]:
    async with a_relay() as made:
        yield made


@contextlib.asynccontextmanager
async def endpoint(
    seed: bytes = OTHER_SEED, relay: RelayAccess | None = None
) -> AsyncIterator[QuicEndpoint]:
    made = await QuicEndpoint.bound(seed, "127.0.0.1", relay=relay)
    try:
        yield made
    finally:
        await made.close()


@contextlib.asynccontextmanager
async def echoing(relay: RelayAccess | None = None) -> AsyncIterator[QuicEndpoint]:
    """An endpoint that sends back what comes."""
    loop = asyncio.get_running_loop()

    async def echo(made: socket.socket) -> None:
        with made:
            while data := await loop.sock_recv(made, 1 << 16):
                await loop.sock_sendall(made, data)

    async def serve(ours: QuicEndpoint) -> None:
        echoes = []
        try:
            async for made, _ in ours.come():
                echoes.append(asyncio.create_task(echo(made)))
        finally:
            await end_tasks(*echoes)

    async with endpoint(SEED, relay) as ours:
        if relay is not None:
            async with asyncio.timeout(WITHIN_S):
                await ours.online()
        serving = asyncio.create_task(serve(ours))
        try:
            yield ours
        finally:
            await end_tasks(serving)


async def sent_back(made: socket.socket, data: bytes) -> bytes:
    """All that comes back, after the end of what was sent."""
    loop = asyncio.get_running_loop()

    async def send() -> None:
        await loop.sock_sendall(made, data)
        made.shutdown(socket.SHUT_WR)

    sending = asyncio.create_task(send())
    told = b""
    async with asyncio.timeout(WITHIN_S):
        while part := await loop.sock_recv(made, 1 << 16):
            told += part
        await sending
    return told


# --- the endpoint ------------------------------------------------------------------


async def test_bytes_go_both_ways_and_each_end_may_end_alone() -> None:
    async with echoing() as there, endpoint() as ours:
        made, path = await ours.dial(there.place)
        data = bytes(range(256)) * 4000
        with made:
            assert await sent_back(made, data) == data
        assert path.now is None or not path.now.relayed


async def test_without_direct_addresses_the_relay_carries_it(relay: Relay) -> None:
    async with echoing(relay.access) as there, endpoint() as ours:
        place = replace(there.place, addresses=())
        assert place.relay == relay.access.url
        made, path = await ours.dial(place, relay.access)
        with made:
            assert await sent_back(made, b"hello") == b"hello"
        assert relay.server.traffic.datagrams > 0
        assert path.now is not None


async def test_it_listens_at_the_named_address_alone() -> None:
    async with endpoint() as ours:
        bound = ours._endpoint.bound_sockets()
        assert {one.rpartition(":")[0] for one in bound} <= {"127.0.0.1", "[::1]"}


async def test_a_taken_port_is_no_obstacle() -> None:
    async with endpoint() as ours:
        port = int(ours.place.addresses[0].rpartition(":")[2])
        other = await QuicEndpoint.bound(OTHER_SEED, "127.0.0.1", port)
        assert other.place.addresses != ours.place.addresses
        await other.close()


async def test_another_machine_at_its_address_is_not_talked_to() -> None:
    async with echoing() as there, endpoint() as ours:
        forged = replace(there.place, node=bytes(32))
        with pytest.raises((HostError, TimeoutError)):
            async with asyncio.timeout(3):
                await ours.dial(forged)


async def test_a_reflector_tells_how_one_looks_from_there(relay: Relay) -> None:
    async with endpoint(SEED, relay.access) as ours:
        own = ours.place.addresses
        assert own
        # On loopback it is what one knows already.
        async with asyncio.timeout(WITHIN_S):
            await ours.online()
        assert set(own) <= set(ours.place.addresses)


# --- the relay -----------------------------------------------------------------------


async def test_a_relay_serves_nobody_without_its_key(relay: Relay) -> None:
    wrong = replace(relay.access, key="another")
    async with endpoint(SEED, wrong):
        await until(lambda: relay.server.traffic.refused > 0, "the refusal")
        assert relay.server.clients == 0


async def test_a_full_relay_refuses_more() -> None:
    async with (
        a_relay(clients_max=1) as relay,
        echoing(relay.access),
        endpoint(OTHER_SEED, relay.access),
    ):
        await until(lambda: relay.server.traffic.refused > 0, "the refusal")
        assert relay.server.clients == 1


async def test_a_relay_slows_down_who_sends_too_much() -> None:
    """What waits is not lost: more than the burst arrives whole."""
    data = bytes(300_000)
    async with (
        a_relay(rate_bytes_s=200_000) as relay,
        echoing(relay.access) as there,
        endpoint() as ours,
    ):
        place = replace(there.place, addresses=())
        made, _ = await ours.dial(place, relay.access)
        with made:
            assert await sent_back(made, data) == data


GARBAGE = [
    b"\x01" + bytes(32) + b"\x40" + bytes(64),
    b"\x01" + bytes(96),
    b"\x04" + bytes(97),
    b"",
    "text",
]


@pytest.mark.parametrize("frame", GARBAGE, ids=range(len(GARBAGE)))
async def test_a_relay_takes_no_node_id_without_its_signature(
    relay: Relay, frame: bytes | str
) -> None:
    from aiohttp import ClientSession, WSMsgType

    headers = {"Authorization": f"Bearer {relay.access.key}"}
    async with (
        ClientSession() as session,
        session.ws_connect(
            f"{relay.access.url}/relay", headers=headers, protocols=["iroh-relay-v2"]
        ) as client,
    ):
        assert (await client.receive_bytes())[0] == 0
        if isinstance(frame, str):
            await client.send_str(frame)
        else:
            await client.send_bytes(frame)
        told = await client.receive()
        while told.type is WSMsgType.BINARY:
            assert told.data[0] != 2
            told = await client.receive()
        assert relay.server.clients == 0
    assert relay.server.traffic.refused == 1


# --- a lent machine ----------------------------------------------------------------


@contextlib.asynccontextmanager
async def lent_by_quic(
    folder: Path, relay: RelayAccess | None = None
) -> AsyncIterator[LentMachine]:
    async with lent(folder) as machine:
        if relay is not None:
            RelayFile(machine.paths.relays_file).use(relay)
        await machine.worker.listen_quic("127.0.0.1", 0)
        accepting = asyncio.create_task(machine.worker._accept_quic())
        try:
            await until(lambda: machine.token().quic is not None, "its place")
            yield machine
        finally:
            await end_tasks(accepting)


async def test_a_console_pairs_and_logs_in_by_quic_alone(tmp_path: Path) -> None:
    async with lent_by_quic(tmp_path) as machine:
        token = read_token(machine.token().text, TokenKind.ADD)
        assert token.quic is not None
        dialler = QuicDialler(machine.console)
        dial = dialler.beside(NOWHERE, token.quic)
        try:
            await pair(token, machine.console.console_key_file, "studio", dial)
            connection = InvitedConnection(
                "nuc", dial, machine.host_key, machine.console.console_key_file
            )
            await connection.connect()
            assert connection.hello.name == "nuc"
            assert await connection.ping_ms() > 0
            assert isinstance(dial.path, PeerPath)
            assert not dial.path.relayed
            heard = 0

            def hear(count: int) -> None:
                nonlocal heard
                heard += count

            await connection.noise(hear)
            assert heard == 1 << 20
            await connection.close()
        finally:
            await dialler.close()


async def test_tcp_is_taken_where_it_answers(tmp_path: Path) -> None:
    async with lent_by_quic(tmp_path) as machine:
        token = machine.token()
        assert token.quic is not None
        dialler = QuicDialler(machine.console)
        dial = dialler.beside(Dialled(machine.places), token.quic)
        try:
            made = await dial.connected()
            assert made.family is socket.AF_INET
            made.close()
            assert dial.path is None
        finally:
            await dialler.close()


async def test_a_token_tells_the_relay_with_its_key_and_settings_without(
    tmp_path: Path, relay: Relay
) -> None:
    async with lent_by_quic(tmp_path, relay.access) as machine:
        quic = read_token(machine.token().text, TokenKind.ADD).quic
        assert quic is not None
        assert quic.access == relay.access
        assert relay.access.key not in quic.text
        assert parse_quic_place(quic.text) == replace(quic, relay_key="")
        assert relay.access.key not in repr(machine.token())


async def test_without_iroh_a_worker_is_lent_by_tcp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backends.mesh.quic_library.iroh_version", lambda: "")
    async with lent(tmp_path) as machine:
        await machine.worker.listen_quic("127.0.0.1", 0)
        assert machine.token().quic is None
        assert any("TCP alone" in line for line in machine.tenants.lines)
        assert await machine.pair() == "nuc"
        dialler = QuicDialler(machine.console)
        there = QuicPlace(node=bytes(32))
        with pytest.raises(HostError, match="QUIC needs iroh, which is not installed"):
            await dialler.beside(NOWHERE, there).connected()
        await dialler.close()


# --- words -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "http://",
        "ftp://10.0.0.1#key",
        "http://10.0.0.1/path#key",
        "http://10.0.0.1:99999#key",
        "http://ada@10.0.0.1#key",
        "http://10.0.0.1#k y",
    ],
)
def test_a_relay_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="That is no relay"):
        parse_access(text)


def test_a_relay_is_read_as_it_is_shown() -> None:
    access = parse_access("http://[fd00::5]:50090#aB-_9")
    assert access.text == "http://[fd00::5]:50090#aB-_9"
    assert access.place == ("fd00::5", 50090)
    assert parse_access("https://relay.example.org").place[1] == 443


@pytest.mark.parametrize("text", ["", "zz", "00", "00" * 32 + " host:1", "00" * 31])
def test_a_place_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no place of QUIC"):
        parse_quic_place(text)


def test_the_relay_file_is_private_and_keeps_all_keys(tmp_path: Path) -> None:
    file = RelayFile(tmp_path / "relays.json")
    assert file.own is None
    one, other = (RelayAccess(url=f"http://10.0.0.{n}", key=f"k{n}") for n in (1, 2))
    file.use(one)
    file.learn(other)
    assert file.own == one
    assert file.access(other.url) == other
    assert (tmp_path / "relays.json").stat().st_mode & 0o077 == 0
    file.use(None)
    assert file.own is None
    assert file.access(one.url) == one
