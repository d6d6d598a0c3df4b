"""Lent machines by QUIC: real endpoints of iroh on loopback, and our relay."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock, call

import pytest
from msgspec.structs import replace

from backends.errors import MachineError, UsageError
from backends.machines.peers import Peers
from backends.machines.ssh.lent import LentConnection, pair
from backends.mesh.acceptor import STRANGERS_MAX, Acceptor
from backends.mesh.connection_limits import RELAYED, Crowd
from backends.mesh.dialling import Dialled, listening_at
from backends.mesh.iroh_relay import (
    CONFIRMED,
    STRANGERS_OF_ONE_MAX,
    Budget,
    RelayServer,
    _proved,
)
from backends.mesh.quic import ALPN, SHAKING_MAX, SHAKING_OF_ONE_MAX, QuicEndpoint
from backends.mesh.quic_dial import QuicDialler
from backends.mesh.quic_library import bound_endpoint, iroh_library
from backends.mesh.quic_place import QuicPlace, parse_quic_place
from backends.mesh.reflector import Reflector, _asked, _connected, keep_reflected
from backends.mesh.relay_access import RelayAccess, RelayFile, parse_access, try_relay
from backends.mesh.token import TokenKind, new_token, read_token
from backends.state import PeerPath
from backends.tasks import end_tasks, forever
from tests.kit.clusters import paths_in
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
async def a_relay(**options: Any) -> AsyncIterator[Relay]:
    server = RelayServer("k3y", **options)
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
    """As many bytes as were sent, as they come back."""
    loop = asyncio.get_running_loop()
    sending = asyncio.create_task(loop.sock_sendall(made, data))
    told = b""
    async with asyncio.timeout(WITHIN_S):
        while len(told) < len(data) and (part := await loop.sock_recv(made, 1 << 16)):
            told += part
        await sending
    return told


@contextlib.asynccontextmanager
async def connected(ours: QuicEndpoint, place: QuicPlace) -> AsyncIterator[Any]:
    """A bare connection, as strangers make them."""
    library = ours._library
    node = library.EndpointId.from_bytes(place.node)
    addr = library.EndpointAddr(node, None, list(place.addresses))
    made = await ours._endpoint.connect(addr, ALPN)
    try:
        yield made
    finally:
        made.close(0, b"")


async def asked(stream: Any) -> None:
    await stream.write_all(b"?")


# --- the endpoint ------------------------------------------------------------------


async def test_bytes_go_both_ways_and_one_end_ends_both() -> None:
    async with echoing() as there, endpoint() as ours:
        idle = len(there._tasks)
        made = await ours.dial(there.place)
        data = bytes(range(256)) * 4000
        with made:
            assert await sent_back(made, data) == data
        assert made.path.now is None or not made.path.now.relayed
        await until(lambda: not ours._tasks, "the end of our pump")
        await until(lambda: len(there._tasks) == idle, "the end of theirs")


@pytest.mark.parametrize("kind", ["open_uni", "open_bi"])
async def test_whoever_opens_more_streams_than_one_is_sent_away(kind: str) -> None:
    async with (
        echoing() as there,
        endpoint() as ours,
        connected(ours, there.place) as connection,
    ):
        await asked((await connection.open_bi()).send())
        more = await getattr(connection, kind)()
        await asked(more if kind == "open_uni" else more.send())
        async with asyncio.timeout(WITHIN_S):
            assert "by peer" in await connection.closed()


@pytest.mark.parametrize("kind", ["open_uni", "open_bi"])
async def test_a_reflector_answers_one_question_at_a_time(
    relay: Relay, kind: str
) -> None:
    async with endpoint() as ours:
        connection = await _connected(ours._library, ours._endpoint, relay.access)
        assert await _asked(connection) in ours.place.addresses
        await asked((await connection.open_bi()).send())
        more = await getattr(connection, kind)()
        await asked(more if kind == "open_uni" else more.send())
        async with asyncio.timeout(WITHIN_S):
            assert "by peer" in await connection.closed()


async def test_one_address_cannot_take_every_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("backends.mesh.quic.SHAKE_S", 300.0)
    async with endpoint(SEED) as there, contextlib.AsyncExitStack() as stack:
        coming = there.come()
        taken = asyncio.ensure_future(anext(coming))
        ours = await stack.enter_async_context(endpoint())

        async def crowd() -> None:
            for _ in range(SHAKING_MAX + 1):
                await stack.enter_async_context(connected(ours, there.place))

        # Iroh may change to another address of this machine, with places of its own.
        with pytest.raises(ours._library.IrohError):
            await crowd()
        assert max(there._shaking.by_address.values()) == SHAKING_OF_ONE_MAX
        await end_tasks(taken)


class Coming:
    """One who comes, as iroh tells it."""

    def __init__(self, address: str, *, proved: bool = False) -> None:
        self.addr = f"{address}:50000"
        self.proved = proved
        self.told = ""

    def is_relay(self) -> bool:
        return False

    def is_ip(self) -> bool:
        return True

    async def remote_addr(self) -> Coming:
        return self

    async def remote_addr_validated(self) -> bool:
        return self.proved

    async def refuse(self) -> None:
        self.told = "refused"

    async def retry(self) -> None:
        self.told = "retry"
        raise Broken


class Broken(Exception):
    """As errors of iroh are."""


class Arrivals:
    """An endpoint to which these come; or it fails."""

    def __init__(self, *come: Coming | type[Exception]) -> None:
        self._come = list(come)

    async def accept_next(self) -> Coming | None:
        one = self._come.pop(0) if self._come else None
        if isinstance(one, type):
            raise one
        return one


async def test_addresses_are_proved_where_many_come_and_errors_end_nothing() -> None:
    come = [Coming(f"10.0.0.{n}") for n in range(4)]
    come += [Coming("10.0.0.9", proved=True), Coming("10.0.0.9", proved=True)]
    crowd = Crowd(4, 1)
    arrivals = Arrivals(come[0], Broken, RuntimeError, *come[1:])
    entered = [address async for _, address in crowd.come(arrivals)]
    assert entered == ["10.0.0.0", "10.0.0.1", "10.0.0.9"]
    assert [one.told for one in come] == ["", "", "retry", "retry", "", "refused"]


def test_those_relayed_never_take_all_places() -> None:
    crowd = Crowd(8, 2)
    assert [crowd.enter(f"{RELAYED}{n}") for n in range(5)] == [True] * 4 + [False]
    assert crowd.enter("10.0.0.1")


async def test_a_worker_keeps_places_for_those_not_relayed() -> None:
    async def silent(*_: Any) -> None:
        await forever()

    acceptor = Acceptor(silent, lambda _: None)
    ends = []
    for address in [*(f"{RELAYED}{n}" for n in range(STRANGERS_MAX)), "10.0.0.1"]:
        near, far = socket.socketpair()
        ends.append(far)
        acceptor.let_in(near, address)
    relayed = [one for one in acceptor.strangers if one.startswith(RELAYED)]
    assert len(relayed) == STRANGERS_MAX // 2
    assert acceptor.strangers["10.0.0.1"] == 1
    await acceptor.close()
    for far in ends:
        far.close()


async def test_who_comes_by_ipv4_has_an_address_as_people_write_it() -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def welcome(made: socket.socket, address: str, _: object) -> None:
        made.close()
        heard.put_nowait(address)

    acceptor = Acceptor(welcome, lambda _: None)
    with listening_at("::", 0) as listening:
        accepting = asyncio.create_task(acceptor.run(listening))
        port = listening.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            assert await heard.get() == "127.0.0.1"
        accepting.cancel()
    await acceptor.close()


async def test_without_direct_addresses_the_relay_carries_it(relay: Relay) -> None:
    async with echoing(relay.access) as there, endpoint() as ours:
        place = replace(there.place, addresses=())
        assert place.relay == relay.access.url
        made = await ours.dial(place, relay.access)
        with made:
            assert await sent_back(made, b"hello") == b"hello"
        assert relay.server.traffic.datagrams > 0
        assert made.path.now is not None


async def test_it_listens_at_the_named_address_alone() -> None:
    async with endpoint() as ours:
        bound = ours._endpoint.bound_sockets()
        assert {one.rpartition(":")[0] for one in bound} <= {"127.0.0.1", "[::1]"}


async def test_no_relay_or_directory_is_asked_unless_it_is_named(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the library's own settings it would meet others at four public relays."""
    library = await iroh_library()
    assert library.RelayMode.default_mode().relay_map().urls()
    bind, bound = library.Endpoint.bind, list[Any]()

    async def noted(options: Any) -> Any:
        bound.append(options)
        return await bind(options)

    monkeypatch.setattr(library.Endpoint, "bind", noted)
    async with endpoint() as ours:
        assert ours.place.relay == ""
    other = await Reflector.bound(relay.access, "127.0.0.1", 0)
    await other.close()
    assert len(bound) == 2
    for options in bound:
        assert options.relay_mode.relay_map().urls() == []
        builder = Mock()
        options.preset.apply(builder)
        (first, *rest) = builder.method_calls
        assert first == call.apply_minimal()
        assert {name for name, *_ in rest} == {"bind_addr"}


