"""The table of processes, and all about one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.message import Message
from textual.widgets import Static

from backends.state import Event, ProcessInfo, ProcessState
from tui.actions import bindings
from tui.app.messages import Copyable, Raw
from tui.dialogs.dialog import Dialog
from tui.model.finding import has_words
from tui.model.process_words import (
    age_of,
    belongs_to_cluster,
    command_text,
    cpu_text,
    memory_text,
    process_facts,
    usual_order,
)
from tui.widgets.palette import palette_from
from tui.widgets.safe_text import safe_line
from tui.widgets.strips import clip
from tui.widgets.table import SortableTable, SortOrder, TableColumn

LABEL_WIDTH = 9
STYLES = {
    ProcessState.EXITED: "dim",
    ProcessState.UNKNOWN: "dim",
    ProcessState.NOT_RESPONDING: "bold reverse",
    ProcessState.STOPPING: "italic",
}
FALLING = frozenset({"restarts", "cpu", "memory", "since"})
"""Columns that begin with the largest, or the oldest."""
USUAL = "process"

COLUMNS: tuple[TableColumn[ProcessInfo], ...] = (
    TableColumn(USUAL, USUAL, 0, lambda one: safe_line(one.name)),
    TableColumn(
        "machine", "machine", 9, lambda one: safe_line(one.peer), lambda one: one.peer
    ),
    TableColumn("state", "state", 9, lambda one: one.state, lambda one: one.state),
    TableColumn("pid", "pid", 8, lambda one: f"{one.pid or ''}", from_width=95),
    TableColumn(
        "since", "since", 9, lambda one: "", lambda one: -one.started_at, True, 80
    ),
    TableColumn(
        "restarts",
        "restarts",
        8,
        lambda one: f"{one.restarts or '·'}",
        lambda one: one.restarts,
        True,
    ),
    TableColumn("cpu", "cpu", 6, cpu_text, lambda one: one.cpu_cores or 0.0, True),
    TableColumn(
        "memory", "memory", 9, memory_text, lambda one: one.rss_bytes or 0, True
    ),
    TableColumn(
        "port",
        "port",
        6,
        lambda one: f"{one.port or ''}",
        lambda one: one.port or 0,
        True,
        105,
    ),
    TableColumn(
        "command",
        "command",
        0,
        lambda one: safe_line(command_text(one)),
        from_width=140,
    ),
)


def arrange_processes(
    processes: Sequence[ProcessInfo], query: str, order: SortOrder
) -> list[ProcessInfo]:
    kept = [
        one
        for one in processes
        if has_words(f"{one.name} {one.peer} {one.state}", query)
    ]
    usual = usual_order(kept)
    if order.column == USUAL:
        return usual[::-1] if order.reverse else usual
    column = next(column for column in COLUMNS if column.key == order.column)
    falls = (order.column in FALLING) != order.reverse
    return sorted(usual, key=column.order, reverse=falls)


class ProcessTable(SortableTable[ProcessInfo]):
    """A row for each process of the cluster, on every machine."""

    COLUMNS = COLUMNS

    HELP = """\
## Machines and processes

Above, what each machine uses: a column for each processor core, then the last minutes
of processors, memory, each GPU, the links to its workers and the tokens made there.
The figure before a curve is its top; a column without a mark is a time of which nothing
is known. **{processes.span}** shows another span.

Below, every process of the cluster.

- **restarts** counts since the model first served; **cpu** is of one core
- **{processes.describe}** shows the command line, the last log lines and the events
- **{processes.restart}** restarts the process and what depends on it, as soon as the
  answers that this would break have ended
- **{processes.kill}** kills it at once; what the cluster needs of it is started again
- **{processes.sort}** sorts by the next column, **{processes.reverse}** turns the order
  round, **{processes.filter}** filters
"""

    @dataclass
    class Chosen(Message):
        """A process is to be shown."""

        process: ProcessInfo

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(SortOrder(USUAL))
        self._clock = clock
        self._processes: tuple[ProcessInfo, ...] = ()

    def show(self, processes: tuple[ProcessInfo, ...]) -> None:
        self._processes = processes
        self.list_rows()

    @property
    def all_rows(self) -> Sequence[ProcessInfo]:
        return self._processes

    def arranged(self) -> list[ProcessInfo]:
        return arrange_processes(self._processes, self.query_text, self.order)

    def key_of(self, row: ProcessInfo) -> str:
        return f"{row.peer}\n{row.name}"

    def cell_of(
        self, row: ProcessInfo, column: TableColumn[ProcessInfo], width: int
    ) -> Text:
        text = column.text(row)
        if column.key == "since":
            text = age_of(row, self._clock())
        fitted = text.rjust(width) if column.right else clip(text, width)
        style = STYLES.get(row.state, "")
        if column.key == "restarts" and row.restarts:
            style = "bold"
        return Text(fitted, style=style, no_wrap=True)

    def falls(self, order: SortOrder) -> bool:
        return (order.column in FALLING) != order.reverse

    def tell(self) -> None:
        """Tell nobody: no other widget follows the cursor."""

    def pick(self) -> None:
        if self.pointed is not None:
            self.post_message(self.Chosen(self.pointed))


class ProcessDialog(Dialog[str | None]):
    """Dismisses with the name of the process if its log is wanted."""

    HELP = """\
## Process

One process: how it stands, the command line it was started with (keys and prompts are
left out), what happened to it in the last days, and the last lines of its log.
"""
    BINDINGS = bindings("dialog", "reading", "evidence", "json")

    def __init__(
        self,
        process: ProcessInfo,
        events: Sequence[Event],
        log_tail: Sequence[str],
        now: float,
    ) -> None:
        super().__init__()
        self._process = process
        self._facts = list(process_facts(process, events, now))
        self._log_tail = log_tail

    def compose(self) -> ComposeResult:
        log = [("evidence.log", "opens the log")] if self._has_log else []
        keys = (*log, ("reading.copy", "copies"), ("dialog.cancel", "closes"))
        with self.frame(self._process.name, *keys, box=VerticalScroll):
            yield Static(self._table(), markup=False)
            yield Static(self._tail(), markup=False)

    @property
    def _has_log(self) -> bool:
        return belongs_to_cluster(self._process)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "open_log" or self._has_log

    def action_open_log(self) -> None:
        self.dismiss(self._process.name)

    def raw(self) -> Raw:
        return Raw(f"process {self._process.name}", self._process)

    def copyable(self) -> Copyable:
        facts = [f"{label:{LABEL_WIDTH}}{fact}" for label, fact in self._rows()]
        return Copyable("the process", "\n".join([*facts, *self._log_tail]))

    def _table(self) -> Table:
        palette = palette_from(self.app.theme_variables)
        table = Table.grid(padding=(0, 1))
        table.add_column(style=palette.dim, width=LABEL_WIDTH)
        table.add_column(style=palette.text, overflow="fold")
        for label, fact in self._rows():
            table.add_row(label, Text(safe_line(fact)))
        return table

    def _tail(self) -> Text:
        palette = palette_from(self.app.theme_variables)
        said = [f"\n{safe_line(one)}" for one in self._log_tail]
        return Text("".join(said), palette.dim)

    def _rows(self) -> Iterator[tuple[str, str]]:
        before = ""
        for label, fact in self._facts:
            if fact:
                yield "" if label == before else label, fact
                before = label
