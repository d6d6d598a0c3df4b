"""One telling of a streamed answer: what of its events must agree with another's.

Two tellings of the same answer differ in what llama-server makes up or measures: ids
of answers, items and calls, and times. The ids are numbered as they appear, so that
those of a later telling can be told by the names that the client knows.
"""

from __future__ import annotations

import re
from array import array
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

EVENTS_MAX = 1 << 18
"""A longer answer is not told again: two mebibytes of sums."""
LATEST_BYTES_MAX = 256 << 10
"""So much is kept as it came: a sum takes some 10 µs, and is rarely asked for."""
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


class Record:
    """What a client was told: eight bytes an event, but for the latest ones."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._telling = Telling()
        self._sums = array("q")
        self._latest: deque[bytes] = deque()
        self._latest_bytes = 0
        self.is_full = False
        """Whether there were more than are kept."""

    def __len__(self) -> int:
        """So many events the client has."""
        return len(self._sums) + len(self._latest)

    def add(self, event: bytes) -> None:
        """One more was told."""
        self.is_full = self.is_full or len(self) >= EVENTS_MAX
        if self.is_full:
            return
        self._latest.append(event)
        self._latest_bytes += len(event)
        while self._latest_bytes > LATEST_BYTES_MAX:
            self._sum_oldest()

    @property
    def telling(self) -> Telling:
        """The telling that all of it is of."""
        self._sum_all()
        return self._telling

    def agrees(self, number: int, other: int) -> bool:
        """Whether the event of this number has the sum of that other one."""
        self._sum_all()
        return self._sums[number] == other

    def _sum_all(self) -> None:
        while self._latest:
            self._sum_oldest()

    def _sum_oldest(self) -> None:
        event = self._latest.popleft()
        self._latest_bytes -= len(event)
        self._sums.append(self._telling.sum_of(event))