async def test_a_taken_port_is_no_obstacle() -> None:
    async with endpoint() as ours:
        port = int(ours.place.addresses[0].rpartition(":")[2])
        other = await QuicEndpoint.bound(OTHER_SEED, "127.0.0.1", port)
        assert other.place.addresses != ours.place.addresses
        await other.close()


async def test_another_machine_at_its_address_is_not_talked_to() -> None:
    async with echoing() as there, endpoint() as ours:
        forged = replace(there.place, node=bytes(32))
        with pytest.raises((MachineError, TimeoutError)):
            async with asyncio.timeout(3):
                await ours.dial(forged)


async def test_a_reflector_tells_how_one_looks_from_there(relay: Relay) -> None:
    async with endpoint() as ours:
        told: asyncio.Queue[str] = asyncio.Queue()
        removed: asyncio.Queue[str] = asyncio.Queue()

        class Told:
            connect = ours._endpoint.connect
            add_external_addr = staticmethod(told.put)
            remove_external_addr = staticmethod(removed.put)

        asking = keep_reflected(ours._library, Told, relay.access)
        task = asyncio.create_task(asking)
        async with asyncio.timeout(WITHIN_S):
            address = await told.get()
        assert address in ours.place.addresses
        assert removed.empty()
        # Who leaves a relay is not to be looked for by its word.
        await end_tasks(task)
        assert removed.get_nowait() == address


