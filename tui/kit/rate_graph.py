"""Tokens per second over the last minutes: an axis from 0, gaps for pauses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tui.kit.blocks import block
from tui.kit.strips import Part, StripWidget, line

if TYPE_CHECKING:
    from textual.strip import Strip

    from tui.work.trends import RateHistory

AXIS_WIDTH = 5
_STEPS = (5, 10, 20, 30, 50, 75)


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

    def __init__(self, history: RateHistory) -> None:
        """Make a graph of what a history holds."""
        super().__init__()
        self.history = history
        self._drawn = -1

    def show(self, history: RateHistory) -> None:
        """Show a history; nothing is drawn when nothing in it changed."""
        if (history, history.version) != (self.history, self._drawn):
            self.history, self._drawn = history, history.version
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
        above = height - 1 - row
        cells = "".join(block(rate, top, above, height) for rate in shown)
        return [(blank, self.palette.dim), (cells, self.palette.graph)]
