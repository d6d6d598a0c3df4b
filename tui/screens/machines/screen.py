"""Machines: what each of them uses, and every process of the cluster."""

from __future__ import annotations

import asyncio
from typing import NoReturn

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll

from backends.errors import DllmError
from backends.state import ProcessInfo, UsageReport
from tui.actions import bindings
from tui.api.services import ClusterService
from tui.app.console import console_of
from tui.app.frame import ConsoleScreen
from tui.app.messages import Copyable, LogWanted, Raw
from tui.dialogs.dialog import ChoiceDialog, confirm
from tui.model.process_words import (
    TAIL_BYTES,
    belongs_to_cluster,
    kill_question,
    last_lines,
    restart_question,
)
from tui.screens.machines.table import ProcessDialog, ProcessTable
from tui.screens.machines.usage import SPANS_S, UsageView
from tui.widgets.inputs import FilterBar
from tui.widgets.panes import BALANCED, PaneLayout, PaneRow
from tui.widgets.strips import resubtitle
from tui.widgets.table import FilteredTable

BESIDE = PaneLayout("beside", "machines beside processes", width_min=140)
PROCESSES = PaneLayout("processes", "processes alone")
RETRY_S = 2.0
TABLE_EVERY = 5
UNWATCHED_EVERY = 8
"""A terminal without the focus is painted every so many reports."""


