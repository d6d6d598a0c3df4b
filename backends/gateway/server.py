"""The gateway's own HTTP server: where it listens, and which connections it keeps."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from backends.gateway.listen_settings import ListenSettings, Renewal, server_context
from backends.tasks import end_tasks

log = logging.getLogger(__name__)
_http_log = logging.getLogger("backends.gateway.http")

IDLE_S = 75.0
"""A connection on which nobody asks anything is closed: there are only so many."""
FIRST_S = 10.0
"""The first request on a connection must have come by then, and a TLS handshake."""
IDLE_MAX = 256
"""Of an address, so many connections may wait for a request; the oldest goes first."""
SHUTDOWN_S = 2.0
"""Answers that are under way when it is told to end have so long."""
BACKLOG = 4096
"""Connections that may wait to be accepted; the kernel may allow fewer."""
AGAIN_S = 2.0
"""Between two retry to listen at an address that this machine does not have now."""
HANDED_S = 2.0
"""Longest wait for a controller that holds the port for the next gateway."""
RENEWAL_S = 60.0


class Server(web.Server):
    """Reads requests and has them answered.

    A client that leaves ends its request, also before the first token. A compressed
    body is for llama-server to unpack.
    """

    def __init__(
        self, answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
    ) -> None:
        super().__init__(
            self._answered,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=IDLE_S,
            logger=_http_log,
            auto_decompress=False,
        )
        self._answer = answer
        self._idle: defaultdict[str, dict[web.RequestHandler, None]]
        self._idle = defaultdict(dict)
        self._unasked: dict[web.RequestHandler, asyncio.TimerHandle] = {}

    def connection_made(
        self, handler: web.RequestHandler, transport: asyncio.Transport
    ) -> None:
        super().connection_made(handler, transport)
        later = asyncio.get_running_loop().call_later
        self._unasked[handler] = later(FIRST_S, handler.force_close)
        self._rests(handler)

    def connection_lost(
        self, handler: web.RequestHandler, exc: BaseException | None = None
    ) -> None:
        super().connection_lost(handler, exc)
        self._works(handler)

    async def _answered(self, request: web.BaseRequest) -> web.StreamResponse:
        handler = request.protocol
        self._works(handler)
        try:
            return await self._answer(request)
        finally:
            if handler.transport is not None:
                self._rests(handler)

    def _rests(self, handler: web.RequestHandler) -> None:
        idle = self._idle[_address(handler)]
        idle[handler] = None
        if len(idle) > IDLE_MAX:
            oldest = next(iter(idle))
            # Its connection_lost comes only in the next step of the loop.
            self._works(oldest)
            oldest.force_close()

    def _works(self, handler: web.RequestHandler) -> None:
        address = _address(handler)
        self._idle[address].pop(handler, None)
        if not self._idle[address]:
            del self._idle[address]
        if timer := self._unasked.pop(handler, None):
            timer.cancel()


def _address(handler: web.RequestHandler) -> str:
    peer = handler.peername
    return peer[0] if isinstance(peer, tuple) else ""


def _in_brief(record: logging.LogRecord) -> bool:
    """Log of a request that is none only that there was one: a key may be in it.

    Faults of ours keep their traces.
    """
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError):
        record.exc_info = None
        record.levelno, record.levelname = logging.INFO, "INFO"
        record.msg += f": no HTTP ({error.code})"
    return True


_http_log.addFilter(_in_brief)


class Listener:
    """Listens at the addresses of a gateway, as they come and go.

    A controller holds the same sockets. So the port stays open while a gateway that was
    killed is started again: whoever connects meanwhile waits for the next one.
    """

    def __init__(self, server: web.Server, access: ListenSettings, port: int) -> None:
        self._server = server
        self._access = access
        self._port = port
        self._context: ssl.SSLContext | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._listening: list[asyncio.Server] = []
        self._spare: list[socket.socket] = []
        self._is_handed = asyncio.Event()
        self.sockets: list[socket.socket] = []
        self.is_open = asyncio.Event()

    def take(self, sockets: Iterable[socket.socket]) -> None:
        """Have what the gateway before this one listened at; for ``open`` alone."""
        if self.is_open.is_set():
            _close(sockets)
        else:
            self._spare.extend(sockets)
        self._is_handed.set()

    async def open(self) -> None:
        """Listen at the loopback, and at the other address as soon as it is there.

        Raises:
            DllmError: the certificate cannot be used.
            OSError: the port cannot be had.
        """
        files = (self._access.certificate, self._access.private_key)
        if self._access.certificate:
            self._context = server_context(*files)
            renewal = _renew(Renewal(self._context, *files))
            self._tasks.append(asyncio.create_task(renewal))
        first, *others = self._access.hosts
        await self._listen(first)
        for host in others:
            try:
                await self._listen(host)
            except OSError as error:
                log.warning("cannot listen on %s yet: %s", host, error.strerror)
                self._tasks.append(asyncio.create_task(self._reach(host)))
        _close(self._spare)
        self._spare.clear()
        self.is_open.set()

    async def close(self, patience_s: float = SHUTDOWN_S) -> None:
        """Listen no more, and end all connections; an answer may take so long."""
        await end_tasks(*self._tasks)
        for listening in self._listening:
            listening.close()
        # What has been accepted by now gets to its handler.
        await asyncio.sleep(0)
        self._server.pre_shutdown()
        await self._server.shutdown(patience_s)

    async def _reach(self, host: str) -> None:
        while True:
            await asyncio.sleep(AGAIN_S)
            with contextlib.suppress(OSError):
                return await self._listen(host)

    async def _listen(self, host: str) -> None:
        found = await self._socket(host)
        server = await asyncio.get_running_loop().create_server(
            self._server,
            sock=found,
            backlog=BACKLOG,
            ssl=self._context,
            ssl_handshake_timeout=FIRST_S if self._context else None,
        )
        self.sockets.append(found)
        self._listening.append(server)
        log.info("listening on %s, port %d", host, found.getsockname()[1])

    async def _socket(self, host: str) -> socket.socket:
        """A socket of that address: a new one, or the one that a controller holds."""
        try:
            return _bound(host, self._port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HANDED_S):
                    await self._is_handed.wait()
            for one in self._spare:
                if one.getsockname()[:2] == (host, self._port):
                    self._spare.remove(one)
                    return one
            raise


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    )[0]
    found = socket.socket(family, kind, protocol)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family is socket.AF_INET6:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        found.bind(address)
        found.listen(BACKLOG)
    except OSError:
        found.close()
        raise
    return found


def _close(sockets: Iterable[socket.socket]) -> None:
    for one in sockets:
        one.close()


async def _renew(renewal: Renewal) -> None:
    while True:
        await asyncio.sleep(RENEWAL_S)
        renewal.look()
