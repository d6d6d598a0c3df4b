"""A session with ``dllm-relay host``: requests, answers and news over one stream."""

from __future__ import annotations

import asyncio
import contextlib
import json
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from backends.errors import DllmError, HostError, PeerUnreachable
from backends.state import NOT_JSON, Value

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator


T = TypeVar("T")

PROTOCOL = 1
REQUEST_BYTES_MAX = 1 << 20
ANSWER_BYTES_MAX = 24 << 20
BANNER_BYTES_MAX = 1 << 20
"""Most that a login shell may print before our first line."""


class Stream(Protocol):
    """Bytes to and from a program, here or over a connection."""

    async def read(self, most_bytes: int) -> bytes:
        """Wait for data; empty at the end."""
        ...

    async def write(self, data: bytes) -> None:
        """Send; waits while the other end does not read."""
        ...

    async def close(self) -> None:
        """End the program's input and wait a moment for its end."""
        ...

    def last_words(self) -> str:
        """The last line of its stderr."""
        ...


class Hello(Value, frozen=True, kw_only=True):
    """The first line of an agent."""

    hello: str
    protocol: int
    version: str = ""
    features: tuple[str, ...] = ()
    pid: int = 0
    run_dir: str = ""


class AgentProcess(Value, frozen=True, kw_only=True):
    """A process directory, as an agent tells of it."""

    name: str
    pid: int
    alive: bool = False
    stopping: bool = False
    stopped: bool = False
    started_at: float = 0.0
    argv: tuple[str, ...] = ()
    meta: str = ""
    code: int | None = None
    signal: int | None = None
    log: str = ""
    rss_bytes: int | None = None
    cpu_ms: int | None = None


class Complaint(Value, frozen=True, kw_only=True):
    """Why an agent did not do what it was asked."""

    kind: str = "failed"
    message: str = ""
    pids: tuple[int, ...] = ()


def encode_line(message: dict[str, Any]) -> bytes:
    """A request as a line; text that is no Unicode keeps its bytes as escapes."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode_line(line: bytes) -> dict[str, Any] | None:
    """A line as an object; None when it is none."""
    # Not msgspec's: it refuses the escapes that stand for bytes of a path.
    try:
        message = json.loads(line)
    except NOT_JSON:
        return None
    return message if isinstance(message, dict) else None


def converted(value: object, kind: type[T]) -> T | None:
    """A part of a message as what it should be; None when it is something else."""
    try:
        return msgspec.convert(value, type=kind, strict=True)
    except (msgspec.ValidationError, RecursionError, UnicodeError):
        return None


class Lines:
    """Cuts a stream into lines, and never holds more than one line may have."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, data: bytes) -> Iterator[bytes]:
        """The lines that are complete now, without their ends."""
        *whole, rest = data.split(b"\n")
        for line in whole:
            yield b"".join([*self._parts, line])
            self._parts, self._size = [], 0
        self._parts.append(rest)
        self._size += len(rest)
        if self._size > self._limit_bytes:
            raise ValueError("a line is too long")


HELLO_TIMEOUT_S = 15.0
_CHUNK_BYTES = 64 << 10
_HELLO = "dllm-relay host"
_TOO_LONG = "Argument list too long"


class Refused(Exception):
    """An agent did not do what it was asked, with its reason."""

    def __init__(self, complaint: Complaint) -> None:
        super().__init__(complaint.message)
        self.complaint = complaint