class MachinesScreen(FilteredTable, ConsoleScreen):
    """Reports come while the screen is in front, one a second."""

    table: ProcessTable
    AUTO_FOCUS = "ProcessTable"
    FIGURES = False
    HELP = ProcessTable.HELP
    BINDINGS = bindings("processes")
    LAYOUTS = (BALANCED, BESIDE, PROCESSES)

    DEFAULT_CSS = """
    MachinesScreen {
        & #machines-usage { height: auto; max-height: 60vh; padding: 0 1; }
        & #machines-usage { overflow-y: auto; scrollbar-size-vertical: 1; }
        & #machines-processes { height: 1fr; }
        &.-short #machines-usage { max-height: 50vh; }
        & #machines-body { layout: vertical; height: 1fr; }
        &.-as-beside {
            & #machines-body { layout: horizontal; }
            & #machines-usage { width: 50%; height: 1fr; max-height: 100%; }
            & #machines-processes { width: 1fr; }
        }
        &.-as-processes #machines-usage { display: none; }
    }
    """

    def __init__(self, cluster: ClusterService) -> None:
        super().__init__()
        self._cluster = cluster
        self._reports = 0
        self._held = False
        self._stand: list[object] = []
        self.usage = UsageView()
        self.filter_bar = FilterBar("name, machine, state", id="processes-filter")
        self._machines = VerticalScroll(
            id="machines-usage", classes="pane", can_focus=True
        )
        self._processes = Vertical(id="machines-processes", classes="pane")

    def compose_body(self) -> ComposeResult:
        self.table = ProcessTable(console_of(self).clock)
        self._machines.border_title = "Machines"
        self._processes.border_title = "Processes"
        with PaneRow(least=(50, 50), id="machines-body"):
            with self._machines:
                yield self.usage
            with self._processes:
                yield self.table
                yield self.filter_bar

    def on_mount(self) -> None:
        self._tell_span()

    # --- reports --------------------------------------------------------------------

    def on_screen_resume(self) -> None:
        self.run_worker(
            self._follow, group="usage", exclusive=True, exit_on_error=False
        )

    def on_screen_suspend(self) -> None:
        # Behind a dialog it goes on; behind another screen nobody looks.
        if self.app.screen_stack[0] is not self:
            self.workers.cancel_group(self, "usage")

    async def _follow(self) -> NoReturn:
        while True:
            try:
                async for report in self._cluster.usages():
                    self._take(report)
            except DllmError:
                # The bridge tells that the controller is gone.
                pass
            await asyncio.sleep(RETRY_S)

    def _take(self, report: UsageReport) -> None:
        self._reports += 1
        seen = self.app.app_focus or self._reports % UNWATCHED_EVERY == 1
        if self._held or not seen:
            return
        with self.app.batch_update():
            self.usage.show(report.machines)
            if self._is_due(report.processes):
                self.table.show(report.processes)
                self.summarise()

    def _is_due(self, processes: tuple[ProcessInfo, ...]) -> bool:
        # A table costs most to paint: figures in it change more seldom than states.
        stand: list[object] = [
            (p.peer, p.name, p.state, p.pid, p.restarts) for p in processes
        ]
        before, self._stand = self._stand, stand
        return stand != before or self._reports % TABLE_EVERY == 0

    def hold(self, held: bool) -> None:
        super().hold(held)
        self._held = held

    def summarise(self) -> None:
        shown, every = len(self.table.shown), len(self.table.all_rows)
        counted = f"{shown} of {every}" if self.table.query_text else f"{every}"
        resubtitle(self._processes, counted if every else "")
        self.filter_bar.note = f"{shown} found" if self.table.query_text else ""

    # --- actions --------------------------------------------------------------------

    def action_span(self) -> None:
        at = SPANS_S.index(self.usage.span_s)
        self.usage.span_s = SPANS_S[(at + 1) % len(SPANS_S)]
        self._tell_span()

    def _tell_span(self) -> None:
        minutes = self.usage.span_s // 60
        resubtitle(self._machines, f"last {minutes} min" if minutes > 1 else "last min")

    def action_describe(self) -> None:
        self.table.pick()

    @on(ProcessTable.Chosen)
    def _chosen(self, message: ProcessTable.Chosen) -> None:
        message.stop()
        console_of(self).open(self._describe(message.process), group="process")

    async def _describe(self, process: ProcessInfo) -> None:
        console = console_of(self)
        events = await self._cluster.events()
        tail: list[str] = []
        if belongs_to_cluster(process):
            chunk = await self._cluster.read_log(process.name, -TAIL_BYTES, TAIL_BYTES)
            tail = last_lines(chunk)
        dialog = ProcessDialog(process, events, tail, console.clock())
        if wanted := await console.push_screen_wait(dialog):
            console.post_message(LogWanted(wanted))

    def action_restart(self) -> None:
        self._ask(self._restart)

    def action_kill(self) -> None:
        self._ask(self._kill)

    def _ask(self, work: object) -> None:
        process = self.table.pointed
        if process is not None and callable(work):
            console_of(self).open(work(process), group="process")

    async def _agreed(self, process: ProcessInfo, dialog: ChoiceDialog) -> bool:
        # An impossible action is not asked about, but refused below.
        if not belongs_to_cluster(process):
            return True
        return await console_of(self).push_screen_wait(dialog) == "yes"

    async def _restart(self, process: ProcessInfo) -> None:
        dialog = confirm("Restart?", restart_question(process), "Restart it", "y")
        if await self._agreed(process, dialog):
            await self._cluster.restart_process(process.name, process.peer)
            console_of(self).tell(f"{process.name} is restarted")

    async def _kill(self, process: ProcessInfo) -> None:
        dialog = confirm("Kill?", kill_question(process), "Kill it", "y")
        if await self._agreed(process, dialog):
            await self._cluster.kill_process(process.name, process.peer, process.pid)
            console_of(self).tell(f"{process.name} was killed")

    def raw(self) -> Raw | None:
        row = self.table.pointed
        return Raw(f"process {row.name}", row) if row else super().raw()

    @property
    def subject(self) -> str:
        process = self.table.pointed
        return f"{process.name} on {process.peer}" if process else ""

    def copyable(self) -> Copyable | None:
        row = self.table.pointed
        if row is None:
            return None
        pid = f" pid {row.pid}" if row.pid else ""
        return Copyable("the process", f"{row.name} {row.peer} {row.state}{pid}")