async def test_a_reflector_and_an_endpoint_do_without_ipv6(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = await iroh_library()
    bind, tried = library.Endpoint.bind, []

    class Noted:
        def __init__(self, addresses: list[str]) -> None:
            self.bind_addr = addresses.append

        def apply_minimal(self) -> None: ...

    async def without_ipv6(options: Any) -> Any:
        addresses: list[str] = []
        options.preset.apply(Noted(addresses))
        tried.append(addresses)
        if any(one.startswith("[") for one in addresses):
            # A secret of a wrong length, so that the library itself says no.
            options.secret_key = b"short"
        return await bind(options)

    monkeypatch.setattr(library.Endpoint, "bind", without_ipv6)
    access = RelayAccess(url="http://127.0.0.1:9", key="k3y")
    reflector = await Reflector.bound(access, "127.0.0.1", 0)
    await reflector.close()
    async with endpoint() as ours:
        assert ours.place.addresses
    assert [len(addresses) for addresses in tried] == [2, 1] * 2


async def test_an_endpoint_whose_relay_is_none_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Any] = []

    async def noted(*args: Any, **options: Any) -> Any:
        made.append(await bound_endpoint(*args, **options))
        return made[-1]

    monkeypatch.setattr("backends.mesh.quic.bound_endpoint", noted)
    wrong = RelayAccess(url="http://[", key="k")
    with pytest.raises(MachineError, match="cannot be used"):
        await QuicEndpoint.bound(SEED, "127.0.0.1", relay=wrong)
    assert made[0].is_closed()


