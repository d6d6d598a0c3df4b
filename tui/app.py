"""The console of a cluster: wires screens, bridge and flows together."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from textual import on

from backends.errors import DllmError
from backends.state import ClusterState
from tui import theming
from tui.bridge import Bridge
from tui.console import ConsoleApp
from tui.desk import Desk
from tui.flows import Flows
from tui.memory import Remembered, recall, remember
from tui.messages import (
    LinkLost,
    LinkRestored,
    LogWanted,
    PeerWanted,
    SnapshotTaken,
)
from tui.peer_flows import PeerFlows
from tui.peer_questions import Questions
from tui.screens.base import ConsoleScreen, ShowsPeers
from tui.screens.cluster import ClusterScreen
from tui.talk import talk
from tui.widgets.chat_pane import ChatPane
from tui.widgets.split_bar import SplitBar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from textual.screen import Screen

    from backends.state import ClusterSnapshot
    from tui.cluster import Cluster
    from tui.screens.lab import LabScreen
    from tui.screens.logs import LogsScreen
    from tui.screens.models import ModelsScreen
    from tui.screens.traffic import TrafficScreen


class DllmApp(ConsoleApp):
    """One console on one cluster."""

    TITLE = "dllm"
    DEFAULT_MODE = "cluster"

    def __init__(
        self,
        cluster: Cluster,
        *,
        memory_file: Path,
        themes_dir: Path | None = None,
        initial_model: str | None = None,
        serving_pane: str = "split",
        theme: str = "",
        keys: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Make a console; nothing is asked of the cluster before it runs.

        Args:
            cluster: What to show and to steer.
            memory_file: Where layout, last plan and conversation are kept.
            themes_dir: The user's own themes.
            serving_pane: The pane to begin in when a model serves already.
            initial_model: A GGUF to begin with, where nothing runs.
            theme: The configured theme; empty for the one used last.
            keys: Other keys for actions, by their ids.
            clock: Unix seconds, for the event log.
        """
        memory, error = _recalled(memory_file)
        folders = [theming.BUILTIN_FOLDER] + ([themes_dir] if themes_dir else [])
        super().__init__(
            theme_folders=folders,
            theme=theme or memory.theme or theming.DEFAULT_THEME,
            keys=keys or {},
            clock=clock,
        )
        if error is not None:
            self._early_trouble.append(error)
        self.cluster = cluster
        self.desk = Desk()
        self._memory_file = memory_file
        self._memory = memory
        self._flows = Flows(self, cluster, self.desk)
        self._peer_flows = PeerFlows(self, cluster, self.desk)
        self._questions = Questions(self, self.desk, self._peer_flows)
        self._initial_model = initial_model
        self._serving_pane = serving_pane
        self._begun = False
        self._home = ClusterScreen(zoomed=memory.zoomed, clock=clock)
        self.add_mode("cluster", lambda: self._home)
        self.add_mode("traffic", self._traffic_screen)
        self.add_mode("lab", self._lab_screen)
        self.add_mode("logs", self._logs_screen)
        self.add_mode("models", self._models_screen)

    # --- start and end -----------------------------------------------------------

    def on_mount(self) -> None:
        """Bring back the conversation, and listen to the cluster."""
        self._home.chat.restore(self._memory.conversation, self._memory.sampling)
        bridge = Bridge(self.cluster, self.post_message)
        self.run_worker(bridge.run(), group="bridge", exit_on_error=False)

    def on_unmount(self) -> None:
        """Write down what to remember."""
        memory = Remembered(
            theme=self.theme,
            zoomed=self._home.zoomed,
            plan=self.desk.plan,
            conversation=self._home.chat.conversation,
            sampling=self._home.chat.sampling,
        )
        try:
            remember(self._memory_file, memory)
        except DllmError as error:
            self.log.error(str(error))

    def _logs_screen(self) -> LogsScreen:
        # Imported when needed, like all but the first screen: a start is short.
        from tui.screens.logs import LogsScreen

        return LogsScreen(self.cluster)

    def _traffic_screen(self) -> TrafficScreen:
        from tui.screens.traffic import TrafficScreen

        return TrafficScreen(self.cluster)

    def _models_screen(self) -> ModelsScreen:
        from tui.screens.models import ModelsScreen

        return ModelsScreen(self.cluster)

    def _lab_screen(self) -> LabScreen:
        from tui.screens.lab import LabScreen

        return LabScreen(self.cluster)

    # --- what the cluster says ---------------------------------------------------

    @on(SnapshotTaken)
    def _snapshot_taken(self, message: SnapshotTaken) -> None:
        self.desk.take(message.snapshot)
        if not self._begun:
            self._begun = True
            self._begin(message.snapshot)
        if self.desk.plan is not None and self.desk.model is None:
            self.attempt(self._flows.read_header(self.desk.plan), group="header")
        with self.batch_update():
            self._show()
        self._questions.look()

    @on(LinkLost)
    def _link_lost(self, message: LinkLost) -> None:
        self.tell(f"{message.reason}. Reconnecting…", "warning")
        self._show_link(False)

    @on(LinkRestored)
    def _link_restored(self) -> None:
        self.tell("The controller answers again")
        self._show_link(True)

    def show_desk(self) -> None:
        """Show the plan on the desk."""
        self._home.show_desk(self.desk)

    def _begin(self, snapshot: ClusterSnapshot) -> None:
        """The first snapshot: re-attach to what runs, else take up the last work."""
        if snapshot.state is ClusterState.SERVING and not self._home.zoomed:
            # The chat cannot take the focus before it has been told that it is ready.
            self.call_after_refresh(self._home.go_to, self._serving_pane)
        if snapshot.plan is not None:
            return
        if self._initial_model:
            self.attempt(self._flows.choose(self._initial_model), group="model")
        elif self._memory.plan is not None:
            self.attempt(self._flows.recall(self._memory.plan), group="model")

    def _show(self) -> None:
        """Show the newest snapshot on the screen in front."""
        if self.desk.snapshot is None:
            return
        base = self.screen_stack[0]
        if isinstance(base, ConsoleScreen):
            base.show_snapshot(self.desk.snapshot)
        if base is self._home:
            self.show_desk()
        for screen in self.screen_stack[1:]:
            if isinstance(screen, ShowsPeers):
                screen.show_peers(self.desk.peers)

    def _show_link(self, connected: bool) -> None:
        for screen in self._screens():
            screen.show_link(connected)

    def _screens(self) -> list[ConsoleScreen]:
        """The screens made so far, of every mode."""
        stacks = self._screen_stacks.values()
        found: list[Screen[object]] = [stack[0] for stack in stacks if stack]
        return [screen for screen in found if isinstance(screen, ConsoleScreen)]

    # --- what the user does --------------------------------------------------------

    @on(SplitBar.Changed)
    def _split_changed(self, message: SplitBar.Changed) -> None:
        if message.final:
            self.desk.edit(message.split)
            self.show_desk()

    @on(ChatPane.Asked)
    def _asked(self, message: ChatPane.Asked) -> None:
        answer = talk(self.cluster, message.request, message.control.show_delta)
        self.attempt(answer, group="chat")

    @on(ChatPane.Stopped)
    def _stopped(self) -> None:
        self.workers.cancel_group(self, "chat")

    @on(LogWanted)
    async def _log_wanted(self, message: LogWanted) -> None:
        from tui.screens.logs import LogsScreen

        await self.action_show_mode("logs")
        if isinstance(self.screen, LogsScreen):
            self.screen.show_process(message.process)

    async def on_models_screen_chosen(self, message: ModelsScreen.Chosen) -> None:
        """A model was picked on its screen: go and split it."""
        await self.action_show_mode("cluster")
        self.attempt(self._flows.choose(message.path), group="model")

    def on_lab_screen_lab_wanted(self, message: LabScreen.LabWanted) -> None:
        """A link is to be slower; the newest wish for it counts."""
        group = f"lab {message.worker or ''}"
        self.attempt(self._set_lab(message), group=group)

    async def _set_lab(self, message: LabScreen.LabWanted) -> None:
        await self.cluster.set_lab(message.worker, message.lab)

    def on_traffic_screen_export_wanted(self) -> None:
        """The latest tokens are to go to a file."""
        self.attempt(self._flows.export_trace(), group="trace")

    @on(PeerWanted)
    def _peer_wanted(self, message: PeerWanted) -> None:
        work = self._peer_flows.deed(message.verb, message.peer)
        if work is not None:
            self.attempt(work, group=f"peer {message.verb}", exclusive=False)

    async def action_show_mode(self, mode: str) -> None:
        """Go to another screen."""
        await self.switch_mode(mode)
        self._show()

    async def action_back(self) -> None:
        """Leave this screen, or zoom."""
        if self.current_mode != self.DEFAULT_MODE:
            await self.action_show_mode(self.DEFAULT_MODE)
        else:
            self._home.leave_zoom()

    def action_launch(self) -> None:
        """Run the plan on the desk."""
        self.attempt(self._flows.launch(), group="launch")

    def action_stop(self) -> None:
        """Stop what runs."""
        self.attempt(self._flows.stop(), group="launch")

    @on(SplitBar.NothingToUndo)
    def action_undo_plan(self) -> None:
        """Bring back the plan before the last change of head or workers."""
        if self.desk.undo():
            self.show_desk()
        else:
            self.bell()

    def action_balance(self) -> None:
        """Deal the layers out by memory."""
        self._flows.balance()

    def action_pick_model(self) -> None:
        """Ask for a model."""
        self.attempt(self._flows.pick_model(), group="model")

    def action_quit_console(self) -> None:
        """Leave."""
        self.attempt(self._flows.leave(), group="leave")


def _recalled(path: Path) -> tuple[Remembered, DllmError | None]:
    """What was remembered, or nothing and why."""
    try:
        return recall(path), None
    except DllmError as error:
        return Remembered(), error
