"""Server-sent events: where one ends, and what it carries."""

from __future__ import annotations

from typing import Any

import msgspec

from backends.gateway.tokens import CannotGoOn

HELD_BYTES_MAX = 64 << 20
"""An event that is not over after so much ends its stream with an error. With every
word's probability for each token one takes tens of megabytes, and is whole."""
DONE = b"data: [DONE]\n\n"
ENDLESS = "llama-server sent an event without end"
_END = b"\n\n"
_DATA = b"data: "


class LineFeeds:
    """Gives each line the one end that llama-server uses: a stream may have three."""

    def __init__(self) -> None:
        """Nothing has come yet."""
        self._is_split = False
        """Whether the last line ended in what may be half of its end."""

    def take(self, chunk: bytes) -> bytes:
        """The next piece, with line feeds alone."""
        if self._is_split:
            chunk = chunk.removeprefix(b"\n")
        self._is_split = chunk.endswith(b"\r")
        if b"\r" not in chunk:
            return chunk
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


class Splitter:
    """Gives whole events alone: half of one could not be taken back."""

    def __init__(self) -> None:
        """Nothing has come yet."""
        self._lines = LineFeeds()
        self._rest = bytearray()

    def take(self, chunk: bytes) -> list[bytes]:
        """The events that are whole by now, each with the blank line after it.

        Raises:
            CannotGoOn: one has no end.
        """
        # What was looked through is not looked through again, but for half an end.
        looked = max(len(self._rest) - 1, 0)
        self._rest += self._lines.take(chunk)
        end = self._rest.rfind(_END, looked)
        if end >= 0:
            whole = bytes(self._rest[:end]).split(_END)
            del self._rest[: end + len(_END)]
            return [event + _END for event in whole]
        if len(self._rest) > HELD_BYTES_MAX:
            raise CannotGoOn(ENDLESS)
        return []


def payload(event: bytes) -> bytes:
    """The JSON of an event; empty for comments, and for the word that ends a stream."""
    data = event[len(_DATA) :] if event.startswith(_DATA) else b""
    return data if data.startswith(b"{") else b""


def event_of(value: Any) -> bytes:
    """An event that carries this as JSON."""
    return _DATA + msgspec.json.encode(value) + _END
