"""The lines that cross between us and ``dllm-relay host`` (``native/HOST.md``)."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from backends.errors import HostError
from backends.machines.host import ProcessRecord
from backends.state import NOT_JSON, ProcessRole, ProcessState, Value

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")

PROTOCOL = 1
REQUEST_BYTES_MAX = 1 << 20
ANSWER_BYTES_MAX = 24 << 20
BANNER_BYTES_MAX = 1 << 20
"""What a login shell may print before the first line of ours."""

_NAME_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_NAME = re.compile(f"(?:{_NAME_PART}/)?{_NAME_PART}")


class Stream(Protocol):
    """Bytes to and from a program, here or over a connection."""

    async def read(self, most_bytes: int) -> bytes:
        """What has come; empty at the end."""
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


class Told(Value, frozen=True, kw_only=True):
    """What an agent tells of one process directory."""

    name: str
    pid: int
    alive: bool = False
    stopping: bool = False
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


class Meta(Value, frozen=True, kw_only=True):
    """What we ask an agent to keep with a process, so that adoption knows it."""

    role: ProcessRole = ProcessRole.OTHER
    port: int | None = None
    digest: str = ""


def checked_name(name: str) -> str:
    """The name itself, if a process can have it: ``cluster/name`` or ``name``.

    Raises:
        HostError: it could lead out of the run directory, or is too long.
    """
    if not _NAME.fullmatch(name):
        raise HostError(f"{name!r} cannot be the name of a process")
    return name


def record_of(told: Told) -> ProcessRecord:
    """A process directory as everything else knows it."""
    meta = _meta(told.meta)
    return ProcessRecord(
        name=told.name,
        role=meta.role,
        state=_state(told),
        pid=told.pid,
        argv=told.argv,
        port=meta.port,
        digest=meta.digest,
        started_at=told.started_at,
        exit_code=told.code,
        exit_signal=told.signal,
        log_path=told.log,
        rss_bytes=told.rss_bytes,
        cpu_ms=told.cpu_ms,
    )


def _state(told: Told) -> ProcessState:
    if not told.alive:
        return ProcessState.EXITED
    return ProcessState.STOPPING if told.stopping else ProcessState.RUNNING


def _meta(text: str) -> Meta:
    try:
        return msgspec.json.decode(text.encode(errors="replace"), type=Meta)
    except NOT_JSON:
        return Meta()


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
        """A line of more bytes than that is junk."""
        self._limit_bytes = limit_bytes
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, data: bytes) -> Iterator[bytes]:
        """The lines that are complete now, without their ends.

        Raises:
            ValueError: one is longer than it may be.
        """
        *whole, rest = data.split(b"\n")
        for line in whole:
            yield b"".join([*self._parts, line])
            self._parts, self._size = [], 0
        self._parts.append(rest)
        self._size += len(rest)
        if self._size > self._limit_bytes:
            raise ValueError("a line is too long")
