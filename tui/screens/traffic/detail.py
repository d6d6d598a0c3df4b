"""The times of one command as a histogram, and the last run part by part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import ceil, floor, log10
from typing import NamedTuple

from rich.style import Style
from textual.strip import Strip

from backends.link.figures import lower_edge_us
from backends.state import LastRun
from backends.units import format_bytes, format_difference
from tui.model.best_choices import change
from tui.model.quantities import count_cell, ms_text, us_text
from tui.screens.traffic.table import TrafficRow
from tui.widgets.safe_text import safe_line
from tui.widgets.sources import predicted
from tui.widgets.strips import (
    Drawn,
    Part,
    StripWidget,
    block,
    clip,
    line,
    parts_width,
    wrapped,
)

NAME_CELLS = 14
FIGURE_CELLS = 9
TOLD_CELLS = 11
CHANGE_CELLS = 8
PASS = "a pass"

Figures = tuple[float, float] | None
"""Measured and predicted milliseconds; None where there is nothing of the kind."""


def detail_rows(run: LastRun) -> Iterator[tuple[str, Figures, Figures]]:
    """Each machine's computing and network, then the whole pass."""
    for part in run.parts:
        network = part.network_ms, part.predicted_network_ms
        yield (
            safe_line(part.name),
            (part.compute_ms, part.predicted_compute_ms),
            network if any(network) else None,
        )
    yield PASS, (run.measured_ms, run.predicted_ms), None


class LastRunTable(StripWidget):
    """A row for each machine and one for the pass; empty before the first run."""

    ALLOW_SELECT = True
    DEFAULT_CSS = "LastRunTable { height: auto; }"

    run: Drawn[LastRun | None] = Drawn(None, layout=True)

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self.display = False

    def show(self, run: LastRun | None) -> None:
        self.display = run is not None
        self.run = run

    def get_content_height(self, container: object, viewport: object, w: int) -> int:
        return len(self.run.parts) + 2 if self.run else 0

    def draw(self, width: int, height: int) -> list[Strip]:
        if self.run is None:
            return []
        titles = [
            f"{kind:>{FIGURE_CELLS}}{'predicted':>{TOLD_CELLS}}{'':{CHANGE_CELLS}}"
            for kind in ("compute", "network")
        ]
        heading = clip("last run, ms", NAME_CELLS) + "".join(titles)
        rows = [line([(heading, self.palette.dim)], width)]
        for name, compute, network in detail_rows(self.run):
            style = self.palette.strong if name == PASS else self.palette.text
            parts: list[Part] = [(clip(name, NAME_CELLS - 1) + " ", style)]
            parts += [*self._group(compute), *self._group(network)]
            rows.append(line(parts, width))
        return rows

    def _group(self, figures: Figures) -> Iterator[Part]:
        if figures is None:
            return
        measured_ms, predicted_ms = figures
        part = change(measured_ms, predicted_ms)
        told = predicted(ms_text(predicted_ms).strip())
        off = format_difference(part) if part is not None else ""
        yield f"{ms_text(measured_ms).strip():>{FIGURE_CELLS}}", self.palette.text
        yield f"{told:>{TOLD_CELLS}}", self.palette.dim
        yield f"{off:>{CHANGE_CELLS}}", self.palette.dim


Buckets = tuple[tuple[float, int], ...]

DECADES_MIN = 2
"""A narrow hill is not blown up to the whole width."""
FIRST_POWER_MIN = -1
"""The axis never begins below 100 ns: no command is that fast."""
_UNITS = ((6, "s"), (3, "ms"), (0, "µs"), (-3, "ns"))


class Axis(NamedTuple):
    """Powers of ten of a microsecond at both ends."""

    first: int
    last: int

    def cell(self, value_us: float, room: int) -> float:
        """The cell of a time from the left; a longer time stands at the end."""
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
    return [(lower_edge_us(upper), upper, count) for upper, count in buckets]


def heights_of(buckets: Buckets, axis: Axis, room: int) -> list[float]:
    """The count on each cell; a bucket is spread over the cells it covers."""
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
    largest = max(heights, default=0.0) or 1.0
    shown = [height if height > largest * 1e-9 else None for height in heights]
    return [
        "".join(block(height, largest, row, rows) for height in shown)
        for row in reversed(range(rows))
    ]


def place_of(value_us: float, axis: Axis, room: int) -> int:
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


GUTTER_CELLS = 9
"""Left of the bars: how many calls the highest stands for."""
END_CELLS = 2
"""Right of the axis, for the rest of its last label."""
FULL_ROWS = 7
"""With fewer, sizes give way to the bars."""
SCALE_ROWS = 2
"""Marks and axis."""
BAR_ROWS_MAX = 12
GAP: Part = ("   ", Style())
NOTHING_POINTED = "No command under the cursor."
NO_TIMES = "no reply to wait for, so no times"
NO_CALLS = "no times yet"


class Mark(NamedTuple):
    """One time on the axis: its sign, its name, its value."""

    sign: str
    name: str
    value_us: float


