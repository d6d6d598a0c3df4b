"""The console of a cluster: wires screens, bridge and flows together."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from textual import on
from textual.screen import Screen

from backends.config import SettingsFile
from backends.state import ClusterSnapshot, ClusterState, Lab, Peer
from tui.api.bridge import (
    UNWATCHED_SLOWER,
    Bridge,
    LinkLost,
    LinkRestored,
    SnapshotTaken,
)
from tui.api.services import ClusterService, RecordService
from tui.app import theming
from tui.app.console import ClusterConsole
from tui.app.frame import ConsoleScreen
from tui.app.messages import EditChanged, LogWanted, PeerAdded
from tui.flows.background_queries import (
    BestPlansQuery,
    BottleneckQuery,
    EventFeed,
    HeaderQuery,
    MemoryQuery,
    RecordFlow,
    SpeedsQuery,
)
from tui.flows.chats import ChatFlows
from tui.flows.engine import EngineFlow
from tui.flows.finding import FindFlow
from tui.flows.peers import PeerFlows, Questions
from tui.flows.plans import PlanFlows
from tui.flows.settings import SettingsFlow
from tui.model.editor import PlanEditor
from tui.model.files import BUILTIN_FOLDER, Remembered, recall_if_whole, remember
from tui.model.launch_settings import launch_command
from tui.model.names import SCREENS
from tui.screens.cluster.screen import ClusterScreen
from tui.widgets.panes import Arrangement


def _screen(app: DllmApp, mode: str) -> ConsoleScreen:
    screen = _made(app, mode)
    screen.arrangement = app.arrangement
    return screen


def _made(app: DllmApp, mode: str) -> ConsoleScreen:
    if mode == app.DEFAULT_MODE:
        return app._home
    if mode == "layers":
        from tui.screens.layers.screen import LayersScreen

        return LayersScreen(app.editor)
    if mode == "traffic":
        from tui.screens.traffic.screen import TrafficScreen

        return TrafficScreen()
    if mode == "lab":
        from tui.screens.lab.screen import LabScreen

        editor = app.editor
        return LabScreen(
            lambda: editor.marks, app.cluster, lambda: editor.running_forecast
        )
    if mode == "logs":
        from tui.screens.logs.screen import LogsScreen

        return LogsScreen(app.cluster)
    if mode == "machines":
        from tui.screens.machines.screen import MachinesScreen

        return MachinesScreen(app.cluster)
    from tui.screens.models.screen import ModelsScreen

    return ModelsScreen(app.cluster)


def _opens(
    group: str, flow: Callable[[DllmApp], Coroutine[Any, Any, None]]
) -> Callable[[DllmApp], None]:
    return lambda app: app.open(flow(app), group=group)


class DllmApp(ClusterConsole):
    """One console on one cluster.

    Args:
        memory_file: Keeps the layout and the last plan.
        serving_pane: The pane to begin in when a model serves already.
        theme: The configured theme; empty for the one used last.
        keys: Other keys for actions, by their ids.
        settings: The file of these settings; the console changes it.
        clock: Unix seconds.
        keep_copy: Keeps each copied text, beside the terminal's clipboard.
        kept_where: The place of these copies, for people.
        records: Writes what the console receives, for a replay.
        pulse: Whether the token pulse runs over the split.
    """

    TITLE = "dllm"
    DEFAULT_MODE = "cluster"

    def __init__(
        self,
        cluster: ClusterService,
        *,
        memory_file: Path,
        theme_folders: Sequence[Path] = (BUILTIN_FOLDER,),
        initial_model: str | None = None,
        serving_pane: str = "split",
        theme: str = "",
        keys: Mapping[str, str] | None = None,
        settings: SettingsFile | None = None,
        readonly: bool = False,
        clock: Callable[[], float] = time.time,
        keep_copy: Callable[[str], None] | None = None,
        kept_where: str = "",
        ascii_only: bool = False,
        records: RecordService | None = None,
        pulse: bool = True,
    ) -> None:
        memory, error = recall_if_whole(memory_file)
        super().__init__(
            theme_folders=theme_folders,
            theme=theme or memory.theme or theming.DEFAULT_THEME,
            keys=keys or {},
            readonly=readonly,
            clock=clock,
            keep_copy=keep_copy,
            kept_where=kept_where,
            ascii_only=ascii_only,
            pulse=pulse,
        )
        if error is not None:
            self._early_trouble.append(error)
        self.cluster = cluster
        self.editor = PlanEditor(cluster.cluster)
        self.editor.changed = lambda: self.post_message(EditChanged())
        self._arriving = False
        self._given_theme = self.theme if theme else ""
        self._memory_file = memory_file
        self._memory = memory
        self._flows = PlanFlows(self)
        self._settings = SettingsFlow(self, settings)
        self._peer_flows = PeerFlows(self, self._settings)
        self._memory_query = MemoryQuery(self)
        self._speeds_query = SpeedsQuery(self)
        self._best_plans_query = BestPlansQuery(self)
        self._bottleneck_query = BottleneckQuery(self)
        self._header_query = HeaderQuery(self)
        self._questions = Questions(self, self._peer_flows)
        self._event_feed = EventFeed(self)
        self._finding = FindFlow(self, self._settings)
        self._recording = RecordFlow(self, records)
        self._initial_model = initial_model
        self._serving_pane = serving_pane
        self._begun = False
        self._held: ClusterSnapshot | None = None
        self._bridge: Bridge | None = None
        self._written: Remembered | None = None
        self._writer = ThreadPoolExecutor(1, "memory")
        self.arrangement = Arrangement(dict(memory.layouts), dict(memory.shares))
        self.arrangement.changed = self._remember
        self._home = ClusterScreen(self.editor, zoomed=memory.zoomed)
        self._home.arrangement = self.arrangement
        self._engine = EngineFlow(self, self._home.live.show_work)
        self._chat_flows = ChatFlows(self, cluster, self.editor, self._home.chat)
        for mode in SCREENS:
            self.add_mode(mode, partial(_screen, self, mode))

    # --- start and end -----------------------------------------------------------

    def on_load(self) -> None:
        self._listen()

    def on_mount(self) -> None:
        self._recording.look()
        # It mostly came while the widgets were made: then the first frame has it.
        if self._bridge is not None and self._bridge.newest is not None:
            self.take(self._bridge.newest)

    def _listen(self) -> None:
        self._bridge = Bridge(self.cluster, self.post_message)
        self.run_worker(
            self._bridge.run(), group="bridge", exclusive=True, exit_on_error=False
        )

    def watch_app_focus(self, focused: bool) -> None:
        if self._bridge is not None:
            self._bridge.slow_down(1.0 if focused else UNWATCHED_SLOWER)

    def on_unmount(self) -> None:
        self._remember()
        self._writer.shutdown()

    def _remember(self) -> None:
        """Write down what to remember, if that has changed.

        At every change, not at the end: a terminal that closes leaves no time.
        """
        cluster = self.cluster.cluster
        memory = msgspec.structs.replace(
            self._memory.with_plan(cluster, self.editor.plan),
            theme=self._memory.theme if self.theme == self._given_theme else self.theme,
            zoomed=self._home.zoomed,
            layouts=dict(self.arrangement.layouts),
            shares=dict(self.arrangement.shares),
        )
        if memory == self._written:
            return
        self._written = memory
        # Without a place to write, its future has an error, and it starts afresh.
        self._writer.submit(remember, self._memory_file, memory, cluster)

    # --- what the cluster says ---------------------------------------------------

    @on(SnapshotTaken)
    def _snapshot_taken(self, message: SnapshotTaken) -> None:
        if message.snapshot is not self.editor.snapshot:
            self.take(message.snapshot)

    def take(self, snapshot: ClusterSnapshot) -> None:
        if not self.is_running:  # Leaving: the screens lose their widgets one by one.
            return
        if snapshot.cluster != self.cluster.cluster or not self.editor.take(snapshot):
            return
        if not self._begun:
            self._begun = True
            self._begin(snapshot)
        elif self._arriving:
            self._arriving = False
            self._flows.take_up(snapshot, self._memory.plan_of(snapshot.cluster))
        self._header_query.look()
        self._chat_flows.look()
        self._event_feed.look()
        with self.batch_update():
            self._show()
        self._questions.look()

    def action_freeze(self) -> None:
        self._held = None if self._held else self.editor.snapshot
        for screen in self._screens():
            screen.hold(self._held is not None)
        self._show()

    @on(LinkLost)
    def _link_lost(self, message: LinkLost) -> None:
        then = "Reconnecting…" if self.editor.snapshot else "Waiting for one that runs…"
        self.tell(f"{message.reason.rstrip('.')}. {then}", "warning")
        self.editor.trends.interrupt()
        self._show_link(False)

    @on(LinkRestored)
    def _link_restored(self) -> None:
        self.tell("Reconnected to the controller")
        self._show_link(True)

    @on(EditChanged)
    def show_edit(self) -> None:
        if not self.is_running:
            return
        base = self.screen_stack[0]
        if isinstance(base, ConsoleScreen):
            base.show_edit()
        self._chat_flows.look()
        self._memory_query.look()
        self._speeds_query.look()
        self._best_plans_query.look()
        self._bottleneck_query.look()
        if self.editor.plan is not None:
            self._remember()

    def _begin(self, snapshot: ClusterSnapshot) -> None:
        if snapshot.state is ClusterState.SERVING and not self._home.zoomed:
            # The chat cannot take the focus before it has been told that it is ready.
            pane = self._home.leading_pane or self._serving_pane
            self.begin_at(partial(self._home.go_to, pane))
        if self._initial_model:
            self.attempt(self._flows.begin_with(self._initial_model), group="model")
        else:
            self._flows.take_up(snapshot, self._memory.plan_of(snapshot.cluster))

    def _show(self) -> None:
        """Show the newest snapshot on the screen in front, or the one that is held."""
        if self.editor.snapshot is None:
            return
        base, held = self.screen_stack[0], self._held
        # One that is not built yet is shown it by who opens it.
        if isinstance(base, ConsoleScreen) and base.is_mounted:
            base.status_line.model = self.editor.plan.model if self.editor.plan else ""
            base.hold(held is not None)
            if held is None or base.shown is not held:
                base.show_snapshot(held or self.editor.snapshot)
            base.status_line.snapshot = self.editor.snapshot
        if held is None:
            self.show_edit()
        if above := self.screen_stack[1:]:
            from tui.dialogs.dialog import Dialog

            for screen in above:
                if isinstance(screen, Dialog):
                    screen.show_peers(self.editor.peers)

    def _show_link(self, connected: bool) -> None:
        if not self.is_running:
            return
        for screen in self._screens():
            screen.show_link(connected)

    def show_recording(self, on: bool) -> None:
        self.recording = on
        for screen in self._screens():
            screen.status_line.redraw()

    def _screens(self) -> list[ConsoleScreen]:
        stacks = self._screen_stacks.values()
        found: list[Screen[object]] = [stack[0] for stack in stacks if stack]
        return [screen for screen in found if isinstance(screen, ConsoleScreen)]

    @on(LogWanted)
    async def _log_wanted(self, message: LogWanted) -> None:
        from tui.screens.logs.screen import LogsScreen

        await self.action_show_mode("logs")
        if isinstance(self.screen, LogsScreen):
            self.screen.show_process(message.process)

    def use_model(self, path: str) -> None:
        async def use() -> None:
            await self.go_to("cluster", "split")
            await self._flows.choose(path)

        self.open(use(), group="model")

    def work_at(self, verb: str, peer: Peer | None = None) -> None:
        work = getattr(self._peer_flows, verb)(*filter(None, [peer]))
        self.open(work, group=f"peer {verb}", exclusive=False)

    def show_setting(self, name: str) -> None:
        self.open(self._settings.show(name), group="settings")

    def set_lab(self, worker: str | None, lab: Lab | None) -> None:
        async def put() -> None:
            self.take(await self.cluster.set_lab(worker, lab))

        self.attempt(put(), group=f"lab {worker or ''}")

    def export_trace(self) -> None:
        self.attempt(self._flows.export_trace(), group="trace")

    @on(PeerAdded)
    def _peer_added(self, message: PeerAdded) -> None:
        self._home.peers.peer_list.select(message.peer)

    async def action_show_mode(self, mode: str) -> None:
        if not self.screen.is_modal:
            # The screen that a drag began on is told of no more.
            self.capture_mouse(None)
            await self.switch_mode(mode)
            self._show()

    async def go_to(self, mode: str, pane: str = "") -> None:
        if self.current_mode != mode:
            await self.action_show_mode(mode)
        if pane and mode == self.DEFAULT_MODE:
            self._home.go_to(pane)

    def action_events(self) -> None:
        self.open(self._event_feed.show(), group="events")

    async def action_back(self) -> None:
        base = self.screen_stack[0]
        if isinstance(base, ConsoleScreen) and base.leave_zoom():
            return
        if self.current_mode != self.DEFAULT_MODE:
            await self.action_show_mode(self.DEFAULT_MODE)

    action_find = _opens("find", lambda app: app._finding.find())
    action_launch = _opens("launch", lambda app: app._flows.launch())
    action_stop = _opens("launch", lambda app: app._flows.stop())
    action_settings = _opens("settings", lambda app: app._settings.show())
    action_launch_settings = _opens(
        "launch settings", lambda app: app._flows.set_launch()
    )
    action_best_plans = _opens("best", lambda app: app._flows.choose_best())
    action_pulse = _opens("pulse", lambda app: app._settings.switch_pulse())
    action_race = _opens("race", lambda app: app._flows.race())
    action_share = _opens("share", lambda app: app._flows.share())
    action_take_change = _opens("why", lambda app: app._flows.take_change())
    action_kept_plans = _opens("plans", lambda app: app._flows.take_kept())
    action_save_plan = _opens("plans", lambda app: app._flows.save())
    action_pick_model = _opens("model", lambda app: app._flows.pick_model())
    action_clusters = _opens("clusters", lambda app: app._flows.pick_cluster())
    action_record = _opens("record", lambda app: app._recording.switch())
    action_quit_console = _opens("leave", lambda app: app._flows.leave())

    def action_undo(self) -> None:
        if not self.editor.undo():
            self.bell()

    def action_redo(self) -> None:
        if not self.editor.redo():
            self.bell()

    def action_copy_command(self) -> None:
        if command := launch_command(self.editor.snapshot):
            self.copy("the launch command", command)
        else:
            self.tell("No llama-server runs: there is no command to copy", "warning")

    def action_balance(self) -> None:
        if self.editor.snapshot is not None and self.editor.snapshot.no_engine:
            self.get_engine()
        else:
            self._flows.balance()

    def get_engine(self) -> None:
        self.attempt(self._engine.get(), group="engine", exclusive=False)

    action_get_engine = get_engine

    def show_cluster(self, name: str) -> None:
        self.cluster.use(name)
        self.editor.go_to(name)
        self._arriving = True
        if self._held is not None:
            self.action_freeze()
        self._show_link(True)
        self._listen()
