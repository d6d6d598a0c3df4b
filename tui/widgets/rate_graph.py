"""Tokens per second over the last minutes: an axis from 0, gaps for pauses."""

from __future__ import annotations

from textual.strip import Strip

from tui.model.trends import RateHistory
from tui.widgets.strips import Drawn, Part, StripWidget, block, line

AXIS_WIDTH = 5
TIMES_FROM = 5
"""Rows from which one is for the times."""
TIME_STEP = 20
_STEPS = (5, 10, 20, 30, 50, 75)


def axis_top(largest: float) -> int:
    """A round number at or above the largest value shown."""
    scale = 1
    while True:
        for step in _STEPS:
            if largest <= step * scale:
                return step * scale
        scale *= 20 if scale == 1 else 10


def times_text(seconds: int) -> str:
    """``40 s ago      20 s ago        now``: one column a second."""
    end = "now"
    text = ""
    for ago in range(seconds // TIME_STEP * TIME_STEP, 0, -TIME_STEP):
        text = f"{text.ljust(seconds - ago)}╷{ago} s ago"
    return f"{text.ljust(seconds - len(end))[: seconds - len(end)]}{end}"


class RateGraph(StripWidget):
    """The history as columns of blocks, newest at the right."""

    DEFAULT_CSS = "RateGraph { height: 1fr; width: 1fr; }"

    history: Drawn[RateHistory] = Drawn(RateHistory())
    version: Drawn[int] = Drawn(0)
    """Of the history: nothing is drawn while it is the same."""

    def draw(self, width: int, height: int) -> list[Strip]:
        room = width - AXIS_WIDTH
        if room < 1 or height < 1:
            return []
        if with_times := height >= TIMES_FROM:
            height -= 1
        shown = [*self.history.columns][-room:]
        top = axis_top(max((rate for rate in shown if rate is not None), default=0))
        blank = (" " * (room - len(shown)), self.palette.dim)
        rows = []
        for row in range(height):
            above = height - 1 - row
            cells = "".join(block(rate, top, above, height) for rate in shown)
            axis = self._axis(row, height, top, room)
            rows.append(line([axis, blank, (cells, self.palette.graph)], width))
        if with_times:
            text = " " * AXIS_WIDTH + times_text(room)
            rows.append(line([(text, self.palette.dim)], width))
        return rows

    def _axis(self, row: int, height: int, top: int, room: int) -> Part:
        if row == 0:
            text = f"{top:>{AXIS_WIDTH - 2}} ┤"
        elif row == height - 1:
            text = f"{0:>{AXIS_WIDTH - 2}} ┤"
        elif row == 1:
            text = f"{f'{room}s│':>{AXIS_WIDTH}}"
        else:
            text = f"{'│':>{AXIS_WIDTH}}"
        return text, self.palette.dim
