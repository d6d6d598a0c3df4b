"""Traffic: where each token's time goes, and every command on every link."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual import on
from textual.app import ComposeResult
from textual.containers import Container, Vertical
from textual.strip import Strip
from textual.widgets import Static

from backends.state import ClusterSnapshot, Link
from tui.actions import bindings
from tui.app.console import console_of
from tui.app.frame import ConsoleScreen
from tui.app.messages import Copyable, Raw
from tui.model.quantities import (
    UNKNOWN,
    acceptance_text,
    bytes_text,
    pass_trips_text,
    rate_text,
    rtt_text,
    shares_passes,
    silence_text,
    trips_text,
    wire_down_text,
    wire_up_text,
)
from tui.screens.traffic.detail import LastRunTable, TrafficDetail
from tui.screens.traffic.table import TrafficTable, row_text
from tui.widgets.inputs import FilterBar
from tui.widgets.keys import with_keys
from tui.widgets.panes import BALANCED, PaneLayout, PaneRow
from tui.widgets.safe_text import safe_line
from tui.widgets.strips import (
    Drawn,
    Part,
    StripWidget,
    clip,
    line,
    parts_width,
    resubtitle,
)
from tui.widgets.table import FilteredTable, TableColumn, fitting_columns
from tui.widgets.waterfall import FIXED_ROWS, Waterfall, why_no_rows

NAME_CELLS = 10
REMARK_CELLS_MIN = 16
"""With less room a remark is left out, not cut to nothing."""


def _or_dash(text: Callable[[Link], str]) -> Callable[[Link], str]:
    return lambda link: text(link) or UNKNOWN


def _is_paired(link: Link) -> bool:
    return link.wire_bytes_up is not None


def _column(
    label: str,
    width: int,
    text: Callable[[Link], str],
    from_width: int = 0,
    needs: Callable[[Link], bool] = lambda link: True,
) -> TableColumn[Link]:
    return TableColumn(label, label, width, text, from_width=from_width, needs=needs)


COLUMNS = (
    _column("mode", 8, lambda link: link.mode),
    _column("way", 8, lambda link: link.way or UNKNOWN, 100, _is_paired),
    _column("protocol", 9, lambda link: link.protocol or "—", 76),
    _column("rtt", 10, lambda link: rtt_text(link.rtt_ms)),
    _column("trips/tok", 10, lambda link: trips_text(link).partition(",")[0]),
    _column(
        "trips/pass",
        11,
        pass_trips_text,
        123,
        lambda link: shares_passes(link.generation.tokens_per_pass),
    ),
    _column("up/tok", 10, lambda link: bytes_text(link.bytes_up_per_token)),
    _column("down/tok", 10, lambda link: bytes_text(link.bytes_down_per_token)),
    _column("MB/s", 8, lambda link: rate_text(link, unit=""), 68),
    _column(
        "home", 10, lambda link: bytes_text(link.weight_bytes_home), 88, _is_paired
    ),
    _column("crossed up", 22, _or_dash(wire_up_text), 145, _is_paired),
    _column("crossed down", 22, _or_dash(wire_down_text), 167, _is_paired),
    _column("refused", 9, lambda link: f"{link.refused or '·'}", 112),
    _column("waiting", 9, lambda link: f"{len(link.waiting) or '·'}", 112),
)


class LinkFigures(StripWidget):
    """The figures of each link in fixed columns, and why it is as it is."""

    ALLOW_SELECT = True
    DEFAULT_CSS = "LinkFigures { height: auto; background: $background; }"

    links: Drawn[tuple[Link, ...]] = Drawn(())

    def show(self, links: tuple[Link, ...]) -> None:
        if len(links) != len(self.links):
            self.refresh(layout=True)
        self.links = links

    def get_content_height(self, container: object, viewport: object, w: int) -> int:
        return len(self.links) + 1 if self.links else 0

    def draw(self, width: int, height: int) -> list[Strip]:
        if not self.links:
            return []
        columns = fitting_columns(COLUMNS, self.links, width)
        headings = "".join(f"{column.label:>{column.width}}" for column in columns)
        head = line([(clip("link", NAME_CELLS) + headings, self.palette.dim)], width)
        return [head, *(self._row(link, columns, width) for link in self.links)]

    def _row(
        self, link: Link, columns: Sequence[TableColumn[Link]], width: int
    ) -> Strip:
        palette = self.palette
        name = (clip(safe_line(link.worker), NAME_CELLS - 1) + " ", palette.strong)
        if link.mode == "plain":
            reason = safe_line(link.reason) or "not understood"
            now = "" if link.bytes_per_s_up is None else f" · {rate_text(link)}"
            why = f"{link.mode:>{COLUMNS[0].width}}  {reason}{now}"
            return line([name, (why, palette.warn)], width)
        texts = (f"{column.text(link):>{column.width}}" for column in columns)
        figures: list[Part] = [name, ("".join(texts), palette.text)]
        why = " · ".join(filter(None, (link.way_reason, link.why)))
        remark = safe_line(link.reason or why)
        if remark and parts_width(figures) + REMARK_CELLS_MIN <= width:
            style = palette.warn if link.reason else palette.dim
            figures.append((f"  {remark}", style))
        return line(figures, width)


def alerts_of(links: Sequence[Link]) -> str:
    """The trouble of all links: ``mini: 2 refused · box: 1 waiting``."""
    parts = []
    for link in links:
        name = safe_line(link.worker)
        parts += [f"{name}: {silence}"] if (silence := silence_text(link)) else []
        parts += [f"{name}: {link.refused} refused"] if link.refused else []
        parts += [f"{name}: {len(link.waiting)} waiting"] if link.waiting else []
    return " · ".join(parts)


BESIDE = PaneLayout("beside", "token beside commands", width_min=140)
COMMANDS = PaneLayout("commands", "commands alone")
NOTHING_YET = "No command went over a relay yet."


class TrafficScreen(FilteredTable, ConsoleScreen):
    """The token waterfall over the table of commands."""

    table: TrafficTable
    AUTO_FOCUS = "TrafficTable"

    HELP = TrafficTable.HELP

    BINDINGS = bindings("traffic")
    LAYOUTS = (BALANCED, BESIDE, COMMANDS)

    DEFAULT_CSS = """
    TrafficScreen {
        & #traffic-token { height: auto; max-height: 50vh; padding: 0 1; }
        & #traffic-token { overflow-y: auto; scrollbar-size-vertical: 1; }
        & #traffic-commands { height: 1fr; }
        & #traffic-list { height: 1fr; }
        & #traffic-links { margin: 0 0 1 0; }
        & Waterfall { height: auto; }
        & #traffic-detail { padding: 0 1; height: 8; margin: 1 0 0 0; }
        & #traffic-empty { display: none; height: 1fr; padding: 0 1; color: $dim; }
        & .-empty TrafficTable, & .-empty #traffic-detail { display: none; }
        & .-empty #traffic-empty { display: block; }
        & #traffic-run { margin: 1 0 0 0; }
        &.-short #traffic-links, &.-short #traffic-detail { display: none; }
        &.-short #traffic-run { display: none; }
        &.-medium #traffic-links { margin: 0; }
        &.-medium #traffic-detail { margin: 0; height: 5; }
        &.-wide #traffic-commands { layout: horizontal; }
        &.-wide #traffic-list { width: 1fr; }
        &.-wide #traffic-detail { width: 50; height: 1fr; margin: 0 0 0 1; }
        &.-tall #traffic-token { height: 1fr; }
        &.-tall Waterfall { height: 1fr; }
        & #traffic-body { layout: vertical; height: 1fr; }
        &.-as-beside {
            & #traffic-body { layout: horizontal; }
            & #traffic-token { width: 45%; height: 1fr; max-height: 100%; }
            & #traffic-commands { width: 1fr; height: 1fr; layout: vertical; }
            & #traffic-detail { width: 1fr; height: 12; margin: 1 0 0 0; }
        }
        &.-as-commands #traffic-token { display: none; }
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self.links = LinkFigures(id="traffic-links")
        self.waterfall = Waterfall()
        self.last_run = LastRunTable(id="traffic-run")
        self.table = TrafficTable()
        self._detail = TrafficDetail(id="traffic-detail")
        self._empty = Static(NOTHING_YET, id="traffic-empty", markup=False)
        self.filter_bar = FilterBar("worker, command", id="traffic-filter")
        self._drafted = ""
        self._token = Container(id="traffic-token", classes="pane")
        self._commands = Container(id="traffic-commands", classes="pane -empty")

    def compose_body(self) -> ComposeResult:
        self._token.border_title = "Token"
        self._commands.border_title = "Commands"
        with PaneRow(least=(60, 60), id="traffic-body"):
            with self._token:
                yield self.links
                yield self.waterfall
                yield self.last_run
            with self._commands:
                with Vertical(id="traffic-list"):
                    yield self.table
                    yield self._empty
                    yield self.filter_bar
                yield self._detail

    def show_snapshot(self, snapshot: ClusterSnapshot) -> None:
        super().show_snapshot(snapshot)
        self.links.show(snapshot.links)
        self.waterfall.show(snapshot.links, why_no_rows(snapshot))
        # Beside the last run it keeps its legend and a row for each worker.
        self.waterfall.styles.min_height = FIXED_ROWS + len(snapshot.links)
        self.last_run.show(snapshot.last_run)
        self.table.show(snapshot.links)
        self.summarise()
        self._drafted = acceptance_text(snapshot.speed.acceptance)
        self._badge()

    def _badge(self) -> None:
        said = [self.waterfall.chosen, alerts_of(self.links.links), self._drafted]
        resubtitle(self._token, " · ".join(filter(None, said)))

    def summarise(self) -> None:
        shown, query = len(self.table.shown), self.table.query_text
        self._commands.set_class(not shown, "-empty")
        none = f"No row has “{query}”. {{traffic.unfilter}} shows all."
        self._empty.update(with_keys(self.app, none if query else NOTHING_YET))
        rows = f"{shown} of {len(self.table.all_rows)} rows" if query else ""
        resubtitle(self._commands, rows)
        self.filter_bar.note = f"{shown} found" if query else ""

    @on(TrafficTable.Pointed)
    def _pointed(self, event: TrafficTable.Pointed) -> None:
        event.stop()
        self._detail.row = event.row

    @on(Waterfall.Changed)
    def _waterfall_changed(self, event: Waterfall.Changed) -> None:
        event.stop()
        self._badge()

    def action_median(self) -> None:
        self.waterfall.median = not self.waterfall.median

    def action_next_worker(self) -> None:
        self.waterfall.choose_next()

    def action_export(self) -> None:
        console_of(self).export_trace()

    def raw(self) -> Raw | None:
        row = self.table.pointed
        if row is None:
            return super().raw()
        return Raw(f"{row.command} at {row.worker}", row.figures)

    @property
    def subject(self) -> str:
        row = self.table.pointed
        return f"{row.command} to {row.worker}" if row else ""

    def copyable(self) -> Copyable | None:
        row = self.table.pointed
        return Copyable(what="the row", text=row_text(row)) if row else None
