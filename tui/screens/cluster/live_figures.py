"""The figures of a serving cluster: columns, token bar, graphs, one folded line."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from textual.strip import Strip

from backends.link.figures import TokenTotals, lab_changed, why_no_link
from backends.link.transport import TransportKind
from backends.split.buffers import slot_tokens
from backends.state import ClusterSnapshot, Link
from backends.units import format_age, format_rate
from tui.model.facts import LiveFacts
from tui.model.names import by_role, letter
from tui.model.quantities import (
    BYTES_PER_MB,
    UNKNOWN,
    bytes_text,
    common_unit,
    cores_text,
    megabytes_text,
    ms_text,
    newest_rate,
    rate_text,
    rtt_text,
    shared_text,
    short_count,
    silence_text,
    tick_text,
    totals_trips_text,
    unit_bytes,
)
from tui.model.token_time import PARTS, cells_of, scale_above
from tui.model.trends import HEAD, STEP_S, STEPS_MAX, RateHistory, Trend
from tui.widgets.rate_graph import axis_top
from tui.widgets.safe_text import safe_line
from tui.widgets.strips import (
    Drawn,
    Part,
    StripWidget,
    block_row,
    clip,
    fitting,
    line,
    parts_width,
)
from tui.widgets.throttle import Throttle

GAP_CELLS = 2
GRAPH_CELLS = 22
"""Room the graph gets before figures that could also be read elsewhere."""
GRAPH_CELLS_MIN = 14
SHORT_NAME_CELLS = 7
NAME_CELLS_MAX = 12
COUNT_MAX = 100_000
"""From here on a number of tokens is shown in thousands."""


class Figure(NamedTuple):
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
WIRE_CELLS, TRIPS_CELLS = 8, 16
"""The latter where trips are of a token and of its pass: ``0.55, 10.0/pass``."""
NO_RATE, SUM_CELLS, EACH_WAY_CELLS = 0, 11, 19


def columns_of(facts: LiveFacts, room: int, rows: int) -> list[LiveColumn]:
    """The most telling columns that have room beside the graph.

    What only a relay can tell goes first, what the peers' pane also shows goes last.
    """
    columns: list[LiveColumn] = []
    for columns, graph_cells in _layouts(facts, rows):
        if columns_width(columns) + graph_cells <= room:
            break
    return columns


def columns_width(columns: Sequence[LiveColumn]) -> int:
    return sum(column.cells + GAP_CELLS for column in columns)


def _layouts(facts: LiveFacts, rows: int) -> Iterator[tuple[list[LiveColumn], int]]:
    """Columns and the graph's least room beside them, from most to least."""
    # One after the other: the first has room on most terminals.
    snapshot, links = facts.snapshot, facts.snapshot.links
    needed = -(-len(links) // rows)
    speed, house = _speed_column(snapshot), _house_column(snapshot)
    first = [speed, _wire_column(facts)] if links else [speed]
    short = [speed, _wire_column(facts, is_short=True)] if links else [speed]
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
    plan = snapshot.plan
    ctx_size = slot_tokens(plan.ctx_size, plan.server) if plan else 0
    counts = (short_count(n, COUNT_MAX) for n in (speed.ctx_used, ctx_size))
    which = "last" if speed.tok_per_s is None else "generate"
    figures = (
        Figure(which, f"{format_rate(newest_rate(speed))} tok/s"),
        Figure("prompt", f"{format_rate(speed.prompt_tok_per_s)} tok/s"),
        Figure("context", "/".join(counts)),
    )
    return LiveColumn(9, 11, figures)


def _wire_column(facts: LiveFacts, *, is_short: bool = False) -> LiveColumn:
    """The cost of a token on the wire, all workers together.

    If tokens may share a pass, the trips of a pass are shown too, except in a short
    column.
    """
    speed, totals = facts.snapshot.speed, facts.totals
    has_room = not is_short and (speed.speculative or speed.slots > 1)
    trips = totals_trips_text(totals)
    figures = (
        Figure("trips/tok", trips if has_room else trips.partition(",")[0]),
        Figure("up/tok", bytes_text(totals.bytes_up)),
        Figure("down/tok", bytes_text(totals.bytes_down)),
    )
    return LiveColumn(9, TRIPS_CELLS if has_room else WIRE_CELLS, figures)


def _look(links: Sequence[Link], rate_cells: int) -> LinkLook:
    longest = max((cell_len(safe_line(link.worker)) for link in links), default=0)
    # Where none leads to another machine there is nothing to tell apart.
    far = any(link.way not in ("", TransportKind.LOCAL) for link in links)
    name_cells = min(max(longest, 4), NAME_CELLS_MAX) + 1
    return LinkLook(name_cells, rate_cells, WAY_CELLS if far else 0)


def _link_columns(
    links: Sequence[Link], look: LinkLook, rows: int, n_columns: int
) -> list[LiveColumn]:
    room = rows * n_columns
    figures = [_link_figure(link, look) for link in links]
    if len(figures) > room:
        hidden = len(figures) - room + 1
        figures[room - 1 :] = [Figure(f"+{hidden}", "")]
    cells = look.name_cells + look.way_cells, look.value_cells
    starts = range(0, len(figures), rows)
    return [LiveColumn(*cells, tuple(figures[at : at + rows])) for at in starts]


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
    known = [p.rss_bytes for p in snapshot.processes if p.rss_bytes is not None]
    at = snapshot.served_since
    since = UNKNOWN if at is None else time.strftime("%H:%M", time.localtime(at))
    figures = (
        Figure("in flight", f"{snapshot.speed.requests_active}"),
        Figure("memory", bytes_text(sum(known) if known else None)),
        Figure("up since", since),
    )
    return LiveColumn(9, 8, figures)


def _process_column(snapshot: ClusterSnapshot, rows: int) -> LiveColumn:
    known = [p for p in snapshot.processes if p.rss_bytes is not None]
    figures = (
        Figure(safe_line(process.name), bytes_text(process.rss_bytes))
        for process in by_role(known)[:rows]
    )
    return LiveColumn(13, 9, tuple(figures))


class LiveFigures(StripWidget):
    """Labels at the left of their columns, values at the right."""

    ALLOW_SELECT = True
    DEFAULT_CSS = "LiveFigures { height: 1fr; width: 22; }"

    columns: Drawn[list[LiveColumn]] = Drawn([])

    def draw(self, width: int, height: int) -> list[Strip]:
        return [line(self._row(row), width) for row in range(height)]

    def _row(self, row: int) -> list[Part]:
        gap = (" " * GAP_CELLS, self.palette.dim)
        cells = [self._cell(column, row) for column in self.columns]
        return [part for cell in cells for part in (*cell, gap)][:-1]

    def _cell(self, column: LiveColumn, row: int) -> list[Part]:
        palette = self.palette
        if row >= len(column.figures):
            return [(" " * column.cells, palette.dim)]
        label, value, warn = column.figures[row]
        value = f"{value:>{column.value_cells}}"
        return [
            (clip(label, column.label_cells), palette.warn if warn else palette.dim),
            (clip(value, column.value_cells), palette.text),
        ]


LABEL = "pass   "
NO_TOKEN = "no token yet"
NO_TOKEN_NOW = "no token since the lab changed"
WIDE_FROM = 70
GLYPHS = {part.name: part.glyph for part in PARTS} | {"head": PARTS[0].glyph}


class Stretch(NamedTuple):
    """One part of a token's time in somebody's colour."""

    part: str
    ms: float
    mark: int | None
    """Number of the device's letter and colour; None for a device unknown."""
    name: str


class TokenBar(StripWidget):
    """The median pass as one bar: lettered blocks compute, shades are on the way."""

    shown: Drawn[tuple[TokenTotals, Mapping[str, int], str] | None] = Drawn(None)
    """Totals, letters of the devices, and why there is nothing to draw."""

    def show(self, facts: LiveFacts) -> None:
        totals = facts.totals
        self.shown = totals, facts.devices, why_no_bar(facts.snapshot, totals)

    def draw(self, width: int, height: int) -> list[Strip]:
        dim = self.palette.dim
        if self.shown is None:
            return []
        totals, devices, said = self.shown
        if said:
            return [line([(LABEL, dim), (said, dim)], width)]
        percentiles = self._percentiles(totals, width)
        room = max(width - len(LABEL) - parts_width(percentiles), 1)
        parts = stretches(totals, devices)
        times = [part.ms for part in parts]
        cells = cells_of(times, max(sum(times), 1e-9), room)
        bar = [self._drawn(*one) for one in zip(parts, cells, strict=True) if one[1]]
        rest = " " * (room - sum(cells))
        return [line([(LABEL, dim), *bar, (rest, dim), *percentiles], width)]

    def _drawn(self, part: Stretch, cells: int) -> Part:
        """A block says whose it is and how long it takes, as far as there is room."""
        palette, mark = self.palette, part.mark
        if mark is None:
            return GLYPHS[part.part] * cells, palette.dim
        if part.part not in {"head", "compute"}:
            return GLYPHS[part.part] * cells, palette.device(mark)
        sign, time_text = letter(mark), ms_text(part.ms).strip()
        texts = f"{sign} {part.name} {time_text}", f"{sign} {time_text}", sign
        return clip(fitting(texts, cells), cells), palette.fill(mark)

    def _percentiles(self, totals: TokenTotals, width: int) -> list[Part]:
        gap = "   " if width >= WIDE_FROM else " "
        shared = shared_text(totals.tokens_per_pass)
        parts: list[Part] = [(f"{gap}{shared}" if shared else "", self.palette.dim)]
        for name, value_ms in (("p50", totals.p50_ms), ("p99", totals.p99_ms)):
            parts += [
                (f"{gap}{name} ", self.palette.dim),
                (ms_text(value_ms), self.palette.strong),
                (" ms", self.palette.dim),
            ]
        return parts


def why_no_bar(snapshot: ClusterSnapshot, totals: TokenTotals) -> str:
    """In few words; empty when there is a token to draw."""
    if not snapshot.links:
        return safe_line(why_no_link(snapshot))
    if totals.head_ms is not None:
        return ""
    plain = [link for link in snapshot.links if link.mode == "plain"]
    if len(plain) < len(snapshot.links):
        return NO_TOKEN_NOW if lab_changed(snapshot.links) else NO_TOKEN
    return f"not metered: {safe_line(plain[0].reason) or 'not understood'}"


def stretches(totals: TokenTotals, marks: Mapping[str, int]) -> list[Stretch]:
    """The parts of a pass in the order they happen; together they take its median.

    Each part is a median of its own, of a token. Their sum is not the median of
    passes, so they are scaled to it.
    """
    name = " + ".join(("head", *map(safe_line, totals.unread)))
    parts = [Stretch("head", totals.head_ms or 0.0, marks.get(""), name)]
    for times in totals.workers:
        mark, name = marks.get(times.worker), safe_line(times.worker)
        parts += [
            Stretch(part, getattr(times, f"{part}_ms"), mark, name)
            for part in ("up", "compute", "down", "wait")
        ]
    whole = sum(part.ms for part in parts)
    scale = totals.p50_ms / whole if totals.p50_ms and whole else 1.0
    return [part._replace(ms=part.ms * scale) for part in parts]


LINE_GRAPH_CELLS_MIN = 12


class LiveLine(StripWidget):
    """The speed and its graph; then, as there is room, what a token takes.

    Between answers it tells instead why a token takes so long, if that is known.
    """

    why: Callable[[int], list[Part]] = staticmethod(lambda width: [])
    """Tells it in so many cells."""
    idle: Drawn[bool] = Drawn(False)
    figures: Drawn[tuple[tuple[str, str], ...]] = Drawn(())
    """Labels and values of constant width, the most telling first."""
    history: Drawn[RateHistory] = Drawn(RateHistory())
    version: Drawn[int] = Drawn(0)

    def draw(self, width: int, height: int) -> list[Strip]:
        title: Part = ("Live  ", self.palette.strong)
        figures = self._fitting(width - len(title[0]) - LINE_GRAPH_CELLS_MIN)
        told = [title, *figures[:2]]
        if self.idle and (why := self.why(width - parts_width(told))):
            return [line([*told, *why], width)]
        cells = width - len(title[0]) - parts_width(figures) - GAP_CELLS
        shown = [*self.history.columns][-max(cells, 1) :]
        top = axis_top(max((rate for rate in shown if rate is not None), default=0))
        graph = block_row(shown, top, cells) + " " * GAP_CELLS, self.palette.graph
        return [line([title, *figures[:2], graph, *figures[2:]], width)]

    def _fitting(self, room: int) -> list[Part]:
        parts: list[Part] = []
        for label, value in self.figures:
            shown = f"{label} ", f"{value}  "
            if parts and len(shown[0]) + len(shown[1]) > room:
                break
            room -= len(shown[0]) + len(shown[1])
            parts += [(shown[0], self.palette.dim), (shown[1], self.palette.text)]
        return parts


def line_figures(facts: LiveFacts) -> tuple[tuple[str, str], ...]:
    """Speed, then time, trips and bytes of a token."""
    speed, totals = facts.snapshot.speed, facts.totals
    name = "last    " if speed.tok_per_s is None else "generate"
    figures = [(name, f"{format_rate(newest_rate(speed))} tok/s")]
    if facts.snapshot.links:
        figures += [
            ("pass p50", f"{ms_text(totals.p50_ms).strip():>5} ms"),
            ("trips/tok", f"{totals_trips_text(totals):>4}"),
            ("up/tok", f"{bytes_text(totals.bytes_up):>8}"),
            ("down/tok", f"{bytes_text(totals.bytes_down):>8}"),
        ]
    return tuple(figures)


DRAW_GAP_S = 1.0
"""Between two pictures: their columns stand for seconds."""
NAME_CELLS = 17
VALUE_CELLS = 9
SMALL_GRAPH_CELLS_MIN = 8
GRAPH_GAP_CELLS = 3


class FigureLook(NamedTuple):
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

    DEFAULT_CSS = "WorkerGraphs { height: auto; margin: 1 0 0 0; }"

    def __init__(self) -> None:
        super().__init__()
        self._workers: dict[str, Trend] = {}
        self._marks: Mapping[str, int] = {}
        self._head = ""
        self._drawing = Throttle(self, DRAW_GAP_S, self.redraw_changed)

    def show(
        self, workers: Mapping[str, Trend], marks: Mapping[str, int], head: str
    ) -> None:
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
        least = VALUE_CELLS + 1 + SMALL_GRAPH_CELLS_MIN + GRAPH_GAP_CELLS
        n_figures = min(max(room // least, 1), len(FIGURES))
        cells = max(room // n_figures - VALUE_CELLS - 1 - GRAPH_GAP_CELLS, 1)
        tops = [self._top(figure) for figure in range(n_figures)]
        rows = [self._heading(tops, cells, width)]
        for name, trend in self._workers.items():
            parts = self._whose(name)
            for figure, top in enumerate(tops):
                parts += self._figure(trend, figure, top, cells, self._marks.get(name))
            rows.append(line(parts, width))
        return rows

    def _top(self, figure: int) -> float:
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
        dim = self.palette.dim
        span = format_age(min(cells, STEPS_MAX) * STEP_S)
        parts: list[Part] = [(clip(f"last {span}", NAME_CELLS), dim)]
        for figure, top in zip(FIGURES, tops, strict=False):
            unit, name = figure.unit(top)
            scale = f"0–{tick_text(top / unit)} {name}".rstrip()
            column = VALUE_CELLS + 1 + cells
            title = f"{figure.title:<{max(column - len(scale), 0)}}{scale}"
            parts.append((clip(title, column) + " " * GRAPH_GAP_CELLS, dim))
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
            (graph + " " * GRAPH_GAP_CELLS, style),
        ]
