"""Listen on the controller's socket, read requests, and answer them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import socket
import stat
import struct
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self, TypeVar

import msgspec
import psutil
from aiohttp import web

from backends.controller.chat.store import Chats
from backends.controller.cluster import Cluster
from backends.controller.clusters import Clusters
from backends.controller.event_recorders import WorkRecorder
from backends.controller.settings_reload import SettingsReloader
from backends.controller.usage_monitor import UsageMonitor
from backends.errors import DllmError, UsageError
from backends.machines.gossip import Gossip
from backends.machines.local_inventory import LocalInventory
from backends.machines.peers import Peers
from backends.models.catalogue import Catalogue
from backends.paths import make_private
from backends.state import (
    ALIVE_EVERY_S,
    DEFAULT_CLUSTER,
    Actor,
    ControllerInfo,
    Failure,
)
from backends.state.base import AGENT_HEADER, PROGRAM_HEADER, json_bytes

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

log = logging.getLogger(__name__)

AGENT_VARIABLE = "SSH_AUTH_SOCK"
SHUTDOWN_S = 1.0
LOOK_EVERY_S = 1.0
BACKLOG = 4096
"""A thousand commands at once are no reason to refuse one; the kernel's limit holds."""

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Parts:
    inventory: LocalInventory
    clusters: Clusters
    catalogue: Catalogue
    peers: Peers
    chats: Chats
    reloader: SettingsReloader
    gossip: Gossip
    usage: UsageMonitor
    info: ControllerInfo
    ended: asyncio.Event
    """Set when the controller is to exit."""

    def cluster_of(self, request: web.Request) -> Cluster:
        return self.clusters.get(request.query.get("cluster", DEFAULT_CLUSTER))

    def recorder(self, request: web.Request, machine: str) -> WorkRecorder:
        return WorkRecorder(self.clusters.event_log, asker(request), machine)


def json_response(value: object, status: int = 200) -> web.Response:
    return web.Response(
        body=json_bytes(value), status=status, content_type="application/json"
    )


_STREAM = web.RequestKey("stream", web.StreamResponse)
"""Under this a request knows the stream that answers it, once it has begun."""
_AT_WORK = b"HTTP/1.1 102 Processing\r\n\r\n"
# The loop itself would forget a task that nobody waits for any more.
_at_work: set[asyncio.Future[web.StreamResponse]] = set()


async def body(request: web.Request, kind: type[T]) -> T:
    """Decode the body of a request; an empty body is an empty object."""
    return msgspec.json.decode(await request.read() or b"{}", type=kind)


def number(request: web.Request, name: str, default: int) -> int:
    text = request.query.get(name, str(default))
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{name} must be a whole number, not {text[:40]!r}") from None


async def start_stream(request: web.Request) -> web.StreamResponse:
    """Begin an answer of one JSON value a line; it ends when its reader leaves."""
    response = web.StreamResponse()
    response.content_type = "application/x-ndjson"
    await response.prepare(request)
    request[_STREAM] = response
    return response


async def write_values(
    response: web.StreamResponse, values: AsyncGenerator[object, None]
) -> None:
    """Write a value a line, as they come; at the end the generator is closed."""
    async with aclosing(values):
        async for value in values:
            await response.write(json_bytes(value) + b"\n")


class Streaming(Protocol):
    streams: int
    """Of clients that read now; they keep the controller."""


async def stream_work(
    owner: Streaming, request: web.Request, work: AsyncGenerator[object, None]
) -> web.StreamResponse:
    """Answer with what long work yields, as a stream of its owner."""
    response = await start_stream(request)
    owner.streams += 1
    try:
        await write_values(response, work)
    finally:
        owner.streams -= 1
    return response


async def frames(
    states: AsyncGenerator[S, None], framed: Callable[[S, S | None], T]
) -> AsyncGenerator[T, None]:
    """The frames of a stream of states: one whole, then what changes."""
    last: S | None = None
    async with aclosing(states):
        async for state in states:
            yield framed(state, last)
            last = state


@web.middleware
async def outlives_its_asker(
    request: web.Request, handler: Handler
) -> web.StreamResponse:
    """Let work go on when its asker leaves, and tell one who waits that it does.

    Half a launch or half a stop helps nobody; only a stream ends with its reader.
    """
    work = asyncio.ensure_future(handler(request))
    _at_work.add(work)
    work.add_done_callback(_ended)
    try:
        while not (await asyncio.wait([work], timeout=ALIVE_EVERY_S))[0]:
            stream: web.StreamResponse | None = request.get(_STREAM)
            if stream is not None:
                await stream.write(b"\n")
            elif request.transport is not None:
                request.transport.write(_AT_WORK)
    except (asyncio.CancelledError, ConnectionError):
        if _STREAM in request:
            work.cancel()
            await asyncio.wait([work])
        raise
    return work.result()


def _ended(work: asyncio.Future[web.StreamResponse]) -> None:
    # The client gets the error; if it has left, the error is no news.
    _at_work.discard(work)
    if not work.cancelled():
        work.exception()


