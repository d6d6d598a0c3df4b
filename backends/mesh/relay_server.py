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

from backends.errors import HostError

if TYPE_CHECKING:
    import socket

log = logging.getLogger(__name__)

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
RATE_BYTES_S = 8e6
_CONTEXT = "iroh-relay handshake v1 challenge signature"
_BURST_S = 0.5


class RelayTraffic:
    """Counts of all that passed, for the log of its owner."""

    datagrams = 0
    bytes = 0
    dropped = 0
    refused = 0


class RelayServer:
    """Passes datagrams on between those who have the key.

    ``rate_bytes_s`` is the most that each of them may send.
    """

    def __init__(
        self,
        key: str,
        rate_bytes_s: float = RATE_BYTES_S,
        clients_max: int = CLIENTS_MAX,
    ) -> None:
        self.traffic = RelayTraffic()
        self._key = key
        self._rate_bytes_s = rate_bytes_s
        self._clients_max = clients_max
        self._clients: dict[bytes, web.WebSocketResponse] = {}
        self._addresses: Counter[str] = Counter()
        self._runner: web.AppRunner | None = None

    @property
    def clients(self) -> int:
        return len(self._clients)

    async def start(self, listening: socket.socket) -> None:
        """Serve at a socket until ``close``.

        Raises:
            HostError: what checks signatures is not installed.
        """
        try:
            import blake3  # noqa: F401
        except ImportError as error:
            raise HostError(
                "A relay needs blake3, which is not installed",
                "Install it: pip install 'dllm-tui[mesh]'.",
            ) from error
        app = web.Application(client_max_size=1024)
        app.router.add_get("/relay", self._serve)
        app.router.add_get("/ping", _nothing)
        app.router.add_get("/generate_204", _nothing)
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=1.0, handle_signals=False
        )
        await self._runner.setup()
        await web.SockSite(self._runner, listening).start()

    async def close(self) -> None:
        for client in tuple(self._clients.values()):
            await client.close()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        address = request.remote or ""
        given = request.headers.get("Authorization", "").encode()
        if not hmac.compare_digest(given, f"Bearer {self._key}".encode()):
            self._refuse(address, "it has not the key")
            raise web.HTTPUnauthorized
        crowded = self._addresses.total() >= self._clients_max
        if crowded or self._addresses[address] >= CLIENTS_OF_ONE_MAX:
            self._refuse(address, "too many are here")
            raise web.HTTPServiceUnavailable
        self._addresses[address] += 1
        try:
            client = web.WebSocketResponse(
                protocols=PROTOCOLS,
                max_msg_size=FRAME_BYTES_MAX,
                compress=False,
                heartbeat=SILENCE_MAX_S / 2,
            )
            await client.prepare(request)
            if request.transport is not None:
                # Whoever sends to it never waits for it.
                request.transport.set_write_buffer_limits(2 * WAITING_BYTES_MAX)
            try:
                async with asyncio.timeout(HANDSHAKE_S):
                    node = await _proved(client)
            except (TimeoutError, TypeError, ValueError, InvalidSignature) as error:
                self._refuse(address, f"its handshake is wrong ({error})")
                await client.close()
                return client
            await self._pass_on(client, node)
            return client
        finally:
            self._addresses[address] -= 1
            self._addresses += Counter()

    def _refuse(self, address: str, why: str) -> None:
        self.traffic.refused += 1
        log.info("%s was refused: %s", address, why)

    async def _pass_on(self, client: web.WebSocketResponse, node: bytes) -> None:
        if (before := self._clients.get(node)) is not None:
            # It has come anew, by another address maybe.
            await before.close()
        self._clients[node] = client
        budget = _Budget(self._rate_bytes_s)
        try:
            async for message in client:
                if message.type is not WSMsgType.BINARY:
                    return
                await self._take(client, node, message.data)
                await budget.spend(len(message.data))
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
    signed = blake3(challenge, derive_key_context=_CONTEXT).digest()
    try:
        Ed25519PublicKey.from_public_bytes(node).verify(rest[1:], signed)
    except InvalidSignature:
        await client.send_bytes(bytes([DENIED]))
        raise
    await client.send_bytes(bytes([CONFIRMED]))
    return node


class _Budget:
    """The bytes that somebody may send: a rate, with a burst."""

    def __init__(self, rate_bytes_s: float) -> None:
        self._rate = rate_bytes_s
        self._left = rate_bytes_s * _BURST_S
        self._at = time.monotonic()

    async def spend(self, count: int) -> None:
        """Take them; who has none left is not read from until there are some again."""
        now = time.monotonic()
        earned = (now - self._at) * self._rate
        self._left = min(self._left + earned, self._rate * _BURST_S) - count
        self._at = now
        if self._left < 0:
            await asyncio.sleep(-self._left / self._rate)