class Channel:
    """An agent at the other end of a stream, from its first line to its last.

    ``name`` is the machine's; ``told`` gets what is pushed, in order.
    """

    def __init__(
        self, name: str, stream: Stream, told: Callable[[dict[str, Any]], None]
    ) -> None:
        self._name = name
        self._stream = stream
        self._told = told
        self._lines = Lines(ANSWER_BYTES_MAX)
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._sending = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None
        self.hello = Hello(hello="", protocol=0)
        self.ended = asyncio.Event()

    async def open(self) -> None:
        """Read up to the agent's first line; pass over what a login shell prints."""
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                rest = await self._find_hello()
        except TimeoutError as error:
            await self.close()
            raise HostError(
                f"The helper dllm-relay on {self._name} said nothing within "
                f"{HELLO_TIMEOUT_S:g} s",
                "The machine may be overloaded; try again.",
            ) from error
        except BaseException:
            await self.close()
            raise
        self._reader = asyncio.create_task(self._read(rest))

    async def ask(
        self, verb: str, members: dict[str, Any], within_s: float
    ) -> dict[str, Any]:
        """Send a request and wait for the answer.

        Raises:
            Refused: it did not do it.
        """
        number = next(self._numbers)
        line = encode_line({**members, "id": number, "do": verb})
        if len(line) > REQUEST_BYTES_MAX:
            raise Refused(Complaint(kind="not_started", message=_TOO_LONG))
        if self.ended.is_set():
            raise self._broken()
        answer = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            async with asyncio.timeout(within_s):
                await self._send(line)
                return self._result(await answer)
        except TimeoutError as error:
            raise HostError(
                f"{self._name} did not answer within {within_s:g} s ({verb})",
                "The machine may be overloaded or cut off; try again.",
            ) from error
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        """End the agent; what it started lives on."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        self._end()
        await self._stream.close()

    # --- inside -------------------------------------------------------------------

    async def _find_hello(self) -> bytes:
        """Everything that came behind the first line."""
        text = b""
        while data := await self._stream.read(_CHUNK_BYTES):
            *lines, rest = (text + data).split(b"\n")
            for number, line in enumerate(lines):
                if self._is_hello(line):
                    return b"\n".join([*lines[number + 1 :], rest])
            text = rest[-BANNER_BYTES_MAX:]
        said = self._stream.last_words()
        raise HostError(
            f"The helper dllm-relay on {self._name} does not run"
            + (f": {said}" if said else ""),
            "Install it anew, in the version of this machine.",
        )

    def _is_hello(self, line: bytes) -> bool:
        hello = converted(decode_line(line), Hello) if b'"hello"' in line else None
        if hello is None or hello.hello != _HELLO:
            return False
        if hello.protocol != PROTOCOL:
            raise HostError(
                f"The helper dllm-relay on {self._name} is of version {hello.version}, "
                "which this one does not understand",
                "Install the same version on both machines.",
            )
        self.hello = hello
        return True

    async def _read(self, data: bytes) -> None:
        try:
            while True:
                for line in self._lines.add(data):
                    self._take(line)
                if not (data := await self._stream.read(_CHUNK_BYTES)):
                    break
        except (OSError, ValueError):
            # Broken, or a flood without line ends: no agent of ours any more.
            pass
        finally:
            self._end()

    def _take(self, line: bytes) -> None:
        message = decode_line(line)
        if message is None:
            return
        if "push" in message:
            self._told(message)
            return
        number = message.get("id")
        waiting = self._waiting.get(number) if isinstance(number, int) else None
        if waiting is not None and not waiting.done():
            waiting.set_result(message)

    def _result(self, message: dict[str, Any]) -> dict[str, Any]:
        result = message.get("ok")
        if isinstance(result, dict):
            return result
        complaint = converted(message.get("error"), Complaint)
        raise Refused(complaint or Complaint(message="an answer without sense"))

    async def _send(self, line: bytes) -> None:
        async with self._sending:
            try:
                await self._stream.write(line)
            except OSError:
                # Whoever waits for an answer is told, also who just asked.
                self._end()

    def _end(self) -> None:
        self.ended.set()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(self._broken())

    def _broken(self) -> PeerUnreachable:
        said = self._stream.last_words()
        return PeerUnreachable(
            f"The connection to the helper on {self._name} broke"
            + (f": {said}" if said else ""),
            "What it started lives on.",
        )


ASK_TIMEOUT_S = 15.0
RESTART_PAUSES_S = (0.02, 0.2, 1.0, 5.0)
"""Between attempts to start an agent that died again; the last one is repeated."""
STAYED_S = 5.0
"""An agent that ran for so long is started again after the shortest pause."""
LEASE_S = 240.0
"""An agent that hears nothing for so long ends: we may have lost power, which its sshd
may not notice for hours. Well beyond a minute, for which a cable may be out."""
RENEWALS = 4
"""In the time of one lease."""


class AgentSession:
    """One agent at a time, and what it tells.

    ``restarts``: by itself; else by the next request.

    ``lease_s`` is how long it lives without a word of ours; None: while the stream
    stands.

    ``all_told`` gets every process directory once an agent runs; then ``came`` and
    ``went`` what changes.
    """

    def __init__(
        self,
        name: str,
        open_stream: Callable[[], Awaitable[Stream]],
        *,
        restarts: bool,
        lease_s: float | None,
        came: Callable[[AgentProcess], None],
        went: Callable[[str], None],
        all_told: Callable[[tuple[AgentProcess, ...]], None],
    ) -> None:
        self._name = name
        self._open_stream = open_stream
        self._restarts = restarts
        self._lease_s = lease_s
        self._came = came
        self._went = went
        self._all_told = all_told
        self._channel: Channel | None = None
        self._lock = asyncio.Lock()
        self._opening: asyncio.Task[Channel] | None = None
        self._closes = 0
        self._keeping: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None

    @property
    def hello(self) -> Hello:
        """Its first line; empty before the first request."""
        return self._channel.hello if self._channel else Hello(hello="", protocol=0)

    async def connect(self) -> None:
        await self._connected()

    async def ask(
        self, verb: str, members: dict[str, Any], within_s: float = ASK_TIMEOUT_S
    ) -> dict[str, Any]:
        """Send a request and wait for the answer.

        Raises:
            Refused: it did not do it.
        """
        channel = await self._connected()
        return await channel.ask(verb, members, within_s)

    async def close(self) -> None:
        """End the agent; what it started lives on. A later request starts another."""
        self._closes += 1
        await _ended(self._keeping, self._renewing, self._opening)
        self._keeping = self._renewing = None
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def _connected(self) -> Channel:
        closes = self._closes
        async with self._lock:
            if closes != self._closes:
                raise self._closed()
            if self._channel is None or self._channel.ended.is_set():
                self._opening = asyncio.create_task(self._open(self._channel))
                try:
                    self._channel = await self._opening
                except asyncio.CancelledError:
                    task = asyncio.current_task()
                    if closes == self._closes or (task and task.cancelling()):
                        raise
                    raise self._closed() from None
                if self._restarts and self._keeping is None:
                    self._keeping = asyncio.create_task(self._keep())
            return self._channel

    def _closed(self) -> PeerUnreachable:
        return PeerUnreachable(f"The helper on {self._name} was ended meanwhile")

    async def _open(self, before: Channel | None) -> Channel:
        if before is not None:
            await before.close()
        # News may be read in one go with the answer they are newer than.
        early: list[dict[str, Any]] = []
        listed = False

        def told(message: dict[str, Any]) -> None:
            if listed:
                self._pushed(message)
            else:
                early.append(message)

        channel = Channel(self._name, await self._open_stream(), told)
        await channel.open()
        try:
            answer = await channel.ask("watch", {}, ASK_TIMEOUT_S)
        except BaseException as error:
            await channel.close()
            if isinstance(error, Refused):
                raise HostError(f"{error} on {self._name}") from error
            raise
        self._all_told(converted(answer.get("records"), tuple[AgentProcess, ...]) or ())
        listed = True
        for message in early:
            self._pushed(message)
        await _ended(self._renewing)
        if self._lease_s is not None:
            renewed = _renewed(channel, self._lease_s)
            self._renewing = asyncio.create_task(renewed)
        return channel

    async def _keep(self) -> None:
        """Start it again whenever it ended: what changes is to be told of."""
        now_s = asyncio.get_running_loop().time
        attempt = 0
        while True:
            begun_s = now_s()
            if self._channel is not None:
                await self._channel.ended.wait()
            if now_s() - begun_s >= STAYED_S:
                attempt = 0
            await asyncio.sleep(
                RESTART_PAUSES_S[min(attempt, len(RESTART_PAUSES_S) - 1)]
            )
            attempt += 1
            with contextlib.suppress(DllmError, OSError):
                await self._connected()

    def _pushed(self, message: dict[str, Any]) -> None:
        if message.get("push") == "record":
            told = converted(message.get("record"), AgentProcess)
            if told is not None:
                self._came(told)
        elif message.get("push") == "removed":
            self._went(str(message.get("name")))


async def _renewed(channel: Channel, lease_s: float) -> None:
    """Let an agent know in time, again and again, that we are there."""
    while not channel.ended.is_set():
        try:
            await channel.ask("lease", {"seconds": lease_s}, ASK_TIMEOUT_S)
        except Refused:
            # One of an earlier release lives as long as its connection.
            return
        except HostError:
            # Silence, or the end of the channel; the way may come back in time.
            pass
        await asyncio.sleep(lease_s / RENEWALS)


async def _ended(*tasks: asyncio.Task[Any] | None) -> None:
    there = [task for task in tasks if task is not None]
    for task in there:
        task.cancel()
    await asyncio.gather(*there, return_exceptions=True)


def error_of(complaint: Complaint, name: str, host: str) -> HostError:
    pids = ", ".join(map(str, sorted(complaint.pids)))
    match complaint.kind:
        case "not_started":
            return HostError(f"{name} did not start on {host}: {complaint.message}")
        case "still_runs":
            detail = f" (pid {pids})" if pids else ""
            return HostError(f"{name} still runs on {host}{detail}", "Stop it first.")
        case "outlived":
            return HostError(
                f"{name} outlived SIGKILL (pid {pids})",
                "It may wait for a disk or belong to another user; look at it with ps.",
            )
        case "unknown":
            return HostError(complaint.message)
        case _:
            return HostError(f"{complaint.message} on {host}")
