"""One telling of a streamed answer: what of its events must agree with another's.

Two tellings of the same answer differ in what llama-server makes up or measures: ids
of answers, items and calls, and times. The ids are numbered as they appear, so that
those of a later telling can be told by the names that the client knows.
"""

from __future__ import annotations

import re
from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

EVENTS_MAX = 1 << 18
"""A longer answer is not told again: two mebibytes of sums."""
LONG_BYTES = 1 << 20
EDGE_BYTES = 1 << 16
"""Of a long event, what is looked through at either end: what varies stands there, and
in the middle what was asked for. Others wait while it is read."""
_VARYING = re.compile(
    rb'"(?:(?P<id>id|item_id|call_id)":"(?P<name>[^"\\]*)"'
    rb'|(?P<made>created|created_at)":(?P<at>\d+)'
    rb"|(?:completed_at|id_slot|tokens_cached|cached_tokens|cache_read_input_tokens"
    rb'|input_tokens)":-?\d+'
    rb')|,?"timings":\{[^{}]*\}'
)
"""Inside of a text the quotation marks would be escaped."""


class Telling:
    """Reads the events of one llama-server's answer in their order."""

    def __init__(self) -> None:
        """Nothing was told."""
        self._names: dict[bytes, int] = {}
        self._made: dict[bytes, bytes] = {}

    def sum_of(self, event: bytes) -> int:
        """The same number for the same event of another telling."""
        return hash(_changed(event, self._without))

    def _without(self, found: re.Match[bytes]) -> bytes:
        if found["made"]:
            self._made.setdefault(found["made"], found["at"])
        if not found["id"]:
            return b""
        return b"%s %d" % (found["id"], self._number(found["name"]))

    def _number(self, name: bytes) -> int:
        return self._names.setdefault(name, len(self._names))

    def as_in(self, first: Telling, event: bytes) -> bytes:
        """An event of this telling with the names and the date of another."""
        names = list(first._names)

        def renamed(found: re.Match[bytes]) -> bytes:
            number = self._number(found["name"]) if found["id"] else len(names)
            if number < len(names):
                return b'"%s":"%s"' % (found["id"], names[number])
            made = found["made"]
            if made in first._made:
                return b'"%s":%s' % (made, first._made[made])
            return found[0]

        return _changed(event, renamed)


def _changed(event: bytes, change: Callable[[re.Match[bytes]], bytes]) -> bytes:
    """The event with whatever varies in it changed."""
    if len(event) <= LONG_BYTES:
        return _VARYING.sub(change, event)
    ends = (event[:EDGE_BYTES], event[-EDGE_BYTES:])
    first, last = (_VARYING.sub(change, end) for end in ends)
    return b"".join((first, event[EDGE_BYTES:-EDGE_BYTES], last))


class Sums:
    """What a client was told, eight bytes an event."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._sums = array("q")
        self.is_full = False
        """Whether there were more than are kept."""

    def __len__(self) -> int:
        """So many events the client has."""
        return len(self._sums)

    def add(self, one: int) -> None:
        """One more was told."""
        self.is_full = self.is_full or len(self) >= EVENTS_MAX
        if not self.is_full:
            self._sums.append(one)

    def agree(self, number: int, one: int) -> bool:
        """Whether the event of this number was that one."""
        return self._sums[number] == one
