"""Tokens per second over the last minutes: an axis from 0, gaps for pauses."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from tui.widgets.strips import Part, StripWidget, line

if TYPE_CHECKING:
    from textual.strip import Strip

COLUMNS_MAX = 400
BLOCKS = " ▁▂▃▄▅▆▇█"
AXIS_WIDTH = 5
_STEPS = (5, 10, 20, 30, 50, 75)


class RateHistory:
    """One figure per second of generating; pauses collapse into one gap."""

    def __init__(self) -> None:
        """Begin empty."""
        self.columns: deque[float | None] = deque(maxlen=COLUMNS_MAX)
        self._second = -1

    def push(self, at: float, rate: float | None) -> bool:
        """Take a sample of a moment; True when a column changed."""
        if rate is None:
            return self._gap()
        second = int(at)
        if second == self._second and self.columns and self.columns[-1] is not None:
            changed = self.columns[-1] != rate
            self.columns[-1] = rate
            return changed
        self._second = second
        self.columns.append(rate)
        return True

    def _gap(self) -> bool:
        if not self.columns or self.columns[-1] is None:
            return False
        self.columns.append(None)
        return True


def axis_top(largest: float) -> int:
    """A round number at or above the largest value shown."""
    scale = 1
    while True:
        for step in _STEPS:
            if largest <= step * scale:
                return step * scale
        scale *= 20 if scale == 1 else 10


class RateGraph(StripWidget):
    """The history as columns of blocks, newest at the right."""

    DEFAULT_CSS = """
    RateGraph {
        height: 1fr;
        width: 1fr;
    }
    """

    def __init__(self) -> None:
        """Make a graph without history."""
        super().__init__()
        self.history = RateHistory()

    def push(self, at: float, rate: float | None) -> None:
        """Take a sample; nothing is drawn when nothing changed."""
        if self.history.push(at, rate):
            self.redraw()

    def draw(self, width: int, height: int) -> list[Strip]:
        """Axis at the left, one column per second."""
        room = width - AXIS_WIDTH
        if room < 1 or height < 1:
            return []
        shown = [*self.history.columns][-room:]
        top = axis_top(max((rate for rate in shown if rate is not None), default=0))
        blank = " " * (room - len(shown))
        return [
            line(
                [
                    self._axis(row, height, top),
                    *self._row(shown, row, height, top, blank),
                ],
                width,
            )
            for row in range(height)
        ]

    def _axis(self, row: int, height: int, top: int) -> Part:
        if row == 0:
            text = f"{top:>{AXIS_WIDTH - 2}} ┤"
        elif row == height - 1:
            text = f"{0:>{AXIS_WIDTH - 2}} ┤"
        else:
            text = f"{'│':>{AXIS_WIDTH}}"
        return text, self.palette.dim

    def _row(
        self, shown: list[float | None], row: int, height: int, top: int, blank: str
    ) -> list[Part]:
        base = (height - 1 - row) * 8
        cells = "".join(_cell(rate, base, top, height) for rate in shown)
        return [(blank, self.palette.dim), (cells, self.palette.graph)]


def _cell(rate: float | None, base: int, top: int, height: int) -> str:
    if rate is None:
        return " "
    eighths = round(rate / top * height * 8)
    if base == 0:
        eighths = max(eighths, 1)
    return BLOCKS[min(max(eighths - base, 0), 8)]
