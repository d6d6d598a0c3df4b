"""A relay for machines that cannot reach each other: datagrams by node id.

It speaks iroh's relay protocol over WebSocket. What it passes on is encrypted from end
to end; it sees node ids, addresses and sizes.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import time
from collections import Counter
from typing import TYPE_CHECKING

from aiohttp import WSMsgType, web
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from backends.errors import MachineError
from backends.mesh.connection_limits import Crowd, StrangerLog, counted_as

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

log = logging.getLogger(__name__)
_of_http = logging.getLogger(f"{__name__}.http")
# aiohttp tells requests without sense with tracebacks.
_of_http.setLevel(logging.CRITICAL + 1)

PROTOCOLS = ("iroh-relay-v2",)
CHALLENGE, CLIENT_AUTH, CONFIRMED, DENIED = 0, 1, 2, 3
TO_NODE, BATCH_TO_NODE, FROM_NODE, BATCH_FROM_NODE = 4, 5, 6, 7
PING, PONG = 9, 10
NODE_BYTES = 32
SIGNATURE_BYTES = 64
FRAME_BYTES_MAX = 66_000
HANDSHAKE_S = 5.0
SILENCE_MAX_S = 60.0
WAITING_BYTES_MAX = 1 << 20
"""More for a slow receiver is dropped: QUIC sends it again."""
CLIENTS_MAX = 64
CLIENTS_OF_ONE_MAX = 8
STRANGERS_MAX = 64
"""Connections that have not shown the key; more are closed at once."""
STRANGERS_OF_ONE_MAX = 8
STRANGER_S = 10.0
RATE_BYTES_S = 8e6
ALL_TO_ONE = 8
"""All together may send so many times what one may."""
FRAME_COST_BYTES = 64
"""The work that each frame makes, beside its bytes."""
_CONTEXT = "iroh-relay handshake v1 challenge signature"
_BURST_S = 0.5
_P = 2**255 - 19
_Y8 = int.from_bytes(
    bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"),
    "little",
)
_SMALL_ORDER = {0, 1, _P - 1, _Y8, _P - _Y8}
"""For these points of Ed25519, by y, anybody can make a signature."""


class RelayTraffic:
    """Counts of all that passed, for the log of its owner."""

    datagrams = 0
    bytes = 0
    dropped = 0
    refused = 0


class RelayServer:
    """Passes datagrams on between those who have the key.

    ``rate_bytes_s`` is the most that each of them may send; all together may send
    eight times that. Who shows no key within ``stranger_s`` is sent away. ``say`` takes
    a line about each that is refused.
    """

    def __init__(
        self,
        key: str,
        rate_bytes_s: float = RATE_BYTES_S,
        clients_max: int = CLIENTS_MAX,
        stranger_s: float = STRANGER_S,
        say: Callable[[str], None] = log.info,
    ) -> None:
        self.traffic = RelayTraffic()
        self._key = key
        self._rate_bytes_s = rate_bytes_s
        self._budget = Budget(ALL_TO_ONE * rate_bytes_s)
        self._clients: dict[bytes, web.WebSocketResponse] = {}
        self._crowd = Crowd(clients_max, CLIENTS_OF_ONE_MAX)
        self._stranger_s = stranger_s
        self._say = StrangerLog(say)
        self._with_key: set[asyncio.BaseTransport | None] = set()
        self._server: asyncio.Server | None = None
        self._runner: web.AppRunner | None = None

    @property
    def clients(self) -> int:
        return len(self._clients)

    async def start(self, listening: socket.socket) -> None:
        """Serve at a socket until ``close``."""
        try:
            import blake3  # noqa: F401
        except ImportError as error:
            raise MachineError(
                "A relay needs blake3, which is not installed",
                "Install it: pip install 'dllm-tui[mesh]'.",
            ) from error
        app = web.Application(client_max_size=1024)
        app.router.add_get("/relay", self._serve)
        app.router.add_get("/ping", _nothing)
        app.router.add_get("/generate_204", _nothing)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=_of_http,
            shutdown_timeout=1.0,
            handle_signals=False,
        )
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Door(self), sock=listening)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for client in tuple(self._clients.values()):
            await client.close()
        if self._runner is not None:
            await self._runner.cleanup()

    def let_in(self, transport: asyncio.Transport) -> None:
        """Have HTTP at a new connection, unless too many are here without the key."""
        assert self._runner is not None
        assert self._runner.server is not None
        address = _address(transport)
        there = (one.transport for one in self._runner.server.connections)
        strangers = Counter(_address(t) for t in there if t not in self._with_key)
        crowded = strangers.total() >= STRANGERS_MAX
        if crowded or strangers[address] >= STRANGERS_OF_ONE_MAX:
            self._refuse(address, "too many without the key are here")
            transport.abort()
            return
        http = self._runner.server()
        transport.set_protocol(http)
        http.connection_made(transport)
        loop = asyncio.get_running_loop()
        loop.call_later(self._stranger_s, self._end_stranger, transport)

    def _end_stranger(self, transport: asyncio.Transport) -> None:
        if transport not in self._with_key:
            transport.abort()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        address = request.remote or ""
        given = request.headers.get("Authorization", "")
        wanted = f"Bearer {self._key}".encode()
        if not hmac.compare_digest(given.encode(errors="surrogateescape"), wanted):
            self._refuse(address, "it has not the key")
            raise web.HTTPUnauthorized
        if not self._crowd.enter(address):
            self._refuse(address, "too many are here")
            raise web.HTTPServiceUnavailable
        transport = request.transport
        self._with_key.add(transport)
        client = web.WebSocketResponse(
            protocols=PROTOCOLS,
            max_msg_size=FRAME_BYTES_MAX,
            compress=False,
            heartbeat=SILENCE_MAX_S / 2,
        )
        try:
            await client.prepare(request)
            if transport is not None:
                # Whoever sends to it never waits for it.
                transport.set_write_buffer_limits(2 * WAITING_BYTES_MAX)
            await self._meet(client, address)
        except (OSError, RuntimeError) as error:
            log.info("%s went away: %s", address, error)
        finally:
            self._with_key.discard(transport)
            self._crowd.leave(address)
        return client

    async def _meet(self, client: web.WebSocketResponse, address: str) -> None:
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                node = await _proved(client)
        except (TimeoutError, TypeError, ValueError, InvalidSignature) as error:
            self._refuse(address, f"its handshake is wrong ({error})")
            await client.close()
            return
        await self._pass_on(client, node)

    def _refuse(self, address: str, why: str) -> None:
        self.traffic.refused += 1
        self._say(f"{address or 'somebody'} was refused: {why}")

    async def _pass_on(self, client: web.WebSocketResponse, node: bytes) -> None:
        if (before := self._clients.get(node)) is not None:
            # It has come anew, by another address maybe.
            await before.close()
        self._clients[node] = client
        budget = Budget(self._rate_bytes_s)
        try:
            async for message in client:
                if message.type is not WSMsgType.BINARY:
                    return
                await self._take(client, node, message.data)
                cost_bytes = len(message.data) + FRAME_COST_BYTES
                owed_s = [b.owed_s(cost_bytes) for b in (budget, self._budget)]
                if any(owed_s):
                    # It is not read from until it may send again.
                    await asyncio.sleep(max(owed_s))
        finally:
            if self._clients.get(node) is client:
                del self._clients[node]

    async def _take(
        self, client: web.WebSocketResponse, node: bytes, frame: bytes
    ) -> None:
        kind = frame[0] if frame else -1
        if kind == PING and len(frame) == 9:
            await client.send_bytes(bytes([PONG]) + frame[1:])
        elif kind in (TO_NODE, BATCH_TO_NODE) and len(frame) > 1 + NODE_BYTES:
            told = FROM_NODE if kind == TO_NODE else BATCH_FROM_NODE
            there = self._clients.get(frame[1 : 1 + NODE_BYTES])
            passed = bytes([told]) + node + frame[1 + NODE_BYTES :]
            if there is None or there.closed or _waiting(there) > WAITING_BYTES_MAX:
                self.traffic.dropped += 1
                return
            self.traffic.datagrams += 1
            self.traffic.bytes += len(frame)
            try:
                await there.send_bytes(passed)
            except (OSError, RuntimeError):
                self.traffic.dropped += 1


class _Door(asyncio.Protocol):
    """A connection before it is let in."""

    def __init__(self, relay: RelayServer) -> None:
        self._relay = relay

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._relay.let_in(transport)


def _address(transport: asyncio.BaseTransport | None) -> str:
    # None once the connection is gone.
    peer = transport.get_extra_info("peername") if transport else None
    return counted_as(str(peer[0])) if peer else ""


async def _nothing(_: web.Request) -> web.Response:
    return web.Response()


def _waiting(client: web.WebSocketResponse) -> int:
    # Bytes for it that have not left this machine.
    writer = client._writer
    transport = writer.transport if writer else None
    return transport.get_write_buffer_size() if transport else 0


async def _proved(client: web.WebSocketResponse) -> bytes:
    """The node id of whoever is there, once its signature proves it."""
    from blake3 import blake3

    challenge = secrets.token_bytes(16)
    await client.send_bytes(bytes([CHALLENGE]) + challenge)
    frame = await client.receive_bytes()
    node, rest = frame[1 : 1 + NODE_BYTES], frame[1 + NODE_BYTES :]
    # A length in one byte stands before the signature.
    if len(rest) != 1 + SIGNATURE_BYTES or frame[0] != CLIENT_AUTH:
        raise ValueError("it is none")
    if int.from_bytes(node, "little") % 2**255 % _P in _SMALL_ORDER:
        raise ValueError("its node id proves nothing")
    signed = blake3(challenge, derive_key_context=_CONTEXT).digest()
    try:
        Ed25519PublicKey.from_public_bytes(node).verify(rest[1:], signed)
    except InvalidSignature:
        await client.send_bytes(bytes([DENIED]))
        raise
    await client.send_bytes(bytes([CONFIRMED]))
    return node


class Budget:
    """The bytes that somebody may send: a rate, with a burst."""

    def __init__(
        self, rate_bytes_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = rate_bytes_s
        self._left = rate_bytes_s * _BURST_S
        self._clock = clock
        self._at = clock()

    def owed_s(self, count: int) -> float:
        """Take so many bytes; the seconds until there are some again."""
        now = self._clock()
        earned = (now - self._at) * self._rate
        self._left = min(self._left + earned, self._rate * _BURST_S) - count
        self._at = now
        return max(0.0, -self._left / self._rate)
