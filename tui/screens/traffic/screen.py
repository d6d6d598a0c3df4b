"""Traffic: where each token's time goes, and every command on every link."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.actions import SkipAction
from textual.containers import Container, Vertical
from textual.message import Message
from textual.widgets import Static

from backends.state import ClusterState
from tui.actions.keymap import bindings
from tui.app.frame import ConsoleScreen
from tui.app.messages import Copyable
from tui.model.quantities import acceptance_text
from tui.screens.traffic.detail import TrafficDetail
from tui.screens.traffic.links import LinkFigures, alerts_of
from tui.screens.traffic.rows import row_text
from tui.screens.traffic.table import TrafficTable
from tui.widgets.filter_bar import FilterBar
from tui.widgets.keys import with_keys
from tui.widgets.strips import resubtitle
from tui.widgets.waterfall import Waterfall

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType

    from backends.state import ClusterSnapshot
    from tui.api.cluster import Cluster

NOTHING_YET = "No command went over a relay yet."


class TrafficScreen(ConsoleScreen):
    """The token waterfall over the table of commands."""

    AUTO_FOCUS: ClassVar[str | None] = "TrafficTable"

    HELP: ClassVar[str | None] = TrafficTable.HELP

    BINDINGS: ClassVar[list[BindingType]] = bindings("traffic")

    DEFAULT_CSS = """
    TrafficScreen {
        & #traffic-token { height: auto; max-height: 50%; padding: 0 1; }
        & #traffic-token { overflow-y: auto; scrollbar-size-vertical: 1; }
        & #traffic-commands { height: 1fr; }
        & #traffic-list { height: 1fr; }
        & #traffic-links { margin: 0 0 1 0; }
        & #traffic-waterfall { height: auto; }
        & #traffic-detail { padding: 0 1; height: 8; margin: 1 0 0 0; }
        & #traffic-empty { display: none; height: 1fr; padding: 0 1; color: $dim; }
        & .-empty TrafficTable, & .-empty #traffic-detail { display: none; }
        & .-empty #traffic-empty { display: block; }
        &.-short #traffic-links, &.-short #traffic-detail { display: none; }
        &.-medium #traffic-links { margin: 0; }
        &.-medium #traffic-detail { margin: 0; height: 5; }
        &.-wide #traffic-commands { layout: horizontal; }
        &.-wide #traffic-list { width: 1fr; }
        &.-wide #traffic-detail { width: 50; height: 1fr; margin: 0 0 0 1; }
        &.-tall #traffic-token { height: 2fr; }
        &.-tall #traffic-commands { height: 3fr; }
        &.-tall #traffic-waterfall { height: 1fr; }
        &.-wide.-tall #traffic-commands { height: 2fr; }
    }
    """

    class ExportWanted(Message):
        """The user wants the latest tokens as a Chrome trace."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._cluster = cluster
        self.links = LinkFigures(id="traffic-links")
        self.waterfall = Waterfall(id="traffic-waterfall")
        self.table = TrafficTable(id="traffic-table")
        self._detail = TrafficDetail(id="traffic-detail")
        self._empty = Static(NOTHING_YET, id="traffic-empty", markup=False)
        self._filter_bar = FilterBar("worker, command", id="traffic-filter")
        self._drafted = ""
        self._token = Container(id="traffic-token", classes="pane")
        self._commands = Container(id="traffic-commands", classes="pane -empty")

    def compose_body(self) -> ComposeResult:
        self._token.border_title = "Token"
        self._commands.border_title = "Commands"
        with self._token:
            yield self.links
            yield self.waterfall
        with self._commands:
            with Vertical(id="traffic-list"):
                yield self.table
                yield self._empty
                yield self._filter_bar
            yield self._detail

    # --- what is shown --------------------------------------------------------

    def show_snapshot(self, snapshot: ClusterSnapshot) -> None:
        """Show newer passes and counters."""
        super().show_snapshot(snapshot)
        running = snapshot.state != ClusterState.IDLE
        self.links.show(snapshot.links)
        self.waterfall.show(snapshot.links, running=running)
        self.table.show(snapshot.links)
        self._summarise()
        self._drafted = acceptance_text(snapshot.speed.acceptance)
        self._badge()

    def _badge(self) -> None:
        said = [self.waterfall.chosen, alerts_of(self.links.links), self._drafted]
        resubtitle(self._token, " · ".join(filter(None, said)))

    def _summarise(self) -> None:
        """Say how many rows there are; where there are none, why."""
        shown, query = len(self.table.shown), self.table.query_text
        self._commands.set_class(not shown, "-empty")
        said = (
            f"No row has “{query}”. {{traffic.unfilter}} shows all."
            if query
            else NOTHING_YET
        )
        self._empty.update(with_keys(self.app, said))
        rows = f"{shown} of {self.table.total} rows" if query else ""
        resubtitle(self._commands, rows)
        self._filter_bar.note = f"{shown} found" if query else ""

    @on(TrafficTable.Pointed)
    def _pointed(self, event: TrafficTable.Pointed) -> None:
        event.stop()
        self._detail.row = event.row

    @on(Waterfall.Changed)
    def _waterfall_changed(self, event: Waterfall.Changed) -> None:
        event.stop()
        self._badge()

    # --- what the user does -----------------------------------------------------

    def action_median(self) -> None:
        self.waterfall.median = not self.waterfall.median

    def action_next_worker(self) -> None:
        self.waterfall.choose_next()

    def action_export(self) -> None:
        self.post_message(self.ExportWanted())

    def action_sort(self) -> None:
        self.table.set_order(self.table.order.next(self.table.column_keys))

    def action_reverse(self) -> None:
        self.table.set_order(self.table.order.by(self.table.order.column))

    def action_move(self, rows: int) -> None:
        self.table.move(rows)

    def action_filter(self) -> None:
        self._filter_bar.open()

    def action_unfilter(self) -> None:
        if not self._filter_bar.text:
            raise SkipAction
        self._filter_bar.action_clear()

    @on(FilterBar.Changed)
    def _filter_changed(self, event: FilterBar.Changed) -> None:
        event.stop()
        self.table.set_filter(event.text)
        self._summarise()

    @on(FilterBar.Left)
    def _filter_left(self, event: FilterBar.Left) -> None:
        event.stop()
        self.table.focus()

    def copyable(self) -> Copyable | None:
        """The row under the cursor."""
        row = self.table.pointed
        return Copyable(what="the row", text=row_text(row)) if row else None
