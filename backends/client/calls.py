"""One question, one answer: how a client asks a controller, and what can go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from backends.client import http
from backends.client.http import ASKING, BUSY_SILENCES, require_allowed
from backends.client.start import (
    RunningController,
    dismiss,
    ensure_running,
    find_running,
    is_busy,
    wake_or_end,
)
from backends.controller.lock import lock_holder
from backends.errors import ControllerError, DllmError, UsageError
from backends.paths import Paths
from backends.state import (
    API_VERSION,
    NOT_JSON,
    SILENCE_MAX_S,
    ControllerInfo,
    Failure,
    Value,
)

if TYPE_CHECKING:
    from backends.client.flight_recorder import FlightRecorder

F = TypeVar("F", bound=Value)
S = TypeVar("S")
T = TypeVar("T")


class RequestFailed(DllmError):
    """The controller's answer was a failure; it is carried whole."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.what, failure.hint)
        self.value = failure

    def failure(self, at: float = 0.0) -> Failure:
        return self.value


class RequestRefused(RequestFailed, UsageError):
    """The controller refused a request that cannot be meant (status 400)."""


class NothingRuns(ControllerError):
    """There is no controller, and a read-only client starts none."""

    def __init__(self) -> None:
        super().__init__(
            "Nothing is running here, and read-only starts nothing",
            "To start a controller leave out --readonly, or readonly in config.toml.",
        )


class Broken(msgspec.Struct, frozen=True):
    """The last line of a stream that a failure ended."""

    failure: Failure | None = None
    broken: bool = False


class ControllerConnection:
    """The way to the user's controller, which is started when first needed."""

    def __init__(self, paths: Paths, *, silence_s: float = SILENCE_MAX_S) -> None:
        self.paths = paths
        self._silence_s = silence_s
        self._socket: Path | None = None
        """Of the controller that speaks our API; None until that is known."""
        self.started = False
        """True if a controller was started for us."""
        self.recorder: FlightRecorder | None = None
        self.followed_now: dict[str, tuple[Callable[[Any, None], Value], Any]] = {}
        """The newest state of each stream that is followed, and how it is framed."""

    async def running(self) -> bool:
        return await find_running(self.paths) is not None

    async def start(self) -> Path:
        """See that a controller runs that speaks our API; its socket.

        Where we only watch, none is started and none of another release replaced.

        Raises:
            ControllerError: it does not come up, or is of a later release.
            NothingRuns: we only watch, and there is none.
        """
        readonly = ASKING.get().readonly
        found = await (_watched if readonly else ensure_running)(self.paths)
        # Whoever interrupts us from here on has it to end.
        self.started |= found.started
        if found.socket != self._socket:
            try:
                found = await self._agreed(found, replaces=not readonly)
            except OSError as error:
                raise self._lost(error) from error
            self._socket = found.socket
        self.started |= found.started
        return found.socket

    async def call(
        self, method: str, target: str, kind: type[T], body: object = None
    ) -> T:
        """One request, one value.

        Raises:
            ReadOnly: it would change something, and we only watch.
            RequestFailed: the answer is a failure.
            ControllerError: it could not be asked, or its answer not be read.
        """
        async with self._answer(method, target, body) as response:
            value = _decoded(response.status, await response.read(), kind)
        if self.recorder is not None:
            self.recorder.answer(method, target, body, value)
        return value

    async def get(self, target: str, kind: type[T]) -> T:
        return await self.call("GET", target, kind)

    async def post(self, target: str, kind: type[T], body: object = None) -> T:
        return await self.call("POST", target, kind, body)

    def post_stream(
        self, target: str, kind: type[T], body: object = None
    ) -> AsyncGenerator[T, None]:
        return self.stream("POST", target, kind, body)

    async def stream(
        self, method: str, target: str, kind: type[T], body: object = None
    ) -> AsyncGenerator[T, None]:
        """One request, many values, one a line."""
        async with self._answer(method, target, body) as response:
            if response.status != 200:
                _decoded(response.status, await response.read(), Failure)
            async for line in response.lines():
                _require_whole(line)
                yield _value(line, kind)

    async def followed(
        self,
        target: str,
        kind: type[F],
        applied: Callable[[F, S | None], S],
        framed: Callable[[S, None], F],
        asked: object = None,
    ) -> AsyncGenerator[S, None]:
        """States as they change: each frame is ``applied`` to the state before.

        A state is ``framed`` as a whole where it is recorded. What is ``asked`` for
        is work that ends when nobody follows it.
        """
        last: S | None = None
        method = "GET" if asked is None else "POST"
        try:
            async with aclosing(self.stream(method, target, kind, asked)) as frames:
                async for frame in frames:
                    try:
                        last = now = applied(frame, last)
                    except ValueError as error:
                        raise not_understood(error) from error
                    self.followed_now[target] = framed, now
                    if self.recorder is not None:
                        self.recorder.frame(target, frame, partial(framed, now, None))
                    yield now
            self._ended(target)
        except DllmError:
            self._ended(target)
            raise
        except (GeneratorExit, asyncio.CancelledError):
            if asked is not None:
                self._ended(target)
            raise
        finally:
            self.followed_now.pop(target, None)

    def _ended(self, target: str) -> None:
        if self.recorder is not None:
            self.recorder.ended(target)

    def record(self, recorder: FlightRecorder | None) -> None:
        """Have all that is received written down from here on; None ends that."""
        self.recorder = recorder
        if recorder is not None:
            for target, (framed, now) in self.followed_now.items():
                recorder.frame(target, framed(now, None), partial(framed, now, None))

    @asynccontextmanager
    async def _answer(
        self, method: str, target: str, body: object
    ) -> AsyncIterator[http.Response]:
        require_allowed(method, target)
        content = _encode(body)
        socket = await self.start()
        try:
            async with self._request(socket, method, target, content) as response:
                yield response
        except OSError as error:
            raise self._lost(error) from error

    def _request(
        self, socket: Path, method: str, target: str, content: bytes = b""
    ) -> AbstractAsyncContextManager[http.Response]:
        return http.request(
            *(socket, method, target, content),
            silence_s=self._silence_s,
            is_busy=lambda: is_busy(self.paths),
        )

    def _lost(self, error: OSError) -> ControllerError:
        self._socket = None
        if not isinstance(error, TimeoutError):
            why = f" ({error.strerror})" if error.strerror else ""
            return ControllerError(
                f"The connection to the controller broke{why}",
                "Try again: a new controller takes over what runs.",
            )
        holder = lock_holder(self.paths.lock)
        who = f" (pid {holder.pid})" if holder else ""
        silent_s = self._silence_s * (BUSY_SILENCES if is_busy(self.paths) else 1)
        return ControllerError(
            f"The controller{who} was silent for {silent_s:g} s",
            wake_or_end(holder.pid if holder else None),
        )

    async def _agreed(
        self, found: RunningController, *, replaces: bool
    ) -> RunningController:
        """Return a controller that speaks our API: the one found, or its successor.

        One of an earlier release is requested to leave. Its processes run on, and its
        successor adopts them. Without ``replaces`` it stays.
        """
        async with self._request(found.socket, "GET", "/v1/version") as response:
            content = await response.read()
        info = _release(content, found.socket)
        if info.api == API_VERSION:
            return found
        if not replaces:
            raise ControllerError(
                "The controller that runs is of an older dllm-tui, and where you only "
                "watch it is not replaced",
                "Watch it with its own dllm-tui, or leave out --readonly.",
            )
        await dismiss(self.paths, info.pid)
        return await ensure_running(self.paths)


