"""The line between a controller and a gateway: targets, counts, and the open port.

Both say lines of JSON on a socket of the gateway's. With the first one each hands the
other the sockets that the gateway listens at. So a controller keeps the port open
while a killed gateway is started again. It gives the sockets to the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from backends.errors import DllmError
from backends.gateway.control_messages import Mode, Target
from backends.state.base import NOT_JSON
from backends.state.snapshots import RequestCounts
from backends.tasks import TaskSet, end_tasks, until_readable

if TYPE_CHECKING:
    from backends.gateway.proxy import Proxy
    from backends.gateway.server import Listener

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
TELL_EVERY_S = 0.25
"""Counts that change more often are told together."""
CALL_AGAIN_S = 30.0
"""Between two starts of a controller."""
SILENT_S = 3.0
"""A gateway tells its counts more often, and hears a new connection sooner."""
AGAIN_S = 0.1
"""Between two looks of a controller for a gateway."""
FIRST_BYTES_MAX = 1 << 16
"""A controller says no more before it hears of the gateway."""
LINE_BYTES_MAX = 1 << 20
"""A longer line is passed over."""
HELLO = b"\n"
"""The first line of a gateway; that of a controller is its target."""
SOCKETS_MAX = 8
_CLOSED_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


def _hand(
    connection: socket.socket, line: bytes, sockets: Iterable[socket.socket]
) -> None:
    descriptors = [one.fileno() for one in sockets]
    if descriptors:
        socket.send_fds(connection, [line], descriptors)
    else:
        connection.send(line)


async def _handed(
    connection: socket.socket, bytes_max: int
) -> tuple[bytes, list[socket.socket]]:
    """Wait for the first line, and for the sockets that come with it."""
    await until_readable(connection)
    said, descriptors, _, _ = socket.recv_fds(
        connection, bytes_max, SOCKETS_MAX, _CLOSED_ON_EXEC
    )
    sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    for one in sockets:
        one.set_inheritable(False)
    if not said.endswith(b"\n"):
        _close(sockets)
        raise ConnectionResetError("no line came")
    return said, sockets


def _close(sockets: Iterable[socket.socket]) -> None:
    for one in sockets:
        one.close()


class Control:
    """The gateway's end; only this user can connect."""

    def __init__(self, proxy: Proxy, path: Path, listener: Listener) -> None:
        self._proxy = proxy
        self._socket = path
        self._listener = listener
        self._writers: set[asyncio.StreamWriter] = set()
        self._talks = TaskSet()

    async def call(self, start: Callable[[], Awaitable[object]]) -> None:
        """Start a controller while there is none and a request waits, until cancelled.

        Nothing waits after a deliberate stop, nor for a controller while the API is
        drained. One that was started and went is not started again at once.
        """
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, os.WNOHANG)  # noqa: ASYNC222
            target = self._proxy.target
            is_served = target.mode is Mode.END or target.drains
            if self._writers or is_served or not self._proxy.counters.counts.waiting:
                continue
            log.warning("a request waits, and there is no controller: starting one")
            try:
                await start()
            except (DllmError, OSError) as error:
                log.warning("%s", error)
            await asyncio.sleep(CALL_AGAIN_S)

    async def keep(self) -> None:
        """Listen, and anew where the socket has vanished, until cancelled.

        A session manager removes the runtime directory at the last logout.
        """
        accepting: asyncio.Task[None] | None = None
        inode = 0
        try:
            while True:
                is_heard = accepting is not None and not accepting.done()
                if not is_heard or _inode(self._socket) != inode:
                    if accepting is not None:
                        accepting.cancel()
                    with contextlib.suppress(OSError):
                        accepting = asyncio.create_task(self._accept(self._listen()))
                        inode = _inode(self._socket)
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            await end_tasks(accepting)
            await self._talks.end()
            if inode and _inode(self._socket) == inode:
                self._socket.unlink(missing_ok=True)

    def _listen(self) -> socket.socket:
        self._socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._socket.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX)
        listening.setblocking(False)
        try:
            # The umask of ``main`` lets nobody else in from the first moment.
            listening.bind(str(self._socket))
            self._socket.chmod(0o600)
            listening.listen()
        except OSError:
            # Vanished again already: it is not ours to keep open.
            listening.close()
            raise
        return listening

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listening:
            while True:
                connection, _ = await loop.sock_accept(listening)
                self._talks.start(self._talk(connection))

    async def _talk(self, connection: socket.socket) -> None:
        """Hear one controller until it leaves; one that says nonsense is left."""
        try:
            with contextlib.ExitStack() as closing:
                closing.enter_context(connection).setblocking(False)
                said, sockets = await _handed(connection, FIRST_BYTES_MAX)
                # Before anybody is served.
                self._proxy.queue.turn_to(msgspec.json.decode(said, type=Target))
                self._listener.take(sockets)
                await self._listener.is_open.wait()
                _hand(connection, HELLO, self._listener.sockets)
                closing.pop_all()
            await self._hear(connection)
        except OSError as error:
            log.info("a controller left: %s", error)
        except NOT_JSON as error:
            log.warning("a controller said what cannot be understood: %s", error)

    async def _hear(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(
            sock=connection, limit=LINE_BYTES_MAX
        )
        self._writers.add(writer)
        telling = asyncio.ensure_future(self._tell(writer))
        try:
            while line := await reader.readline():
                self._proxy.queue.turn_to(msgspec.json.decode(line, type=Target))
        finally:
            await end_tasks(telling)
            writer.close()
            self._writers.discard(writer)
            target = self._proxy.target
            if target.drains and not target.why and not self._writers:
                self._proxy.queue.turn_to(replace(target, drains=False))

    async def _tell(self, writer: asyncio.StreamWriter) -> None:
        counters = self._proxy.counters
        with contextlib.suppress(ConnectionError):
            while True:
                changed = asyncio.ensure_future(counters.change())
                writer.write(msgspec.json.encode(self._proxy.counts) + b"\n")
                await writer.drain()
                try:
                    await asyncio.sleep(TELL_EVERY_S)
                    # What can be gone on with changes without a word, and a
                    # controller takes silence for a gateway that hangs.
                    await asyncio.wait({changed}, timeout=LOOK_EVERY_S)
                finally:
                    changed.cancel()


class GatewayLink:
    """The controller's end: keeps a gateway told, also the one that comes after it."""

    def __init__(self, path: Path, counted: Callable[[RequestCounts], None]) -> None:
        self._socket = path
        self._counted = counted
        self._target: Target | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None
        self._held: list[socket.socket] = []
        self.is_silent = False
        """True if a gateway is there and does not answer."""

    def tell(self, target: Target) -> None:
        """Tell it at once, or as soon as there is a gateway; it holds from here on."""
        self._target = target
        if self._task is None:
            self._task = asyncio.create_task(self._keep())
        self._send()

    async def close(self) -> None:
        """Tell nothing more; the gateway goes on with what it was told last."""
        task, self._task = self._task, None
        await end_tasks(task)
        self.release()

    def holds(self, port: int) -> bool:
        return any(one.getsockname()[1] == port for one in self._held)

    def release(self) -> None:
        """Hold the port open no longer than the gateway does."""
        _close(self._held)
        self._held.clear()

    def _send(self) -> None:
        if self._writer is not None and self._target is not None:
            self._writer.write(msgspec.json.encode(self._target) + b"\n")

    async def _keep(self) -> None:
        while True:
            try:
                await self._talk()
            except TimeoutError:
                log.warning("the gateway at %s is silent", self._socket)
            except OSError:
                self.is_silent = False
            await asyncio.sleep(AGAIN_S)

    async def _talk(self) -> None:
        connection, loop = socket.socket(socket.AF_UNIX), asyncio.get_running_loop()
        with contextlib.ExitStack() as closing:
            closing.enter_context(connection).setblocking(False)
            await loop.sock_connect(connection, str(self._socket))
            _hand(connection, msgspec.json.encode(self._target) + b"\n", self._held)
            try:
                async with asyncio.timeout(SILENT_S):
                    _, handed = await _handed(connection, len(HELLO))
            except TimeoutError:
                self.is_silent = True
                raise
            self.is_silent = False
            closing.pop_all()
        self.release()
        self._held = handed
        reader, self._writer = await asyncio.open_unix_connection(
            sock=connection, limit=LINE_BYTES_MAX
        )
        try:
            self._send()
            while not reader.at_eof():
                with contextlib.suppress(*NOT_JSON):
                    async with asyncio.timeout(SILENT_S):
                        line = await reader.readline()
                    self._counted(msgspec.json.decode(line, type=RequestCounts))
        finally:
            self._writer.close()
            self._writer = None


def _inode(file: Path) -> int:
    try:
        return file.stat().st_ino
    except OSError:
        return 0
