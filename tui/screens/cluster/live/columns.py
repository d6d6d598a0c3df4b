"""The figures of a serving cluster as columns: what there is, and what has room."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len
from textual.reactive import reactive

from backends.link.figures import token_totals
from backends.link.way import WayKind
from backends.units import format_bytes, format_rate
from tui.model.launch_settings import slot_ctx_size
from tui.model.names import by_role
from tui.model.quantities import (
    UNKNOWN,
    bytes_text,
    newest_rate,
    rate_text,
    rtt_text,
    short_count,
    silence_text,
    totals_trips_text,
)
from tui.widgets.safe_text import safe_line
from tui.widgets.strips import Part, StripWidget, clip, line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from textual.strip import Strip

    from backends.state import ClusterSnapshot, Link

GAP_CELLS = 2
GRAPH_CELLS = 22
"""Room the graph gets before figures that could also be read elsewhere."""
GRAPH_CELLS_MIN = 14
SHORT_NAME_CELLS = 7
NAME_CELLS_MAX = 12
COUNT_MAX = 100_000
"""From here on a number of tokens is shown in thousands."""


class Figure(NamedTuple):
    """One figure of a column."""

    label: str
    value: str
    warn: bool = False


class LiveColumn(NamedTuple):
    """Figures below one another; widths never depend on the values."""

    label_cells: int
    value_cells: int
    figures: tuple[Figure, ...]

    @property
    def cells(self) -> int:
        """The whole width."""
        return self.label_cells + self.value_cells


class LinkLook(NamedTuple):
    """The level of detail of each link."""

    name_cells: int
    rate_cells: int
    """0: no throughput; few: both ways together."""
    way_cells: int = 0
    """0: not what it leads through."""

    @property
    def value_cells(self) -> int:
        """Round trip and throughput, the first named where there are both."""
        name = len("RTT ") if self.rate_cells else 0
        return name + RTT_CELLS + self.rate_cells


RTT_CELLS, WAY_CELLS = 7, 7
WIRE_CELLS, TRIPS_CELLS = 8, 11
"""The latter where trips are of a token and of its pass: ``0.55(10.0)``."""
NO_RATE, SUM_CELLS, EACH_WAY_CELLS = 0, 11, 19


def columns_of(snapshot: ClusterSnapshot, room: int, rows: int) -> list[LiveColumn]:
    """The most telling columns that have room beside the graph.

    What only a relay can tell goes first, what the peers' pane also shows goes last.
    """
    columns: list[LiveColumn] = []
    for columns, graph_cells in _layouts(snapshot, rows):
        if columns_width(columns) + graph_cells <= room:
            break
    return columns


def columns_width(columns: Sequence[LiveColumn]) -> int:
    """Cells of the columns and the gaps after them."""
    return sum(column.cells + GAP_CELLS for column in columns)


def _layouts(
    snapshot: ClusterSnapshot, rows: int
) -> Iterator[tuple[list[LiveColumn], int]]:
    """Columns and the graph's least room beside them, from most to least."""
    # One after the other: the first has room on most terminals.
    links = snapshot.links
    needed = -(-len(links) // rows)
    speed, house = _speed_column(snapshot), _house_column(snapshot)
    first = [speed, _wire_column(snapshot)] if links else [speed]
    short = [speed, _wire_column(snapshot, is_short=True)] if links else [speed]
    full = _link_columns(links, _look(links, EACH_WAY_CELLS), rows, needed)
    yield [*first, *full, house, _process_column(snapshot, rows)], GRAPH_CELLS
    yield [*first, *full, house], GRAPH_CELLS
    look = _look(links, SUM_CELLS)
    some = _link_columns(links, look, rows, needed)
    yield [*first, *some, house], GRAPH_CELLS_MIN if look.way_cells else GRAPH_CELLS
    for n_columns in range(needed, 0, -1):
        for each in (look, look._replace(way_cells=0)):
            fewer = _link_columns(links, each, rows, n_columns)
            yield [*first, *fewer], GRAPH_CELLS_MIN
    few = _link_columns(links, LinkLook(SHORT_NAME_CELLS, NO_RATE), rows, 1)
    yield [*first, *few], GRAPH_CELLS_MIN
    for least in ([*first, *few], [*short, *few], first, short, [speed]):
        yield least, -GAP_CELLS


# --- the columns ----------------------------------------------------------------


def _speed_column(snapshot: ClusterSnapshot) -> LiveColumn:
    speed = snapshot.speed
    ctx_size = slot_ctx_size(snapshot.plan) if snapshot.plan else 0
    counts = (short_count(n, COUNT_MAX) for n in (speed.ctx_used, ctx_size))
    figures = (
        Figure(
            "last" if speed.tok_per_s is None else "generate",
            f"{format_rate(newest_rate(speed))} tok/s",
        ),
        Figure("prompt", f"{format_rate(speed.prompt_tok_per_s)} tok/s"),
        Figure("context", "/".join(counts)),
    )
    return LiveColumn(9, 11, figures)


def _wire_column(snapshot: ClusterSnapshot, *, is_short: bool = False) -> LiveColumn:
    """The cost of a token on the wire, all workers together.

    If tokens may share a pass, the trips of a pass are shown too, except in a short
    column.
    """
    speed, totals = snapshot.speed, token_totals(snapshot.links)
    has_room = not is_short and (speed.speculative or speed.slots > 1)
    trips = totals_trips_text(totals)
    figures = (
        Figure("trips/tok", trips if has_room else trips.partition("(")[0]),
        Figure("up/tok", bytes_text(totals.bytes_up)),
        Figure("down/tok", bytes_text(totals.bytes_down)),
    )
    return LiveColumn(9, TRIPS_CELLS if has_room else WIRE_CELLS, figures)


def _look(links: Sequence[Link], rate_cells: int) -> LinkLook:
    longest = max((cell_len(safe_line(link.worker)) for link in links), default=0)
    # Where none leads to another machine there is nothing to tell apart.
    far = any(link.way not in ("", WayKind.LOCAL) for link in links)
    name_cells = min(max(longest, 4), NAME_CELLS_MAX) + 1
    return LinkLook(name_cells, rate_cells, WAY_CELLS if far else 0)


def _link_columns(
    links: Sequence[Link], look: LinkLook, rows: int, n_columns: int
) -> list[LiveColumn]:
    """The links below one another; those without room are counted: ``+2``."""
    room = rows * n_columns
    figures = [_link_figure(link, look) for link in links]
    if len(figures) > room:
        hidden = len(figures) - room + 1
        figures[room - 1 :] = [Figure(f"+{hidden}", "")]
    several = iter(figures)
    cells = look.name_cells + look.way_cells, look.value_cells
    return [
        LiveColumn(*cells, (first, *islice(several, rows - 1))) for first in several
    ]


def _link_figure(link: Link, look: LinkLook) -> Figure:
    label = safe_line(link.worker)
    if look.way_cells:
        label = f"{clip(label, look.name_cells - 1)} {link.way}"
    if silence := silence_text(link):
        cells = look.value_cells
        # Where there is room for the age alone, its colour says the rest.
        said = silence if len(silence) <= cells else silence.removeprefix("silent ")
        return Figure(label, f"{said:>{cells}}", warn=True)
    rate = rate_text(link, each_way=look.rate_cells == EACH_WAY_CELLS)
    value = f"{rtt_text(link.rtt_ms):>{RTT_CELLS}}"
    if look.rate_cells:
        value = f"RTT {value}{rate:>{look.rate_cells}}"
    return Figure(label, value, warn=link.mode == "plain")


def _house_column(snapshot: ClusterSnapshot) -> LiveColumn:
    """The other activity of llama-server, and its memory on this machine."""
    known = [p.rss_bytes for p in snapshot.processes if p.rss_bytes is not None]
    figures = (
        Figure("in flight", f"{snapshot.speed.requests_active}"),
        Figure("memory", bytes_text(sum(known) if known else None)),
        Figure("up since", _clock(snapshot.served_since)),
    )
    return LiveColumn(9, 8, figures)


def _process_column(snapshot: ClusterSnapshot, rows: int) -> LiveColumn:
    known = [p for p in snapshot.processes if p.rss_bytes is not None]
    processes = by_role(known)
    figures = (
        Figure(safe_line(process.name), format_bytes(process.rss_bytes or 0))
        for process in processes[:rows]
    )
    return LiveColumn(13, 9, tuple(figures))


# --- texts ----------------------------------------------------------------------


def _clock(at: float | None) -> str:
    return UNKNOWN if at is None else time.strftime("%H:%M", time.localtime(at))


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
