"""A relay's host tells each machine its address of UDP, as routers show it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from typing import TYPE_CHECKING, Any

from backends.mesh.connection_limits import Crowd, close_at
from backends.mesh.quic_library import bound_endpoint, close_endpoint, iroh_library
from backends.tasks import TaskSet, end_tasks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from backends.mesh.relay_access import RelayAccess

log = logging.getLogger(__name__)

ALPN = b"dllm/reflector/1"
ASK_S = 15.0
"""Also keeps a router from forgetting the address."""
ANSWER_S = 5.0
AGAIN_S = 10.0
ADDRESS_BYTES_MAX = 64
CLIENTS_MAX = 256
CLIENTS_OF_ONE_MAX = 8


async def keep_reflected(library: Any, endpoint: Any, relay: RelayAccess) -> None:
    """Ask how we look from a relay, again and again, and tell the endpoint."""
    told = ""

    async def tell(seen: str) -> None:
        nonlocal told
        before, told = told, seen
        if before and before != seen:
            await endpoint.remove_external_addr(before)
        if seen and before != seen:
            await endpoint.add_external_addr(seen)

    try:
        while True:
            try:
                await _keep_asking(library, endpoint, relay, tell)
            except Exception as error:
                # All goes through the relay then.
                log.info("no reflector at %s: %r", relay.url, error)
            await asyncio.sleep(AGAIN_S)
    finally:
        # It may be the endpoint's end.
        with contextlib.suppress(Exception):
            await tell("")


async def _keep_asking(
    library: Any,
    endpoint: Any,
    relay: RelayAccess,
    tell: Callable[[str], Awaitable[None]],
) -> None:
    async with asyncio.timeout(ANSWER_S):
        connection = await _connected(library, endpoint, relay)
    try:
        while True:
            async with asyncio.timeout(ANSWER_S):
                seen = await _asked(connection)
            await tell(seen)
            await asyncio.sleep(ASK_S)
    finally:
        connection.close(0, b"")


async def _connected(library: Any, endpoint: Any, relay: RelayAccess) -> Any:
    host, port = relay.place
    found = await asyncio.get_running_loop().getaddrinfo(
        host, port, family=socket.AF_INET, type=socket.SOCK_DGRAM
    )
    places = [":".join(map(str, address)) for *_, address in found]
    node = library.SecretKey.from_bytes(relay.reflector_seed).public()
    return await endpoint.connect(library.EndpointAddr(node, None, places), ALPN)


async def _asked(connection: Any) -> str:
    stream = await connection.open_bi()
    await stream.send().write_all(b"?")
    await stream.send().finish()
    told: bytes = await stream.recv().read_to_end(ADDRESS_BYTES_MAX)
    return told.decode("ascii")


def reflector_address(relay: str) -> str:
    """Its address of IPv4 beside a relay; empty where that is at IPv6 alone."""
    if relay == "::":
        return "0.0.0.0"
    return "" if ":" in relay else relay


class Reflector:
    """Beside a relay; who does not know the relay's key cannot find it."""

    def __init__(self, endpoint: Any) -> None:
        self._endpoint = endpoint
        self._tasks = TaskSet()
        self._clients = Crowd(CLIENTS_MAX, CLIENTS_OF_ONE_MAX)

    @classmethod
    async def bound(cls, relay: RelayAccess, address: str, port: int) -> Reflector:
        """Raises: MachineError: there is no iroh here, or the port is taken."""
        library = await iroh_library()
        own = f"{address}:{port}"
        made = await bound_endpoint(
            library,
            # This machine may have no IPv6.
            [(own, "[::1]:0"), (own,)],
            secret_key=relay.reflector_seed,
            alpns=[ALPN],
            relay_mode=library.RelayMode.disabled(),
        )
        return cls(made)

    async def run(self) -> None:
        async for incoming, address in self._clients.come(self._endpoint):
            self._tasks.start(self._answer(incoming, address))

    async def _answer(self, incoming: Any, address: str) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                connection = await (await incoming.accept()).connect()
            self._tasks.start(close_at(connection, connection.accept_uni()))
            try:
                while True:
                    async with asyncio.timeout(4 * ASK_S):
                        stream = await connection.accept_bi()
                    async with asyncio.timeout(ANSWER_S):
                        await self._tell(connection, stream)
            finally:
                connection.close(0, b"")
        except Exception as error:
            log.info("a machine asks for its address no more: %r", error)
        finally:
            self._clients.leave(address)

    async def _tell(self, connection: Any, stream: Any) -> None:
        other = connection.accept_bi()
        second = asyncio.create_task(close_at(connection, other))
        try:
            await stream.recv().read_to_end(1)
            for path in connection.paths():
                if path.is_selected:
                    await stream.send().write_all(path.remote_addr.encode())
            await stream.send().finish()
        finally:
            await end_tasks(second)

    async def close(self) -> None:
        await self._tasks.end()
        await close_endpoint(self._endpoint)
