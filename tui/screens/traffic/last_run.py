"""The last run part by part: measured, beside what was predicted before it."""

from __future__ import annotations

from collections.abc import Iterator

from textual.strip import Strip

from backends.state import LastRun
from backends.units import format_difference
from tui.model.best_choices import change
from tui.model.quantities import ms_text
from tui.widgets.safe_text import safe_line
from tui.widgets.sources import predicted
from tui.widgets.strips import Drawn, Part, StripWidget, clip, line

NAME_CELLS = 14
FIGURE_CELLS = 9
TOLD_CELLS = 11
CHANGE_CELLS = 8
PASS = "a pass"

Figures = tuple[float, float] | None
"""Measured and predicted milliseconds; None where there is nothing of the kind."""


def rows_of(run: LastRun) -> Iterator[tuple[str, Figures, Figures]]:
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
        for name, compute, network in rows_of(self.run):
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
