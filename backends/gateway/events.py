"""Server-sent events: where one ends, and what it carries."""

from __future__ import annotations

from typing import Any

import msgspec

from backends.gateway.tokens import CannotGoOn

HELD_BYTES_MAX = 4 << 20
"""An event that is not over after so much ends its stream with an error."""
DONE = b"data: [DONE]\n\n"
ENDLESS = "llama-server sent an event without end"
_END = b"\n\n"
_DATA = b"data: "


class Splitter:
    """Gives whole events alone: half of one could not be taken back."""

    def __init__(self) -> None:
        """Nothing has come yet."""
        self._rest = b""

    def take(self, chunk: bytes) -> list[bytes]:
        """The events that are whole by now, each with the blank line after it.

        Raises:
            CannotGoOn: one has no end.
        """
        *whole, self._rest = (self._rest + chunk).split(_END)
        if len(self._rest) > HELD_BYTES_MAX:
            raise CannotGoOn(ENDLESS)
        return [event + _END for event in whole]


def payload(event: bytes) -> bytes:
    """The JSON of an event; empty for comments, and for the word that ends a stream."""
    data = event[len(_DATA) :] if event.startswith(_DATA) else b""
    return data if data.startswith(b"{") else b""


def event_of(value: Any) -> bytes:
    """An event that carries this as JSON."""
    return _DATA + msgspec.json.encode(value) + _END
