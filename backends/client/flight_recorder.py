"""The flight recorder: all that a console receives, in a file.

The file is a gzip stream of JSON lines: a header, then an entry for each frame of a
stream and each answer. Every line is flushed as it comes: a file of which the end is
missing is whole up to there. Streams begin with a whole state, and have another
every ``KEYFRAME_S``: from there any moment is near.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
import zlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import msgspec

from backends.errors import DllmError, UsageError
from backends.redaction import LEFT_OUT, RACE_WORDS, without_keys, without_words
from backends.state import LogChunk, Value
from backends.state.base import json_bytes

FORMAT = 1
"""Grows with every change that an older program would misread."""
GZIP = 31
"""Tells zlib to write gzip, with the largest window."""
KEYFRAME_S = 5.0
UNPACKED_BYTES_MAX = 1 << 28
"""A file that unpacks to more is no record of ours."""
QUEUED_MAX = 4000
"""Entries that wait for a disk; beyond them the recording ends."""
CHATS = "/v1/chats"
LOGS = "/v1/logs/"
RACES = "/v1/race"
SNAPSHOTS = "/v1/snapshots"
SWEEPS = "/v1/sweep"
_KEPT = re.compile(
    r"GET /v1/(?:inspect|models|events|passes|chats|drafts|why|logs/[^/]+)"
    r"|POST /v1/(?:speeds|memory|best)"
)
"""Answers that are kept; what is not known to be harmless is not."""
_SERVER_LOG = re.compile(rf"{LOGS}llama-server\b")
_WITH_ARGUMENTS = frozenset({"argv", "extra_args"})


Cells = Annotated[int, msgspec.Meta(ge=1, le=1000)]


class RecordHeader(Value, frozen=True, kw_only=True):
    dllm_record: int = FORMAT
    program: str = ""
    """The version of the program."""
    began_at: Annotated[float, msgspec.Meta(ge=0, lt=4e9)] = 0.0
    """Unix seconds."""
    cluster: str
    size: tuple[Cells, Cells] = (120, 36)
    """Columns and rows of the terminal."""
    words: bool = True
    """False if prompts, answers and the server's log are left out."""


class EntryKind(StrEnum):
    WHOLE = "whole"
    """A frame of a stream that needs none before it."""
    FRAME = "frame"
    END = "end"
    """The stream broke, or its controller left."""
    ANSWER = "answer"


class RecordEntry(msgspec.Struct, frozen=True, array_like=True):
    """Something received, so many seconds after the beginning."""

    at_s: float
    kind: EntryKind
    target: str
    asked: str
    """A hash of the question's body; empty without one."""
    content: msgspec.Raw


def _stream(target: str) -> str:
    # The holder is a word of one process.
    return target.partition("&holder=")[0]


def digest(body: object) -> str:
    if body is None:
        return ""
    return hashlib.blake2b(json_bytes(body), digest_size=8).hexdigest()