class Deaf:
    """A stream, and its connection, to a machine that acknowledges nothing."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self.send = self.recv = lambda: self

    async def finish(self) -> None: ...

    async def stopped(self) -> None:
        await forever()

    async def read(self, _: int) -> bytes:
        await self.closed.wait()
        raise Broken

    def close(self, *_: object) -> None:
        self.closed.set()


async def test_who_is_refused_is_let_go_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("backends.mesh.quic.FLUSH_S", 600.0)
    deaf = Deaf()
    async with endpoint() as ours:
        # As an acceptor does where too many are here.
        ours._socket(deaf, deaf).close()
        await until(lambda: not ours._tasks, "the end of its pump")
    assert deaf.closed.is_set()


async def test_a_peer_that_is_gone_from_the_settings_leaves_its_relay(
    tmp_path: Path,
) -> None:
    inventory = SimpleNamespace(settings=lambda: SimpleNamespace(peers={}))
    none = cast("Any", None)
    peers = Peers(
        none,
        cast("Any", inventory),
        paths_in(tmp_path),
        show=lambda _: None,
        serves=lambda _: False,
    )
    left: list[list[str]] = []

    async def keep(places: list[str]) -> None:
        left.append(list(places))

    peers._quic.keep_relays = keep  # type: ignore[assignment,method-assign]
    await peers.follow({})
    assert left == [[]]
    await peers.close()


async def test_a_relay_that_none_needs_any_more_is_left(relay: Relay) -> None:
    async with endpoint(SEED) as ours:
        await ours.meet_at(relay.access)
        await until(lambda: relay.server.clients == 1, "its client")
        await ours.leave_all_but([relay.access.url])
        assert ours._relays
        await ours.leave_all_but([])
        assert not ours._relays
        assert not ours._tasks
        await ours.wait_at(relay.access)
        await ours.leave_all_but([])
        assert ours._relays
        assert ours.place.relay == relay.access.url


async def test_another_key_of_a_relay_replaces_the_first(relay: Relay) -> None:
    wrong = replace(relay.access, key="old")
    async with endpoint(SEED, wrong) as ours:
        await ours.meet_at(relay.access)
        await until(lambda: relay.server.clients == 1, "its client")
        assert len(ours._tasks) == 1


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


async def test_a_relay_slows_down_who_sends_too_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What waits is not lost: all arrives whole."""
    data = bytes(300_000)
    asked: Counter[float] = Counter()

    class Counted(Budget):
        def owed_s(self, count: int) -> float:
            asked[self._rate] += count
            return 0.001

    monkeypatch.setattr("backends.mesh.iroh_relay.Budget", Counted)
    async with (
        a_relay(rate_bytes_s=200_000) as relay,
        echoing(relay.access) as there,
        endpoint() as ours,
    ):
        place = replace(there.place, addresses=())
        with await ours.dial(place, relay.access) as made:
            assert await sent_back(made, data) == data
    # Each pays for itself, and out of what is for all.
    assert asked[200_000] > relay.server.traffic.bytes > 0
    assert asked[8 * 200_000] == asked[200_000]


def test_a_budget_is_a_rate_with_a_burst_of_half_a_second() -> None:
    now_s = 0.0
    budget = Budget(1000.0, lambda: now_s)
    assert budget.owed_s(500) == 0
    assert budget.owed_s(250) == 0.25
    assert budget.owed_s(1000) == 1.25
    now_s = 100.0
    assert budget.owed_s(500) == 0
    assert budget.owed_s(1) == 0.001


async def raw(relay: Relay) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*relay.access.place)


async def test_requests_without_sense_leave_no_traceback(
    relay: Relay, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await raw(relay)
    head = b"GET /relay HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "
    writer.write(head + b"\xff\r\n\r\n")
    async with asyncio.timeout(WITHIN_S):
        assert (await reader.readline()).startswith(b"HTTP/1.1 401")
        writer.write(b"nonsense\r\n\r\n")
        await reader.read()
    writer.close()
    assert not [one for one in caplog.records if one.levelno > logging.INFO]


async def test_those_without_the_key_are_few_and_do_not_stay() -> None:
    async with a_relay(stranger_s=0.5) as relay, contextlib.AsyncExitStack() as stack:
        ends = []
        for _ in range(STRANGERS_OF_ONE_MAX + 1):
            reader, writer = await raw(relay)
            stack.callback(writer.close)
            ends.append(reader)
        await until(lambda: relay.server.traffic.refused == 1, "the refusal")
        for reader in ends:
            async with asyncio.timeout(WITHIN_S):
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""


async def test_strangers_of_one_network_count_as_one() -> None:
    closed: list[int] = []

    class Server:
        """Of HTTP, with connections that have come already."""

        connections = [
            SimpleNamespace(transport=transport(f"2001:db8::{n + 1}"))
            for n in range(STRANGERS_OF_ONE_MAX)
        ]

    server = RelayServer("k3y")
    server._runner = cast("Any", SimpleNamespace(server=Server))
    server.let_in(transport("2001:db8::ff", lambda: closed.append(1)))
    assert closed == [1]


async def test_a_relay_without_its_hash_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "blake3", None)
    with socket.socket() as listening, pytest.raises(MachineError, match="blake3"):
        await RelayServer("k3y").start(listening)


