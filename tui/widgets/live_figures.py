"""The figures of a serving cluster, in fixed columns."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from textual.reactive import reactive

from backends.state import ProcessRole
from backends.units import format_bytes, format_rate
from tui.widgets.strips import Part, StripWidget, clip, line

if TYPE_CHECKING:
    from textual.strip import Strip

    from backends.state import ClusterSnapshot

LABEL_WIDTH = 10
PROCESS_WIDTH = 14
COLUMN_WIDTH = 26
COLUMNS_MAX = 3
GRAPH_WIDTH_MIN = 24

_ROLES = (ProcessRole.SERVER, ProcessRole.WORKER, ProcessRole.OTHER, ProcessRole.RELAY)

Figure = tuple[str, str]
NO_FIGURE: Figure = ("", "")


class LiveFigures(StripWidget):
    """Speed, context, requests, memory: as many columns of three as fit."""

    DEFAULT_CSS = """
    LiveFigures {
        height: 3;
        width: 52;
        min-width: 26;
    }
    """

    figures: reactive[tuple[Figure, ...]] = reactive((), init=False)
    """Label and value, three to a column."""

    def draw(self, width: int, height: int) -> list[Strip]:
        """Column by column, three figures each."""
        n_columns = max(1, min(width // COLUMN_WIDTH, COLUMNS_MAX))
        shown = [*self.figures, *([NO_FIGURE] * 9)]
        return [
            line(
                [
                    part
                    for n in range(n_columns)
                    for part in self._cell(n, shown[n * 3 + row])
                ],
                width,
            )
            for row in range(3)
        ]

    def watch_figures(self) -> None:
        """A figure changed."""
        self.redraw()

    def _cell(self, column: int, figure: Figure) -> list[Part]:
        label, value = figure
        label_width = LABEL_WIDTH if column < 2 else PROCESS_WIDTH
        return [
            (clip(label, label_width), self.palette.dim),
            (clip(value, COLUMN_WIDTH - label_width), self.palette.text),
        ]


def figures_width(width: int) -> int:
    """Columns for the figures, so that enough is left for the graph."""
    n_columns = (width - GRAPH_WIDTH_MIN) // COLUMN_WIDTH
    return max(1, min(n_columns, COLUMNS_MAX)) * COLUMN_WIDTH


def figures_of(snapshot: ClusterSnapshot) -> tuple[Figure, ...]:
    """What the strip shows of a snapshot, as text of constant width."""
    speed = snapshot.speed
    now = speed.tok_per_s
    rate = speed.last_tok_per_s if now is None else now
    ctx_size = snapshot.plan.ctx_size if snapshot.plan else 0
    memory = [p for p in snapshot.processes if p.rss_bytes is not None]
    memory.sort(key=lambda process: _ROLES.index(process.role))
    total = sum(process.rss_bytes or 0 for process in memory)
    return (
        ("generate" if now is not None else "last", f"{format_rate(rate)} tok/s"),
        ("prompt", f"{format_rate(speed.prompt_tok_per_s)} tok/s"),
        ("context", f"{speed.ctx_used:>5} of {ctx_size}"),
        ("requests", f"{speed.requests_active:>5} active"),
        ("memory", f"{format_bytes(total) if memory else '—':>9}"),
        ("since", f"{_clock(snapshot.served_since):>5}"),
        *(
            (process.name, f"{format_bytes(process.rss_bytes or 0):>9}")
            for process in memory[:3]
        ),
    )


def _clock(at: float | None) -> str:
    return "—" if at is None else time.strftime("%H:%M", time.localtime(at))