class FlightRecorder:
    """Writes what a connection receives; a thread of its own waits for the disk."""

    def __init__(
        self,
        file: Path,
        *,
        cluster: str,
        size: tuple[int, int] = (120, 36),
        words: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.file = file.absolute()
        self.words = words
        self.problem = ""
        """Why it ended by itself."""
        self.size_bytes = 0
        self._unpacked_bytes = 0
        self._clock = clock
        self._began = clock()
        self._wholes: dict[str, float] = {}
        """When a stream's last whole state was written."""
        self._logs: dict[str, int] = {}
        """Up to which byte of a log all is written."""
        self._packer = zlib.compressobj(wbits=GZIP)
        self._submitted = 0
        self._done = 0
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
            self._descriptor = os.open(self.file, flags, 0o600)
        except FileExistsError:
            raise UsageError(
                f"{file} is there already", "Give the record another name."
            ) from None
        except OSError as error:
            raise DllmError(f"Cannot write {file} ({error.strerror})") from error
        self._writer = ThreadPoolExecutor(1, "record")
        header = RecordHeader(
            program=version("dllm-tui"),
            began_at=time.time(),
            cluster=cluster,
            size=size,
            words=words,
        )
        self._submit(lambda: json_bytes(header))

    @property
    def is_open(self) -> bool:
        """False once it was closed, or ended by itself."""
        return self._descriptor >= 0 and not self.problem

    @property
    def seconds(self) -> float:
        return self._clock() - self._began

    def close(self) -> None:
        """Write what waits, and the end of the file."""
        if self._descriptor >= 0:
            self._writer.submit(self._finish).add_done_callback(self._written)
        self._writer.shutdown()

    # --- what a connection receives ------------------------------------------------

    def frame(self, target: str, frame: Value, whole: Callable[[], Value]) -> None:
        """A frame of a stream, or, if one is due, the ``whole`` state instead."""
        target = _stream(target)
        plain = msgspec.to_builtins(frame)
        is_due = self.seconds >= self._wholes.get(target, -KEYFRAME_S) + KEYFRAME_S
        is_whole = "snapshot" in plain or "whole" in plain
        # An argument alone does not show that it is a secret: the one before it does.
        # Only a patch of a snapshot has one alone.
        in_part = target.startswith(SNAPSHOTS) and _has_arguments(plain)
        if is_whole or is_due or in_part:
            self._wholes[target] = self.seconds
            self._put(EntryKind.WHOLE, target, whole())
        else:
            self._put(EntryKind.FRAME, target, plain)

    def ended(self, target: str) -> None:
        self._wholes.pop(_stream(target), None)
        self._put(EntryKind.END, _stream(target), None)

    def answer(self, method: str, target: str, body: object, value: object) -> None:
        path = target.partition("?")[0]
        if not _KEPT.fullmatch(f"{method} {path}"):
            return
        if isinstance(value, LogChunk):
            seen = 0 if value.restarted else self._logs.get(path, 0)
            if value.next_offset <= seen:
                return
            self._logs[path] = value.next_offset
        self._put(EntryKind.ANSWER, target, value, digest(body))

    def _put(self, kind: EntryKind, target: str, value: Any, asked: str = "") -> None:
        at_s = round(self.seconds, 3)

        def line() -> bytes:
            plain = msgspec.to_builtins(value)
            if not self.words and target.startswith(CHATS):
                plain = without_quotes("", without_words(plain))
            elif not self.words and target.startswith(RACES):
                plain = without_quotes("", without_words(plain, RACE_WORDS))
            elif not self.words:
                plain = without_quotes(target, plain)
            # Whoever records a chat wants its words as they are.
            if not target.startswith(CHATS):
                plain = without_keys(plain)
            return json_bytes((at_s, kind, target, asked, plain))

        self._submit(line)

    # --- the thread that writes ----------------------------------------------------

    def _submit(self, line: Callable[[], bytes]) -> None:
        if not self.is_open:
            return
        if self._submitted - self._done >= QUEUED_MAX:
            self.problem = "the disk is too slow"
            return
        self._submitted += 1
        self._writer.submit(self._write, line).add_done_callback(self._written)

    def _written(self, done: Future[None]) -> None:
        self._done += 1
        error = done.exception()
        if error is not None and not self.problem:
            self.problem = getattr(error, "strerror", "") or str(error)

    def _write(self, line: Callable[[], bytes]) -> None:
        if not self.problem:
            written = line() + b"\n"
            self._unpacked_bytes += len(written)
            if self._unpacked_bytes > UNPACKED_BYTES_MAX:
                self.problem = "it is as long as a replay can read"
                return
            packed = self._packer.compress(written)
            self._append(packed + self._packer.flush(zlib.Z_SYNC_FLUSH))

    def _append(self, packed: bytes) -> None:
        left = memoryview(packed)
        while left:
            written = os.write(self._descriptor, left)
            self.size_bytes += written
            left = left[written:]

    def _finish(self) -> None:
        try:
            if not self.problem:
                self._append(self._packer.flush())
        finally:
            os.close(self._descriptor)
            self._descriptor = -1


def without_quotes(target: str, plain: Any) -> Any:
    """The server's log, and what failures and events quote of one, left out."""
    if _SERVER_LOG.match(target):
        return plain | {"text": re.sub(r"[^\n]", " ", plain["text"])}
    if isinstance(plain, dict):
        return {
            name: [LEFT_OUT] * bool(one)
            if name in ("log_tail", "evidence")
            else without_quotes("", one)
            for name, one in plain.items()
        }
    if isinstance(plain, list | tuple):
        return [without_quotes("", one) for one in plain]
    return plain


def _has_arguments(plain: Any) -> bool:
    if isinstance(plain, dict):
        return any(
            name in _WITH_ARGUMENTS or _has_arguments(one)
            for name, one in plain.items()
        )
    return isinstance(plain, list | tuple) and any(map(_has_arguments, plain))
