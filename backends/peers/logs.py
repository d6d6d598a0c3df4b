"""Reading process logs piece by piece, as text, at byte offsets."""

from __future__ import annotations

import codecs
import os
from typing import TYPE_CHECKING

from backends.errors import HostError
from backends.peers.directory import LOG_FILE, PROCESS_FILE, read_process_file
from backends.state import LogChunk

if TYPE_CHECKING:
    from pathlib import Path

# A read shorter than the longest UTF-8 sequence could never get past one.
_READ_MIN_BYTES = 4
_READ_MAX_BYTES = 16 * 1024 * 1024


def read_log(directory: Path, offset: int, limit_bytes: int) -> LogChunk:
    """Text from ``offset`` on; a negative one counts from the end.

    Never splits a character: bytes of an unfinished one are left for the next read,
    unless the process has ended. An offset beyond the end means that the log was
    emptied (its limit) or belongs to a new process: reading restarts at 0.

    Raises:
        HostError: there is no such process directory, or its log cannot be read.
    """
    limit_bytes = clamped(limit_bytes, _READ_MAX_BYTES)
    try:
        size, data = _read(directory / LOG_FILE, offset, limit_bytes)
    except FileNotFoundError as error:
        if not (directory / PROCESS_FILE).exists():
            raise HostError(f"There is no process called {directory.name}") from error
        size, data = 0, b""
    except OSError as error:
        raise HostError(
            f"The log of {directory.name} cannot be read ({error.strerror})"
        ) from error
    chunk = log_chunk(directory.name, offset, size, data)
    if is_stuck(chunk, data) and _has_ended(directory):
        return log_chunk(directory.name, offset, size, data, ended=True)
    return chunk


def clamped(limit_bytes: int, most_bytes: int) -> int:
    """How many bytes to read when so many are asked for."""
    return min(max(limit_bytes, _READ_MIN_BYTES), most_bytes)


def first_byte(offset: int, size_bytes: int) -> int:
    """Where to read a log of that size: see ``read_log`` for what ``offset`` means."""
    if offset < 0:
        return max(size_bytes + offset, 0)
    return offset if offset <= size_bytes else 0


def log_chunk(
    name: str, offset: int, size_bytes: int, data: bytes, *, ended: bool = False
) -> LogChunk:
    """What was read from ``first_byte`` on, as text.

    ``ended`` says that the rest of an unfinished character will never come.
    """
    start = first_byte(offset, size_bytes)
    skipped = _continuation_bytes(data) if offset < 0 and start > 0 else 0
    text, pending = _decode(data[skipped:])
    if pending and not text and ended:
        text, pending = data[skipped:].decode(errors="replace"), 0
    return LogChunk(
        name=name,
        text=text,
        offset=start + skipped,
        next_offset=start + len(data) - pending,
        restarted=offset > size_bytes,
    )


def is_stuck(chunk: LogChunk, data: bytes) -> bool:
    """Whether bytes were read, but not one whole character."""
    return bool(data) and not chunk.text


def _read(path: Path, offset: int, limit_bytes: int) -> tuple[int, bytes]:
    """How long the log was, and the bytes."""
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(first_byte(offset, size))
        return size, file.read(limit_bytes)


def _continuation_bytes(data: bytes) -> int:
    """How many bytes at the beginning are the rest of a cut character."""
    head = data[: _READ_MIN_BYTES - 1]
    return next((i for i, byte in enumerate(head) if byte & 0xC0 != 0x80), len(head))


def _decode(data: bytes) -> tuple[str, int]:
    """The text, and how many bytes at the end belong to an unfinished character."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    return text, len(decoder.getstate()[0])


def _has_ended(directory: Path) -> bool:
    try:
        process = read_process_file(directory)
    except HostError:
        return True
    return process is None or not process.alive