async def _watched(paths: Paths) -> RunningController:
    socket = await find_running(paths)
    if socket is None:
        raise NothingRuns
    return RunningController(socket, started=False)


def _encode(body: object) -> bytes:
    try:
        return b"" if body is None else msgspec.json.encode(body)
    except UnicodeEncodeError as error:
        name = error.object.encode("utf-8", "replace").decode()
        raise UsageError(
            f"The name {name!r} is not valid UTF-8",
            "Rename the file, or give a link to it another name.",
        ) from error


def _require_whole(line: bytes) -> None:
    if not line.startswith(b'{"broken":true'):
        return
    broken = _value(line, Broken)
    if broken.failure is not None:
        raise RequestFailed(broken.failure)


def _value(content: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except NOT_JSON as error:
        raise not_understood(error) from error


def not_understood(error: Exception) -> ControllerError:
    return ControllerError(
        f"The controller's answer is not understood ({error})",
        "It is of another release: dllm-tui down --all ends it and what it runs.",
    )


def _decoded(status: int, content: bytes, kind: type[T]) -> T:
    if status == 200:
        return _value(content, kind)
    try:
        kind_of_error = RequestRefused if status == 400 else RequestFailed
        raise kind_of_error(msgspec.json.decode(content, type=Failure))
    except NOT_JSON as error:
        raise ControllerError(
            f"The controller answered with status {status}"
        ) from error


def _release(content: bytes, socket: Path) -> ControllerInfo:
    """Of which release a controller is; one of a later release is an error."""
    try:
        info = msgspec.json.decode(content, type=ControllerInfo)
    except NOT_JSON as error:
        raise ControllerError(
            f"What listens on {socket} does not say of which release it is",
            "End it with its own dllm-tui down --all.",
        ) from error
    if info.api > API_VERSION:
        raise ControllerError(
            f"The controller that runs is of a newer dllm-tui ({info.version}, "
            f"pid {info.pid})",
            "Use that one, or end it with its own dllm-tui down --all.",
        )
    return info
