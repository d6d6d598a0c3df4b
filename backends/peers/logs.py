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
    limit_bytes = min(max(limit_bytes, _READ_MIN_BYTES), _READ_MAX_BYTES)
    try:
        start, restarted, data = _read(directory / LOG_FILE, offset, limit_bytes)
    except FileNotFoundError as error:
        if not (directory / PROCESS_FILE).exists():
            raise HostError(f"There is no process called {directory.name}") from error
        start, restarted, data = 0, offset > 0, b""
    except OSError as error:
        raise HostError(
            f"The log of {directory.name} cannot be read ({error.strerror})"
        ) from error
    text, pending = _decode(data)
    if pending and not text and _has_ended(directory):
        text, pending = data.decode(errors="replace"), 0
    return LogChunk(
        name=directory.name,
        text=text,
        offset=start,
        next_offset=start + len(data) - pending,
        restarted=restarted,
    )


def _read(path: Path, offset: int, limit_bytes: int) -> tuple[int, bool, bytes]:
    """Where reading began, whether the log had shrunk, and the bytes."""
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        restarted = offset > size
        start = max(size + offset, 0) if offset < 0 else 0 if restarted else offset
        file.seek(start)
        data = file.read(limit_bytes)
    skipped = _continuation_bytes(data) if offset < 0 and start > 0 else 0
    return start + skipped, restarted, data[skipped:]


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