def transport(address: str, abort: Any = None) -> Any:
    return Mock(get_extra_info=lambda _: (address, 1), abort=abort)


async def test_those_with_the_key_stay() -> None:
    async with a_relay(stranger_s=0.1) as relay, endpoint(SEED, relay.access):
        await until(lambda: relay.server.clients == 1, "its client")
        await asyncio.sleep(0.3)
        assert relay.server.clients == 1
        assert relay.server._with_key


GARBAGE: list[bytes | str] = [
    b"\x01" + b"\x07" * 32 + b"\x40" + bytes(64),
    b"\x01" + bytes(96),
    b"\x04" + bytes(97),
    b"",
    "text",
]


async def test_a_relay_takes_no_node_id_without_its_signature(relay: Relay) -> None:
    from aiohttp import ClientSession, WSMsgType

    headers = {"Authorization": f"Bearer {relay.access.key}"}
    there = f"{relay.access.url}/relay"
    async with ClientSession(headers=headers) as session:
        for frame in GARBAGE:
            async with session.ws_connect(there, protocols=["iroh-relay-v2"]) as client:
                assert (await client.receive_bytes())[0] == 0
                if isinstance(frame, str):
                    await client.send_str(frame)
                else:
                    await client.send_bytes(frame)
                told = await client.receive()
                while told.type is WSMsgType.BINARY:
                    assert told.data[0] != 2
                    told = await client.receive()
            assert relay.server.clients == 0, frame
    assert relay.server.traffic.refused == len(GARBAGE)


# y of points of small order, and the sign; of these one is no canonical number.
SMALL = [
    bytes([1, *bytes(31)]),
    bytes(32),
    bytes([*bytes(31), 0x80]),
    bytes([0xEC, *b"\xff" * 30, 0x7F]),
    bytes([0xEE, *b"\xff" * 30, 0x7F]),
]


async def test_a_relay_takes_no_node_id_for_which_anybody_signs() -> None:
    from cryptography.exceptions import InvalidSignature

    sent: list[bytes] = []

    class Client:
        def __init__(self, node: bytes) -> None:
            self.node = node

        async def send_bytes(self, data: bytes) -> None:
            sent.append(data)

        async def receive_bytes(self) -> bytes:
            # R is the neutral point, and S is 0.
            return b"\x01" + self.node + b"\x40" + bytes([1, *bytes(63)])

    for node in SMALL * 64:
        with pytest.raises((ValueError, InvalidSignature)):
            await _proved(cast("Any", Client(node)))
    assert bytes([CONFIRMED]) not in sent


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
            await until(lambda: machine.pairings.read().quic is not None, "its place")
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
            connection = LentConnection(
                "nuc", dial, machine.host_key, machine.console.console_key_file
            )
            await connection.connect()
            assert connection.hello.name == "nuc"
            assert await connection.ping_ms() > 0
            assert isinstance(connection.path, PeerPath)
            assert not connection.path.relayed
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
        finally:
            await dialler.close()


async def test_whatever_else_takes_its_address_is_passed_over(tmp_path: Path) -> None:
    """A captive portal, which is silent, and another home's worker."""
    silent = listening_at("127.0.0.1", 0)
    silent_place = f"127.0.0.1:{silent.getsockname()[1]}"
    async with lent_by_quic(tmp_path / "a") as machine, lent(tmp_path / "b") as other:
        await other.pair()
        token = machine.token()
        assert token.quic is not None
        dialler = QuicDialler(machine.console)
        try:
            for places in ([silent_place], other.places):
                dial = dialler.beside(Dialled(places), token.quic)
                key = machine.console.console_key_file
                assert await pair(machine.token(), key, "studio", dial) == "nuc"
                connection = LentConnection("nuc", dial, machine.host_key, key)
                await connection.connect()
                assert connection.path is not None
                await connection.close()
        finally:
            await dialler.close()
            silent.close()


