"""How often a command took how long, as cells on a logarithmic axis: arithmetic."""

from __future__ import annotations

from math import ceil, floor, log10
from typing import TYPE_CHECKING, NamedTuple

from backends.link.figures import lower_edge_us

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Buckets = tuple[tuple[float, int], ...]

DECADES_MIN = 2
"""A narrow hill is not blown up to the whole width."""
FIRST_POWER_MIN = -1
"""The axis never begins below 100 ns: no command is that fast."""
BLOCKS = " ▁▂▃▄▅▆▇█"
EIGHTHS = 8
_UNITS = ((6, "s"), (3, "ms"), (0, "µs"), (-3, "ns"))


class Axis(NamedTuple):
    """Powers of ten of a microsecond at both ends."""

    first: int
    last: int

    def cell(self, value_us: float, room: int) -> float:
        """Where a time is, in cells from the left; what is off stands at the end."""
        power = log10(max(value_us, 10.0**self.first))
        share = (power - self.first) / (self.last - self.first)
        return min(share, 1.0) * room


def axis_of(times_us: Iterable[float]) -> Axis:
    """Whole decades that hold these times."""
    powers = [log10(time) if time > 0 else FIRST_POWER_MIN for time in times_us]
    if not powers:
        return Axis(0, 6)
    first = max(floor(min(powers)), FIRST_POWER_MIN)
    last = max(ceil(max(powers)), first + DECADES_MIN)
    return Axis(first, last)


def spans_of(buckets: Buckets) -> list[tuple[float, float, int]]:
    """Each bucket from where up to where, and how many."""
    return [(lower_edge_us(upper), upper, count) for upper, count in buckets]


def heights_of(buckets: Buckets, axis: Axis, room: int) -> list[float]:
    """How many fell on each cell; a bucket is spread over the cells it covers."""
    heights = [0.0] * room
    for lower, upper, count in spans_of(buckets):
        start = axis.cell(lower, room)
        end = max(axis.cell(upper, room), start + 1e-6)
        first = min(int(start), room - 1)
        for at in range(first, min(ceil(end), room)):
            covered = min(end, at + 1) - max(start, at)
            heights[at] += count * max(covered, 0.0) / (end - start)
        if start >= room:
            heights[-1] += count
    return heights


def bars_of(heights: Sequence[float], rows: int) -> list[str]:
    """Rows of blocks, top to bottom; whatever happened at all can be seen."""
    largest = max(heights, default=0.0)
    if not largest:
        return [" " * len(heights)] * rows
    levels = [_eighths(height / largest, rows) for height in heights]
    return [
        "".join(
            BLOCKS[min(max(level - base * EIGHTHS, 0), EIGHTHS)] for level in levels
        )
        for base in reversed(range(rows))
    ]


def _eighths(share: float, rows: int) -> int:
    return max(round(share * rows * EIGHTHS), 1) if share > 1e-9 else 0


def place_of(value_us: float, axis: Axis, room: int) -> int:
    """The cell a time falls on."""
    return min(int(axis.cell(value_us, room)), room - 1)


def labels_of(axis: Axis, room: int, width: int) -> str:
    """A label where each power of ten begins; those that collide are left out."""
    text = ""
    for power in range(axis.first, axis.last + 1):
        with_unit = not text or power % 3 == 0
        label = _label(power, with_unit=with_unit)
        at = min(round(axis.cell(10.0**power, room)), width - len(label))
        if not text or at > len(text):
            text = text.ljust(at) + label
    return text


def _label(power: int, *, with_unit: bool) -> str:
    base, unit = next(pair for pair in _UNITS if pair[0] <= power)
    number = f"{10 ** (power - base)}"
    return f"{number} {unit}" if with_unit else number
