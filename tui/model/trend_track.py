"""Histories at any moment of a record, for curves that reach back some minutes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from copy import deepcopy

from backends.state import ClusterSnapshot
from tui.model.facts import LiveFacts
from tui.model.trends import Trends

KEPT_EVERY_S = 5.0
Between = Callable[[float, float], Iterator[ClusterSnapshot]]


class TrendTrack:
    """Trends along a record: some are kept, the rest is computed on from them.

    Args:
        between: The snapshots after a moment, up to and with another.
    """

    def __init__(self, between: Between) -> None:
        self._between = between
        self._times = [-1.0]
        self._kept = [Trends()]

    def extend(self) -> None:
        """Keep the trends of some seconds later."""
        at_s = self._times[-1] + KEPT_EVERY_S
        self._kept.append(self._grown(deepcopy(self._kept[-1]), self._times[-1], at_s))
        self._times.append(at_s)

    def at(self, position_s: float) -> Trends:
        """The trends of a moment; of one far from all that are kept, its last ones."""
        index = bisect_right(self._times, position_s) - 1
        from_s = max(self._times[index], position_s - 2 * KEPT_EVERY_S)
        return self._grown(deepcopy(self._kept[index]), from_s, position_s)

    def _grown(self, trends: Trends, from_s: float, to_s: float) -> Trends:
        for snapshot in self._between(from_s, to_s):
            trends.add(LiveFacts.of(snapshot))
        return trends