async def test_a_forged_token_changes_no_key_of_a_relay(
    tmp_path: Path, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    console = paths_in(tmp_path)
    known = RelayFile(console.relays_file)
    known.use(relay.access)
    other = RelayAccess(url="http://127.0.0.1:9", key="k")
    known.learn(other)
    inventory = SimpleNamespace(settings=lambda: SimpleNamespace(peers={}))
    none = cast("Any", None)
    peers = Peers(
        none,
        cast("Any", inventory),
        console,
        show=lambda _: None,
        serves=lambda _: False,
    )
    place = QuicPlace(node=OTHER_SEED, relay=other.url, relay_key="forged")
    named = "nuc", ("127.0.0.1",), 1
    token = new_token(TokenKind.ADD, *named, bytes(32), 60.0, place)
    monkeypatch.setattr("backends.mesh.quic_dial.QUIC_S", 0.3)
    try:
        with pytest.raises(MachineError, match="cannot be reached"):
            await peers.add_by_token("", token.text)
    finally:
        await peers.close()
    assert known.access(other.url) == other
    # One that is proved tells no other key of a known relay, either.
    for one in (relay.access, other):
        known.learn(replace(one, key="forged"))
        assert known.access(one.url) == one
    # Unless no peer was left there: its key was forgotten, but never our own.
    known.forget_all_but([])
    known.learn(replace(other, key="new"))
    assert known.access(other.url).key == "new"
    assert known.own == relay.access


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


async def about_the_relay(folder: Path, access: RelayAccess) -> str:
    """What a worker says first of its relay."""
    said: list[str] = []
    async with lent_by_quic(folder, access) as machine:

        def told() -> bool:
            said[:] = [line for line in machine.tenants.lines if "the relay" in line]
            return bool(said)

        await until(told, "a word on the relay")
    return said[0]


async def test_a_worker_says_whether_its_relay_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []
    async with a_relay(say=refused.append) as relay:
        await try_relay(relay.access)
        taken = await about_the_relay(tmp_path / "a", relay.access)
        assert f"reached by the relay {relay.access.url}, too" in taken
        monkeypatch.setattr("backends.mesh.worker.RELAY_S", 0.5)
        wrong = replace(relay.access, key="other")
        assert "refuses the key" in await about_the_relay(tmp_path / "b", wrong)
    assert "127.0.0.1 was refused: it has not the key" in refused[0]
    down = await about_the_relay(tmp_path / "c", relay.access)
    assert "does not answer" in down


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
        with pytest.raises(
            MachineError, match="QUIC needs iroh, which is not installed"
        ):
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


def test_the_key_of_a_token_wins_over_one_that_a_machine_told(tmp_path: Path) -> None:
    file = RelayFile(tmp_path / "relays.json")
    told = RelayAccess(url="http://10.0.0.1", key="told")
    file.learn(told, heard=True)
    assert file.access(told.url) == told
    good = replace(told, key="good")
    file.learn(good)
    for heard in (True, False):
        file.learn(told, heard=heard)
        assert file.access(told.url) == good
    # Nor does a machine tell a key for our own relay, which has none.
    file.use(RelayAccess(url="http://10.0.0.2"))
    file.learn(RelayAccess(url="http://10.0.0.2", key="told"), heard=True)
    assert file.own == RelayAccess(url="http://10.0.0.2")


async def test_keys_of_relays_are_written_in_order_and_off_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []

    def write(path: Path, content: bytes) -> None:
        written.append(threading.get_ident())
        # The first one takes longer than the others.
        time.sleep(0.2 if len(written) == 1 else 0.0)
        path.write_bytes(content)

    monkeypatch.setattr("backends.mesh.relay_access.write_private", write)
    paths = paths_in(tmp_path)
    paths.relays_file.parent.mkdir(parents=True, exist_ok=True)
    dialler = QuicDialler(paths)
    one, other = (
        QuicPlace(node=OTHER_SEED, relay=f"http://10.0.0.{n}", relay_key=f"k{n}")
        for n in (1, 2)
    )
    await asyncio.gather(
        dialler.learn(one), dialler.learn(other), dialler.forget_relays_but([])
    )
    assert len(written) == 3
    assert threading.get_ident() not in written
    file = RelayFile(paths.relays_file)
    assert not file.access(one.relay).key
    assert not file.access(other.relay).key


async def test_who_only_dials_leaves_the_port_to_others(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(("0.0.0.0", 0))
        port = udp.getsockname()[1]
        async with lent_by_quic(tmp_path) as machine:
            place = machine.token().quic
            assert place is not None
            dialler = QuicDialler(machine.console, port=lambda: port)
            made = await dialler.dial(place)
            await asyncio.sleep(0)
            made.close()
            udp.close()
            # An invitation has others come to that port.
            own = await dialler.own_place()
            await dialler.close()
    assert own is not None
    assert f":{port}" in str(own.addresses)
