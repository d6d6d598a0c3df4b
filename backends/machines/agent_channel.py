"""The stream to ``dllm-relay agent``: requests, answers and news, line by line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Protocol, TypeVar

import msgspec

from backends.errors import MachineError, PeerUnreachable
from backends.state import NOT_JSON, Value
from backends.tasks import end_tasks

T = TypeVar("T")

PROTOCOL = 2
REQUEST_BYTES_MAX = 1 << 20
ANSWER_BYTES_MAX = 24 << 20
BANNER_BYTES_MAX = 1 << 20
"""Most that a login shell may print before our first line."""


class Stream(Protocol):
    """Bytes to and from a program, here or over a connection."""

    async def read(self, most_bytes: int) -> bytes:
        """Wait for data; empty at the end."""

    async def write(self, data: bytes) -> None:
        """Send; waits while the other end does not read."""

    async def close(self) -> None:
        """End the program's input and wait a moment for its end."""

    def last_words(self) -> str: ...


class Hello(Value, frozen=True, kw_only=True):
    hello: str
    protocol: int
    version: str = ""
    features: tuple[str, ...] = ()
    pid: int = 0
    run_dir: str = ""


class AgentProcess(Value, frozen=True, kw_only=True):
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
_HELPER = "dllm-relay "
_HELLO = f"{_HELPER}agent"
_NO_COMMAND = "unknown command 'agent'"
_NO_VERB = "there is no verb"
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

    @property
    def is_asked(self) -> bool:
        return bool(self._waiting)

    async def open(self) -> None:
        """Read up to the agent's first line; pass over what a login shell prints."""
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                rest = await self._find_hello()
        except TimeoutError as error:
            await self.close()
            raise MachineError(
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
            raise MachineError(
                f"{self._name} did not answer within {within_s:g} s ({verb})",
                "The machine may be overloaded or cut off; try again.",
            ) from error
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        await end_tasks(self._reader)
        self._end()
        await self._stream.close()

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
        wrong = f"does not run: {said}" if said else "does not run"
        if _NO_COMMAND in said:
            wrong = f"is of another version ({said})"
        raise MachineError(
            f"The helper dllm-relay on {self._name} {wrong}",
            "Install it anew, in the version of this machine.",
        )

    def _is_hello(self, line: bytes) -> bool:
        hello = converted(decode_line(line), Hello) if b'"hello"' in line else None
        if hello is None or not hello.hello.startswith(_HELPER):
            return False
        # One of another version may call its agent otherwise.
        if hello.hello != _HELLO or hello.protocol != PROTOCOL:
            raise MachineError(
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


def error_of(complaint: Complaint, name: str, host: str) -> MachineError:
    pids = ", ".join(map(str, sorted(complaint.pids)))
    match complaint.kind:
        case "not_started":
            return MachineError(f"{name} did not start on {host}: {complaint.message}")
        case "still_runs":
            detail = f" (pid {pids})" if pids else ""
            return MachineError(
                f"{name} still runs on {host}{detail}", "Stop it first."
            )
        case "outlived":
            return MachineError(
                f"{name} outlived SIGKILL (pid {pids})",
                "It may wait for a disk or belong to another user; look at it with ps.",
            )
        case "unknown":
            return MachineError(complaint.message)
        case "bad_request" if complaint.message.startswith(_NO_VERB):
            return MachineError(
                f"The helper on {host} is of another version ({complaint.message})",
                f"dllm-tui peers setup {host}",
            )
        case _:
            return MachineError(f"{complaint.message} on {host}")