@web.middleware
async def errors_as_values(
    request: web.Request, handler: Handler
) -> web.StreamResponse:
    """Expected errors become ``Failure`` answers; others too, and are logged."""
    try:
        return await handler(request)
    except (ConnectionResetError, asyncio.CancelledError):
        raise
    except Exception as error:
        failure, status = _told(request, error)
    stream: web.StreamResponse | None = request.get(_STREAM)
    if stream is None:
        return json_response(failure, status)
    last = {"broken": True, "done": True, "failure": failure}
    await stream.write(json_bytes(last) + b"\n")
    return stream


def _told(request: web.Request, error: Exception) -> tuple[Failure, int]:
    match error:
        case UsageError():
            return error.failure(), 400
        case DllmError():
            return error.failure(), 409
        case msgspec.DecodeError():
            return Failure(what=f"Bad request: {error}"), 400
        case web.HTTPException():
            said = error.text or error.reason
            return Failure(what=f"{request.path}: {said}"), error.status
    log.error("request %s failed", request.path, exc_info=error)
    what = f"The controller failed: {type(error).__name__}: {error}"
    return Failure(what=what, hint="Its log (controller.log) has the details."), 500


@web.middleware
async def with_the_agent_of_the_asker(
    request: web.Request, handler: Handler
) -> web.StreamResponse:
    """Log in with the agent of the terminal that sent the last POST.

    A GET changes nothing, so an old console takes no agent away.
    """
    path = request.headers.get(AGENT_HEADER, "")
    if (
        request.method == "POST"
        and path != os.environ.get(AGENT_VARIABLE)
        and _is_own_socket(path)
    ):
        log.info("the ssh-agent is now the one at %s", path)
        os.environ[AGENT_VARIABLE] = path
    return await handler(request)


def _is_own_socket(path: str) -> bool:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return False
    return stat.S_ISSOCK(found.st_mode) and found.st_uid == os.getuid()


PROGRAM_MAX = 40
# <sys/un.h> of macOS, for which Python has no names.
SOL_LOCAL = 0
LOCAL_PEERPID = 2


def asker(request: web.Request) -> Actor:
    """Return the sender of a request; a field that cannot be found out stays empty."""
    said = request.headers.get(PROGRAM_HEADER, "")[:PROGRAM_MAX]
    program = said if said.isprintable() and said else "another program"
    return actor(program, _pid(request.get_extra_info("socket")))


def actor(program: str, pid: int) -> Actor:
    """The user, host and terminal of a process; pid 0 is one that is not known."""
    tty = ""
    try:
        process = psutil.Process(pid or None)
        tty = (process.terminal() or "") if pid else ""
        user = process.username()
    except psutil.Error:
        # It asked and was gone; the socket lets nobody else in.
        user, tty = psutil.Process().username(), ""
    return Actor(
        program=program,
        user=user,
        host=platform.node().partition(".")[0] or "localhost",
        pid=pid,
        tty=tty.removeprefix("/dev/"),
    )


def _pid(connection: socket.socket | None) -> int:
    """The process that connected; 0 if the system does not say."""
    try:
        if connection is None or connection.family != socket.AF_UNIX:
            return 0
        if hasattr(socket, "SO_PEERCRED"):
            size = struct.calcsize("3i")
            told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
            return int(struct.unpack("3i", told)[0])
        if sys.platform == "darwin":
            told = connection.getsockopt(SOL_LOCAL, LOCAL_PEERPID, 4)
            return int(struct.unpack("i", told)[0])
    except OSError:
        return 0
    return 0


class Listening:
    """Listens on a Unix socket only this user can open; removes it at the end."""

    def __init__(self, application: web.Application, socket: Path) -> None:
        # A reader who leaves must end its generation, also before the first token.
        self._runner = web.AppRunner(
            application, handler_cancellation=True, shutdown_timeout=SHUTDOWN_S
        )
        self._socket = socket
        self._site: web.UnixSite | None = None
        self._inode = 0

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await self._listen()
        return self

    async def __aexit__(self, *exc: object) -> None:
        ours = self._is_there()
        await self._runner.cleanup()
        if ours:
            self._socket.unlink(missing_ok=True)

    async def keep(self) -> None:
        """Make the socket anew, and its directory, whenever it has vanished.

        A session manager removes the runtime directory at the last logout, cleaners
        of temporary directories remove what is old: what runs goes on.
        """
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if self._is_there():
                continue
            log.warning("%s has vanished: listening anew", self._socket)
            with contextlib.suppress(DllmError, OSError):
                await self._listen()

    async def _listen(self) -> None:
        if self._site is not None:
            await self._site.stop()
            self._site = None
        make_private(self._socket.parent)
        self._socket.unlink(missing_ok=True)
        site = web.UnixSite(self._runner, str(self._socket), backlog=BACKLOG)
        await site.start()
        self._site = site
        self._socket.chmod(0o600)
        self._inode = self._socket.stat().st_ino

    def _is_there(self) -> bool:
        try:
            return self._socket.stat().st_ino == self._inode
        except OSError:
            return False