class TrafficDetail(StripWidget):
    """The row under the cursor: how many calls took how long."""

    ALLOW_SELECT = True
    DEFAULT_CSS = "TrafficDetail { height: 8; background: $background; }"

    row: Drawn[TrafficRow | None] = Drawn(None)

    def draw(self, width: int, height: int) -> list[Strip]:
        if self.row is None:
            return [line([(NOTHING_POINTED, self.palette.dim)], width)]
        marks = marks_of(self.row)
        heads = self._heads(self.row, self._legend(self.row, marks), width, height)
        if not marks:
            return heads
        spans = spans_of(self.row.figures.histogram_us)
        edges = [edge for lower, upper, _ in spans for edge in (lower, upper)]
        axis = axis_of([*edges, *(mark.value_us for mark in marks)])
        rows = min(max(height - len(heads) - SCALE_ROWS, 0), BAR_ROWS_MAX)
        return [
            *heads,
            *self._bars(self.row, marks, axis, rows, width),
            *self._scale(marks, axis, width),
        ]

    def _heads(
        self, row: TrafficRow, legend: list[Part], width: int, height: int
    ) -> list[Strip]:
        called = f"{safe_line(row.worker)} {safe_line(row.command)}"
        name = [(called, self.palette.strong), GAP]
        sizes = [(_sizes(row), self.palette.dim)]
        if height < FULL_ROWS:
            heads = [[*name, *legend]]
        elif parts_width([*name, *sizes]) > width:
            said = wrapped(_sizes(row), width, 2)
            heads = [name, *([(text, self.palette.dim)] for text in said), legend]
        else:
            heads = [[*name, *sizes], legend]
        return [line(parts, width) for parts in heads]

    def _legend(self, row: TrafficRow, marks: list[Mark]) -> list[Part]:
        if not marks:
            said = NO_TIMES if row.figures.count else NO_CALLS
            return [(said, self.palette.dim)]
        parts: list[Part] = []
        for mark, style in zip(marks, self._styles, strict=False):
            parts += [
                (mark.sign, style),
                (f" {mark.name} ", self.palette.dim),
                (f"{us_text(mark.value_us):<10}", self.palette.text),
            ]
        return parts

    def _bars(
        self, row: TrafficRow, marks: list[Mark], axis: Axis, rows: int, width: int
    ) -> list[Strip]:
        room = _room(width)
        heights = heights_of(row.figures.histogram_us, axis, room)
        ends = [place_of(mark.value_us, axis, room) + 1 for mark in marks]
        count = f"{count_cell(max(round(max(heights)), 1)):>{GUTTER_CELLS - 2}} ┤"
        drawn = []
        for number, text in enumerate(bars_of(heights, rows)):
            is_top = number == 0 and max(heights) > 0
            gutter = count if is_top else f"{'│':>{GUTTER_CELLS}}"
            parts = [(gutter, self.palette.dim), *self._coloured(text, ends)]
            drawn.append(line(parts, width))
        return drawn

    def _coloured(self, text: str, ends: list[int]) -> list[Part]:
        cuts = [0, *ends[:2], len(text)]
        return [
            (text[start:end], style)
            for start, end, style in zip(cuts, cuts[1:], self._styles, strict=False)
        ]

    def _scale(self, marks: list[Mark], axis: Axis, width: int) -> list[Strip]:
        palette, room = self.palette, _room(width)
        parts: list[Part] = [(" " * GUTTER_CELLS, palette.dim)]
        at = 0
        for mark, style in zip(marks, self._styles, strict=False):
            place = min(max(place_of(mark.value_us, axis, room), at), room - 1)
            parts += [("┈" * (place - at), palette.track), (mark.sign, style)]
            at = place + 1
        parts.append(("┈" * (room - at), palette.track))
        labels = labels_of(axis, room, room + END_CELLS)
        return [
            line(parts, width),
            line([(" " * GUTTER_CELLS + labels, palette.dim)], width),
        ]

    @property
    def _styles(self) -> tuple[Style, Style, Style]:
        return self.palette.ok, self.palette.accent, self.palette.warn


def marks_of(row: TrafficRow) -> list[Mark]:
    """The times that are known, shortest first."""
    figures = row.figures
    candidates = (
        ("●", "p50", figures.p50_us),
        ("◆", "p99", figures.p99_us),
        ("▲", "max", figures.max_us),
    )
    return [Mark(*found) for found in candidates if found[2] is not None]  # type: ignore[arg-type]


def _room(width: int) -> int:
    return max(width - GUTTER_CELLS - END_CELLS, 1)


def _sizes(row: TrafficRow) -> str:
    """``412 calls · 1.2 MiB up · 3.1 MiB down · 12 local · 1 error``."""
    figures = row.figures
    parts = [
        f"{count_cell(figures.count)} calls",
        f"{format_bytes(figures.bytes_up)} up",
        f"{format_bytes(figures.bytes_down)} down",
    ]
    if figures.wire_bytes_up is not None:
        parts.append(
            f"crossed ↑ {format_bytes(figures.wire_bytes_up)}"
            f" ↓ {format_bytes(figures.wire_bytes_down or 0)}"
        )
    if figures.answered:
        parts.append(f"{count_cell(figures.answered)} answered by its relay")
    if figures.errors:
        parts.append(f"{count_cell(figures.errors)} failed")
    return " · ".join(parts)
