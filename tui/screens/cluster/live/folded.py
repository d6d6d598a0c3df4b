"""Live folded into one line, where the rows are needed for the conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.reactive import reactive

from backends.link.figures import token_totals
from backends.units import format_rate
from tui.model.quantities import bytes_text, ms_text, newest_rate, totals_trips_text
from tui.widgets.blocks import block_row
from tui.widgets.rate_graph import axis_top
from tui.widgets.strips import Part, StripWidget, line, parts_width

if TYPE_CHECKING:
    from textual.strip import Strip

    from backends.state import ClusterSnapshot
    from tui.model.trends import RateHistory

GRAPH_CELLS_MIN = 12
GAP_CELLS = 2


class LiveLine(StripWidget):
    """The speed and its graph; then, as there is room, what a token takes."""

    DEFAULT_CSS = """
    LiveLine {
        height: 1;
    }
    """

    figures: reactive[tuple[tuple[str, str], ...]] = reactive(
        (), init=False, repaint=False
    )
    """Labels and values of constant width, the most telling first."""

    def __init__(self, history: RateHistory) -> None:
        super().__init__()
        self._history = history
        self._drawn = -1

    def show(self, snapshot: ClusterSnapshot, history: RateHistory) -> None:
        """Show a snapshot and the speeds so far."""
        self.figures = line_figures(snapshot)
        if (history, history.version) != (self._history, self._drawn):
            self._history, self._drawn = history, history.version
            self.redraw_changed()

    def watch_figures(self) -> None:
        self.redraw_changed()

    def draw(self, width: int, height: int) -> list[Strip]:
        title: Part = ("Live  ", self.palette.strong)
        figures = self._fitting(width - len(title[0]) - GRAPH_CELLS_MIN)
        cells = width - len(title[0]) - parts_width(figures) - GAP_CELLS
        shown = [*self._history.columns][-max(cells, 1) :]
        top = axis_top(max((rate for rate in shown if rate is not None), default=0))
        graph = block_row(shown, top, cells) + " " * GAP_CELLS
        graphed = (graph, self.palette.graph)
        return [line([title, *figures[:2], graphed, *figures[2:]], width)]

    def _fitting(self, room: int) -> list[Part]:
        """Label and value of as many figures as have room; the speed in any case."""
        parts: list[Part] = []
        for label, value in self.figures:
            shown = f"{label} ", f"{value}  "
            if parts and len(shown[0]) + len(shown[1]) > room:
                break
            room -= len(shown[0]) + len(shown[1])
            parts += [(shown[0], self.palette.dim), (shown[1], self.palette.text)]
        return parts


def line_figures(snapshot: ClusterSnapshot) -> tuple[tuple[str, str], ...]:
    """Speed, then time, trips and bytes of a token."""
    speed, totals = snapshot.speed, token_totals(snapshot.links)
    name = "last    " if speed.tok_per_s is None else "generate"
    figures = [(name, f"{format_rate(newest_rate(speed))} tok/s")]
    if snapshot.links:
        figures += [
            ("pass p50", f"{ms_text(totals.p50_ms).strip():>5} ms"),
            ("trips/tok", f"{totals_trips_text(totals):>4}"),
            ("up/tok", f"{bytes_text(totals.bytes_up):>8}"),
            ("down/tok", f"{bytes_text(totals.bytes_down):>8}"),
        ]
    return tuple(figures)
