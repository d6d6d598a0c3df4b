"""The figures of a serving cluster, in fixed columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.reactive import reactive

from tui.kit.strips import Part, StripWidget, clip, line
from tui.screens.cluster.live.columns import GAP_CELLS, LiveColumn

if TYPE_CHECKING:
    from textual.strip import Strip


class LiveFigures(StripWidget):
    """Labels at the left of their columns, values at the right."""

    ALLOW_SELECT = True
    DEFAULT_CSS = """
    LiveFigures {
        height: 1fr;
        width: 22;
    }
    """

    columns: reactive[list[LiveColumn]] = reactive(list, init=False, repaint=False)
    """What is shown."""

    def draw(self, width: int, height: int) -> list[Strip]:
        return [line(self._row(row), width) for row in range(height)]

    def watch_columns(self) -> None:
        self.redraw_changed()

    def _row(self, row: int) -> list[Part]:
        gap = (" " * GAP_CELLS, self.palette.dim)
        cells = [self._cell(column, row) for column in self.columns]
        return [part for cell in cells for part in (*cell, gap)][:-1]

    def _cell(self, column: LiveColumn, row: int) -> list[Part]:
        palette = self.palette
        if row >= len(column.figures):
            return [(" " * column.cells, palette.dim)]
        figure = column.figures[row]
        value = f"{figure.value:>{column.value_cells}}"
        return [
            (
                clip(figure.label, column.label_cells),
                palette.warn if figure.warn else palette.dim,
            ),
            (clip(value, column.value_cells), palette.text),
        ]
