"""How long one command takes: its typical, its rare and its longest time."""

from __future__ import annotations

from math import log10
from typing import TYPE_CHECKING, NamedTuple

from rich.style import Style
from textual.reactive import reactive

from backends.units import format_bytes
from tui.widgets.log_text import clean_line
from tui.widgets.strips import Part, StripWidget, line, parts_width, wrapped
from tui.widgets.traffic_rows import TrafficRow, count_cell, us_text

if TYPE_CHECKING:
    from textual.strip import Strip

DECADES = ("1 µs", "10", "100", "1 ms", "10", "100", "1 s")
SPAN = len(DECADES) - 1
END_CELLS = 2
"""Right of the axis, for the rest of its last label."""
FULL_ROWS = 4
"""With fewer there is no row for the sizes."""
GAP: Part = ("   ", Style())
NOTHING_POINTED = "No command under the cursor."
NO_TIMES = "no times yet"


class Mark(NamedTuple):
    """One time on the axis: its sign, its name, its value."""

    sign: str
    name: str
    value_us: float


class TrafficDetail(StripWidget):
    """The row under the cursor on a logarithmic axis from 1 µs to 1 s."""

    DEFAULT_CSS = """
    TrafficDetail {
        height: 4;
        background: $background;
    }
    """

    row: reactive[TrafficRow | None] = reactive(None, init=False)
    """What is shown."""

    def watch_row(self) -> None:
        """Another row, or newer figures."""
        self.redraw()

    def draw(self, width: int, height: int) -> list[Strip]:
        """What it is, its times, where they stand, the axis."""
        if self.row is None:
            return [line([(NOTHING_POINTED, self.palette.dim)], width)]
        marks = marks_of(self.row)
        room = max(width - END_CELLS, SPAN + 1)
        return [
            *self._heads(self.row, self._legend(marks), width, height),
            line(self._bar(marks, room), width),
            line([(decades_text(room, width), self.palette.dim)], width),
        ]

    def _heads(
        self, row: TrafficRow, legend: list[Part], width: int, height: int
    ) -> list[Strip]:
        """Name, sizes and times in as many lines as there are."""
        name = [(_name(row), self.palette.strong), GAP]
        sizes = [(_sizes(row), self.palette.dim)]
        if height < FULL_ROWS:
            heads = [[*name, *legend]]
        elif height > FULL_ROWS and parts_width([*name, *sizes]) > width:
            said = wrapped(_sizes(row), width, height - FULL_ROWS + 1)
            heads = [name, *([(text, self.palette.dim)] for text in said), legend]
        else:
            heads = [[*name, *sizes], legend]
        return [line(parts, width) for parts in heads]

    def _legend(self, marks: list[Mark]) -> list[Part]:
        """Sign, name and value of each time."""
        if not marks:
            return [(NO_TIMES, self.palette.dim)]
        parts: list[Part] = []
        for mark, style in zip(marks, self._styles, strict=False):
            parts += [
                (mark.sign, style),
                (f" {mark.name} ", self.palette.dim),
                (f"{us_text(mark.value_us):<10}", self.palette.text),
            ]
        return parts

    def _bar(self, marks: list[Mark], room: int) -> list[Part]:
        """A thick line to p50, a thinner one to p99, a dotted one to the longest."""
        parts: list[Part] = []
        at = 0
        for mark, run, style in zip(marks, "━─┄", self._styles, strict=False):
            place = max(place_of(mark.value_us, room), at)
            parts += [(run * (place - at), style), (mark.sign, style)]
            at = place + 1
        return [*parts, ("┈" * (room - at), self.palette.track)]

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


def place_of(value_us: float, room: int) -> int:
    """The cell of a time; what is off the axis stands at its end."""
    decade = min(max(log10(max(value_us, 1.0)), 0.0), float(SPAN))
    return round(decade / SPAN * (room - 1))


def decades_text(room: int, width: int) -> str:
    """The axis: a label where each power of ten is, those left out that collide."""
    text = ""
    for power, label in enumerate(DECADES):
        at = place_of(10.0**power, room)
        start = min(at, width - len(label))
        if not text or start > len(text):
            text = text.ljust(start) + label
    return text


def _name(row: TrafficRow) -> str:
    return f"{clean_line(row.worker)} {clean_line(row.command)}"


def _sizes(row: TrafficRow) -> str:
    """``412 calls · 1.2 MiB up · 3.1 MiB down · 12 local · 1 error``."""
    figures = row.figures
    parts = [
        f"{count_cell(figures.count)} calls",
        f"{format_bytes(figures.bytes_up)} up",
        f"{format_bytes(figures.bytes_down)} down",
    ]
    if figures.answered:
        parts.append(f"{count_cell(figures.answered)} answered by its relay")
    if figures.errors:
        parts.append(f"{count_cell(figures.errors)} failed")
    return " · ".join(parts)
