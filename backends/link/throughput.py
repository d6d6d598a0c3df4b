"""How fast a link carries bytes now, from its totals at one moment after another."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

WINDOW_S = 1.0
"""The mean over so long: two ticks of traffic do not flicker."""
TICK_S = 0.25
"""Between two reports of a relay through which something moves."""


class _Totals(NamedTuple):
    at_s: float
    up: int
    down: int


class Throughput:
    """Bytes per second each way over the last second; pure."""

    def __init__(self) -> None:
        """Nothing has been seen yet."""
        self._seen: deque[_Totals] = deque()

    def take(self, at_s: float, up: int, down: int) -> tuple[float, float] | None:
        """Take the totals of a moment; None while there is nothing to compare with."""
        now = _Totals(at_s, up, down)
        if self._seen and not _follows(now, self._seen[-1]):
            self._seen.clear()
        if self._seen and at_s - self._seen[-1].at_s > WINDOW_S:
            self._pass_over_silence(at_s)
        self._seen.append(now)
        while len(self._seen) > 2 and self._seen[1].at_s <= at_s - WINDOW_S:
            self._seen.popleft()
        first = self._seen[0]
        elapsed_s = at_s - first.at_s
        if elapsed_s <= 0:
            return None
        return (up - first.up) / elapsed_s, (down - first.down) / elapsed_s

    def _pass_over_silence(self, at_s: float) -> None:
        """A relay is silent while nothing moves: all that is new is of this tick."""
        last = self._seen[-1]
        self._seen.clear()
        self._seen.append(_Totals(at_s - TICK_S, last.up, last.down))


def _follows(now: _Totals, before: _Totals) -> bool:
    """False when the relay began anew: its totals never shrink."""
    return now.at_s >= before.at_s and now.up >= before.up and now.down >= before.down
