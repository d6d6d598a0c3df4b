"""The last minutes of the head and of each worker: small graphs beside the figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from backends.units import format_age
from tui.model.names import letter
from tui.model.quantities import (
    BYTES_PER_MB,
    bytes_text,
    common_unit,
    cores_text,
    megabytes_text,
    rtt_text,
    tick_text,
    unit_bytes,
)
from tui.model.token_time import scale_above
from tui.model.trends import HEAD, STEP_S, STEPS_MAX
from tui.widgets.blocks import block_row
from tui.widgets.rarely import Rarely
from tui.widgets.strips import Part, StripWidget, clip, line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from textual.strip import Strip

    from tui.model.trends import Trend

DRAW_GAP_S = 1.0
"""Between two pictures: their columns stand for seconds."""
NAME_CELLS = 17
VALUE_CELLS = 9
GRAPH_CELLS_MIN = 8
GAP_CELLS = 3


class FigureLook(NamedTuple):
    """The name, the text and the scale of one figure."""

    title: str
    text: Callable[[float | None], str]
    unit: Callable[[float], tuple[float, str]]
    """For the largest value: what one of the unit is, and its name."""


def _memory_unit(largest_bytes: float) -> tuple[float, str]:
    name = common_unit(largest_bytes)
    return unit_bytes(name), name


FIGURES = (
    FigureLook("compute/tok", rtt_text, lambda _: (1.0, "ms")),
    FigureLook("CPU cores", cores_text, lambda _: (1.0, "")),
    FigureLook("memory", bytes_text, _memory_unit),
    FigureLook("link", megabytes_text, lambda _: (BYTES_PER_MB, "MB/s")),
)
"""In the order of ``Reading``."""


class WorkerGraphs(StripWidget):
    """A row for each, a column for each figure; one scale for all rows of a figure."""

    DEFAULT_CSS = """
    WorkerGraphs {
        height: auto;
        margin: 1 0 0 0;
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self._workers: dict[str, Trend] = {}
        self._marks: Mapping[str, int] = {}
        self._head = ""
        self._drawing = Rarely(self, DRAW_GAP_S, self.redraw_changed)

    def show(
        self, workers: Mapping[str, Trend], marks: Mapping[str, int], head: str
    ) -> None:
        """Show histories; ``marks`` are colours by worker, ``head`` the head's name."""
        grew = len(workers) != len(self._workers)
        self._workers, self._marks, self._head = dict(workers), marks, head
        if grew:
            self._strips = None
            self.refresh(layout=True)
        elif self.display:
            self._drawing.ask()

    def get_content_height(self, container: object, viewport: object, w: int) -> int:
        return 1 + len(self._workers)

    def draw(self, width: int, height: int) -> list[Strip]:
        room = width - NAME_CELLS
        least = VALUE_CELLS + 1 + GRAPH_CELLS_MIN + GAP_CELLS
        n_figures = min(max(room // least, 1), len(FIGURES))
        cells = max(room // n_figures - VALUE_CELLS - 1 - GAP_CELLS, 1)
        tops = [self._top(figure) for figure in range(n_figures)]
        rows = [self._heading(tops, cells, width)]
        for name, trend in self._workers.items():
            parts = self._whose(name)
            for figure, top in enumerate(tops):
                parts += self._figure(trend, figure, top, cells, self._marks.get(name))
            rows.append(line(parts, width))
        return rows

    def _top(self, figure: int) -> float:
        """The upper end of a figure's scale: a round number of its unit."""
        known = [
            value
            for trend in self._workers.values()
            for value in trend.series(figure)
            if value is not None
        ]
        largest = max(known, default=0.0)
        unit, _ = FIGURES[figure].unit(largest)
        return scale_above(largest / unit) * unit

    def _heading(self, tops: list[float], cells: int, width: int) -> Strip:
        """The time the graphs span, then each figure and its scale."""
        dim = self.palette.dim
        span = format_age(min(cells, STEPS_MAX) * STEP_S)
        parts: list[Part] = [(clip(f"last {span}", NAME_CELLS), dim)]
        for figure, top in zip(FIGURES, tops, strict=False):
            unit, name = figure.unit(top)
            scale = f"0–{tick_text(top / unit)} {name}".rstrip()
            column = VALUE_CELLS + 1 + cells
            title = f"{figure.title:<{max(column - len(scale), 0)}}{scale}"
            parts.append((clip(title, column) + " " * GAP_CELLS, dim))
        return line(parts, width)

    def _whose(self, name: str) -> list[Part]:
        mark = self._marks.get(name)
        style = self.palette.dim if mark is None else self.palette.device(mark)
        sign = "·" if mark is None else letter(mark)
        said = name if name != HEAD else f"{self._head} (head)"
        return [(f"{sign} ", style), (clip(said, NAME_CELLS - 2), self.palette.text)]

    def _figure(
        self, trend: Trend, figure: int, top: float, cells: int, mark: int | None
    ) -> list[Part]:
        text = FIGURES[figure].text(trend.now[figure])
        graph = block_row(trend.series(figure), top, cells)
        style = self.palette.graph if mark is None else self.palette.device(mark)
        return [
            (f"{text:>{VALUE_CELLS}} ", self.palette.text),
            (graph + " " * GAP_CELLS, style),
        ]
