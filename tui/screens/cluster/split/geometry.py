"""The geometry of a split bar's segments and handles: pure arithmetic on columns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

REACH = 1
"""Columns beside a handle that still take hold of it."""


@dataclass(frozen=True)
class BarGeometry:
    """A bar of ``width`` columns that shows these whole-layer counts.

    Every segment keeps one column, if there is room for that, so that a device without
    layers stays visible; every boundary has a column of its own for its handle.
    """

    width: int
    counts: tuple[int, ...]

    @property
    def total(self) -> int:
        """Layers and output."""
        return sum(self.counts)

    @cached_property
    def positions(self) -> tuple[int, ...]:
        """Layers before each boundary."""
        return tuple(accumulate(self.counts))[:-1]

    @cached_property
    def least(self) -> int:
        """Columns every segment has at least."""
        return 1 if self.width >= 2 * len(self.counts) - 1 else 0

    @cached_property
    def spare(self) -> int:
        """Columns shared out by layers."""
        handles = len(self.counts) - 1
        return max(0, self.width - handles - self.least * len(self.counts))

    def handle_x(self, index: int) -> int:
        """Column of a boundary's handle."""
        return self._handle_offset(index) + self._scaled(self.positions[index])

    def span(self, index: int) -> tuple[int, int]:
        """Columns of a segment: first, and one past the last."""
        start = self.handle_x(index - 1) + 1 if index else 0
        if index < len(self.positions):
            return start, self.handle_x(index)
        return start, max(start, self.width)

    def position_at(self, index: int, x: float) -> int:
        """Layers before a boundary whose handle is dragged to column ``x``."""
        if not self.spare:
            return self.positions[index]
        position = (x - self._handle_offset(index)) * self.total / self.spare
        return min(max(round(position), 0), self.total)

    def boundary_near(self, x: int) -> int | None:
        """The boundary whose handle is at a column or beside it."""
        near = min(
            range(len(self.positions)),
            key=lambda index: abs(self.handle_x(index) - x),
            default=None,
        )
        if near is None or abs(self.handle_x(near) - x) > REACH:
            return None
        return near

    def segment_at(self, x: int) -> int:
        """The segment at a column."""
        return sum(self.handle_x(index) < x for index in range(len(self.positions)))

    def layer_edges(self, index: int) -> frozenset[int]:
        """Columns of a segment that end a layer, where layers are wide enough."""
        start, end = self.span(index)
        count, width = self.counts[index], end - start
        if not count or width < 2 * count:
            return frozenset()
        return frozenset(start + width * n // count - 1 for n in range(1, count))

    def _handle_offset(self, index: int) -> int:
        return (index + 1) * self.least + index

    def _scaled(self, position: int) -> int:
        if not self.total:
            return 0
        return (2 * position * self.spare + self.total) // (2 * self.total)
