"""An endpoint of QUIC: connections to and from other machines, as sockets."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
from typing import TYPE_CHECKING, Any

from backends.errors import MachineError
from backends.machine_names import bracketed
from backends.mesh.connection_limits import Crowd, close_at, relayed_as
from backends.mesh.dialling import IndirectSocket
from backends.mesh.quic_library import bound_endpoint, close_endpoint, iroh_library
from backends.mesh.quic_place import ADDRESSES_MAX, QuicPlace
from backends.mesh.reflector import keep_reflected
from backends.state import PeerPath
from backends.tasks import TaskSet, end_tasks, gather_or_cancel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from backends.mesh.relay_access import RelayAccess

log = logging.getLogger(__name__)

ALPN = b"dllm/ssh/1"
EVERY_ADDRESS = "::"
CHUNK_BYTES = 64 << 10
SHAKING_MAX = 32
"""Connections that have not got as far as SSH; more are refused."""
SHAKING_OF_ONE_MAX = 8
SHAKE_S = 10.0
FLUSH_S = 2.0


class QuicEndpoint:
    """A port of UDP, for all connections of this process.

    Nobody is contacted but the machines that are dialled, and the relays named here.
    """

    def __init__(self, library: Any, endpoint: Any) -> None:
        self._library = library
        self._endpoint = endpoint
        self._relay = ""
        self._relays: dict[str, RelayAccess] = {}
        self._reflected: dict[str, asyncio.Task[None]] = {}
        self._tasks = TaskSet()
        self._shaking = Crowd(SHAKING_MAX, SHAKING_OF_ONE_MAX)
        self._came: asyncio.Queue[tuple[socket.socket, str]] = asyncio.Queue()

    @classmethod
    async def bound(
        cls,
        seed: bytes,
        address: str = EVERY_ADDRESS,
        port: int = 0,
        relay: RelayAccess | None = None,
    ) -> QuicEndpoint:
        """Bind a port; another one where that is taken. ``::`` is every address."""
        library = await iroh_library()
        mode = library.RelayMode.custom(library.RelayMap.empty())
        options = {"secret_key": seed, "alpns": [ALPN], "relay_mode": mode}
        binds = [bind for wanted in (port, 0) for bind in _binds(address, wanted)]
        made = cls(library, await bound_endpoint(library, binds, **options))
        if relay is not None:
            try:
                await made.wait_at(relay)
            except BaseException:
                await made.close()
                raise
        return made

    @property
    def place(self) -> QuicPlace:
        """Its addresses, as far as they are known yet."""
        addr = self._endpoint.addr()
        return QuicPlace(
            node=addr.id().to_bytes(),
            addresses=_useful(addr.direct_addresses())[:ADDRESSES_MAX],
            relay=self._relay,
        )

    async def wait_at(self, relay: RelayAccess) -> None:
        """Be found at a relay, which ``place`` tells from now on."""
        await self.meet_at(relay)
        self._relay = relay.url

    async def meet_at(self, relay: RelayAccess) -> None:
        """Connect to a relay, and learn from its reflector how we look from there."""
        if self._relays.get(relay.url) == relay:
            return
        config = self._library.RelayConfig(url=relay.url, auth_token=relay.key or None)
        try:
            await self._endpoint.insert_relay(config)
        except self._library.IrohError as error:
            log.info("%s is not used: %r", relay.url, error)
            raise MachineError(f"The relay {relay.url} cannot be used") from error
        self._relays[relay.url] = relay
        # Of another key, if there is one.
        await end_tasks(self._reflected.pop(relay.url, None))
        asking = keep_reflected(self._library, self._endpoint, relay)
        self._reflected[relay.url] = self._tasks.start(asking)

    async def leave_all_but(self, urls: Iterable[str]) -> None:
        for url in set(self._relays).difference(urls, [self._relay]):
            del self._relays[url]
            await end_tasks(self._reflected.pop(url, None))
            with contextlib.suppress(self._library.IrohError):
                await self._endpoint.remove_relay(url)

    async def online(self) -> None:
        """Wait until a relay takes us."""
        await self._endpoint.online()

    # --- those we dial ----------------------------------------------------------------

    async def dial(
        self, place: QuicPlace, relay: RelayAccess | None = None
    ) -> QuicSocket:
        """Connect to a machine directly or through its relay, whatever goes first."""
        if relay is not None:
            await self.meet_at(relay)
        url = relay.url if relay else None
        try:
            node = self._library.EndpointId.from_bytes(place.node)
            addr = self._library.EndpointAddr(node, url, list(place.addresses))
            connection = await self._endpoint.connect(addr, ALPN)
            stream = await connection.open_bi()
        except self._library.IrohError as error:
            log.info("QUIC reaches nobody: %r", error)
            by = "directly or by its relay" if relay else "directly"
            raise MachineError(f"QUIC does not reach it {by}") from error
        self._only(connection, connection.accept_uni(), connection.accept_bi())
        return self._socket(connection, stream)

    # --- those who come ---------------------------------------------------------------

    async def come(self) -> AsyncIterator[tuple[socket.socket, str]]:
        """A socket to each who connects, with its address or, relayed, its node id."""
        self._tasks.start(self._accept())
        while True:
            yield await self._came.get()

    async def _accept(self) -> None:
        async for incoming, address in self._shaking.come(self._endpoint):
            self._tasks.start(self._shake(incoming, address))

    async def _shake(self, incoming: Any, address: str) -> None:
        connection = None
        try:
            async with asyncio.timeout(SHAKE_S):
                connection = await (await incoming.accept()).connect()
                self._only(connection, connection.accept_uni())
                stream = await connection.accept_bi()
            self._only(connection, connection.accept_bi())
            made = self._socket(connection, stream)
            path = made.path.now
            relayed = path is not None and path.relayed
            told = relayed_as(connection.remote_id()) if relayed else address
            await self._came.put((made, told))
        except Exception as error:
            log.info("somebody who came by QUIC was not taken: %r", error)
            if connection is not None:
                connection.close(1, b"")
        finally:
            self._shaking.leave(address)

    def _only(self, connection: Any, *others: Any) -> None:
        # One stream is all that SSH needs.
        for stream in others:
            self._tasks.start(close_at(connection, stream))

    # --- what flows -------------------------------------------------------------------

    def _socket(self, connection: Any, stream: Any) -> QuicSocket:
        # The other end is pumped for as long as the stream flows.
        plain, ours = socket.socketpair()
        near = QuicSocket(fileno=plain.detach())
        near.path = QuicPath(connection)
        for end in (near, ours):
            end.setblocking(False)
        self._tasks.start(self._pump(ours, connection, stream))
        return near

    async def _pump(self, ours: socket.socket, connection: Any, stream: Any) -> None:
        loop, send, receive = asyncio.get_running_loop(), stream.send(), stream.recv()

        async def out() -> None:
            flowed = False
            while data := await loop.sock_recv(ours, CHUNK_BYTES):
                await send.write_all(data)
                flowed = True
            # Who was refused has been sent nothing.
            if flowed:
                await send.finish()
                with contextlib.suppress(TimeoutError):
                    # Until all of it is there.
                    async with asyncio.timeout(FLUSH_S):
                        await send.stopped()
            # SSH never ends one direction alone.
            connection.close(0, b"")

        async def back() -> None:
            while data := await receive.read(CHUNK_BYTES):
                await loop.sock_sendall(ours, data)
            ours.shutdown(socket.SHUT_WR)

        try:
            await gather_or_cancel([out(), back()])
        except Exception as error:
            log.info("a connection by QUIC ended: %r", error)
        finally:
            ours.close()
            connection.close(0, b"")

    async def close(self) -> None:
        await self._tasks.end()
        await close_endpoint(self._endpoint)


class QuicSocket(IndirectSocket):
    """The near end of a stream."""

    path: QuicPath


class QuicPath:
    """Implements ``SocketPath`` for a connection by QUIC."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @property
    def now(self) -> PeerPath | None:
        for path in self._connection.paths():
            if path.is_selected:
                sent, lost = path.stats.udp_tx_datagrams, path.stats.lost_packets
                return PeerPath(
                    relayed=path.is_relay,
                    address=path.remote_addr,
                    rtt_ms=float(path.rtt_ms),
                    loss=round(lost / sent, 3) if sent else 0.0,
                )
        return None


def _binds(address: str, port: int) -> Iterator[tuple[str, ...]]:
    """Addresses to try in turn; iroh would listen everywhere by the other family."""
    own = bracketed("0.0.0.0" if address == EVERY_ADDRESS else address)
    other = "127.0.0.1:0" if own[0] == "[" else "[::1]:0"
    if address == EVERY_ADDRESS:
        other = f"[::]:{port}"
    yield f"{own}:{port}", other
    # This machine may have no IPv6.
    yield (f"{own}:{port}",)


def _useful(addresses: list[str]) -> tuple[str, ...]:
    """Without those of this machine alone, unless there are no others; IPv4 first."""
    found = []
    for address in addresses:
        host = ipaddress.ip_address(address.rpartition(":")[0].strip("[]"))
        if not host.is_link_local:
            found.append((host.is_loopback, host.is_private, host.version, address))
    outer = [one for one in found if not one[0]] or found
    return tuple(address for *_, address in sorted(outer))
