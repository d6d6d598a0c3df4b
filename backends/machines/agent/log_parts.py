"""Pieces of process logs, as text, at byte offsets."""

from __future__ import annotations

import codecs

from backends.state import LogChunk

# The rest of a character is shorter than the longest UTF-8 sequence.
_REST_MAX_BYTES = 3


def log_chunk(
    name: str,
    data: bytes,
    *,
    offset: int,
    size_bytes: int,
    start: int,
    ended: bool = False,
) -> LogChunk:
    """What was read at ``start`` of a log of that size, when ``offset`` was asked for.

    Never splits a character: bytes of an unfinished one are left for the next read,
    unless nothing else was read and the process has ended. An offset beyond the end
    means that the log was emptied or belongs to a new process: reading restarted at 0.
    """
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


def _continuation_bytes(data: bytes) -> int:
    """How many bytes at the beginning are the rest of a cut character."""
    head = data[:_REST_MAX_BYTES]
    return next((i for i, byte in enumerate(head) if byte & 0xC0 != 0x80), len(head))


def _decode(data: bytes) -> tuple[str, int]:
    """The text, and how many bytes at the end belong to an unfinished character."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    return text, len(decoder.getstate()[0])
