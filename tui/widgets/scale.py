"""The scale of a slider: round stops at even distances, finer steps between."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cached_property
from itertools import pairwise
from math import isinf

from backends.units import three_figures

_ALMOST = 1e-9


class Scale:
    """Values along a track: the stops at even distances, straight lines between.

    Args:
        stops: Values at even distances, ascending; the last may be infinite.
        parts: The number of steps between two stops.
        unit: Written after a value.
        neutral: The value that changes nothing.
        typed_max: The most a typed value may be, also beyond the last stop.
    """

    def __init__(
        self,
        stops: tuple[float, ...],
        parts: tuple[int, ...],
        unit: str,
        *,
        neutral: float = 0.0,
        typed_max: float = 1e4,
    ) -> None:
        self.stops = stops
        self.parts = parts
        self.unit = unit
        self.neutral = neutral
        self.typed_max = typed_max

    @cached_property
    def grid(self) -> tuple[float, ...]:
        """Every value an arrow key stops at."""
        values = [self.stops[0]]
        for (low, high), parts in zip(pairwise(self.stops), self.parts, strict=True):
            inner = (low + (high - low) * n / parts for n in range(1, parts))
            values += [*(round(value, 6) for value in inner), high]
        return tuple(values)

    def fraction(self, value: float) -> float:
        """The place of a value on the track, 0…1."""
        stops = self.stops
        if value <= stops[0]:
            return 0.0
        if value >= stops[-1]:
            return 1.0
        gap = bisect_right(stops, value) - 1
        low, high = stops[gap], stops[gap + 1]
        part = 0.5 if isinf(high) and value > low else (value - low) / (high - low)
        return (gap + part) / (len(stops) - 1)

    def at(self, fraction: float) -> float:
        """The value of the grid nearest to a place on the track."""
        return min(self.grid, key=lambda value: abs(self.fraction(value) - fraction))

    def step(self, value: float, by: int) -> float:
        """So many values of the grid up or down; one between two goes to the next."""
        grid = self.grid
        if by > 0:
            index = bisect_right(grid, value + _ALMOST) - 1 + by
        else:
            index = bisect_left(grid, value - _ALMOST) + by
        return grid[min(max(index, 0), len(grid) - 1)]

    def parse(self, text: str) -> float | None:
        """A typed number as a value; 0 means no limit where that is the neutral."""
        try:
            value = float(text)
        except ValueError:
            return None
        if isinf(self.neutral) and value == 0:
            return self.neutral
        return min(max(value, self.stops[0]), self.typed_max)

    def text(self, value: float) -> str:
        """``20.0 ms``: three figures and the unit, or ``no limit``."""
        if isinf(value):
            return "no limit"
        return f"{value_text(value)} {self.unit}"


def value_text(value: float) -> str:
    """A value in three figures, 0 as it is."""
    return three_figures(value) if value else "0"
