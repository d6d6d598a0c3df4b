"""Flows of several steps with other machines: adding, installing, giving parts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING

import msgspec

from backends.config import EFFECTS
from backends.direct_address import AUTO
from backends.errors import DllmError
from backends.machine_names import LOCAL, at_peer
from backends.split.experts import dropped_text, with_kept
from backends.state import (
    Ask,
    Peer,
    PeerQuestion,
    PeerRole,
    Plan,
    ProcessRole,
    Transport,
)
from tui.app.console import ClusterConsole, Flow
from tui.app.frame import ConsoleScreen
from tui.app.messages import LogWanted
from tui.flows.plans import PICK_FIRST
from tui.flows.settings import SettingsFlow
from tui.model.edit import Lineup
from tui.model.launch_settings import LaunchSettings
from tui.model.names import model_name
from tui.model.peer_words import FINE, why_not
from tui.widgets.keys import takes_text

if TYPE_CHECKING:
    from tui.dialogs.add_peer import Wish

DATA_REMARK = (
    "auto: directly where it can be reached, else through SSH · tunnel: through SSH "
    "alone · an address there, such as 10.0.0.7:50060: directly at that"
)


class PeerFlows(Flow):
    """Adding machines, working at them, and their parts in the plan."""

    def __init__(self, app: ClusterConsole, settings: SettingsFlow) -> None:
        super().__init__(app)
        self._settings = settings
        self._ended: set[str] = set()
        """Peers at which the user has ended the work under way."""
        self._changing_parts = asyncio.Lock()
        """Makes each change of parts begin with the result of the one before."""

    # --- dialogs -------------------------------------------------------------------

    async def add(self) -> None:
        # Imported when needed, like all dialogs: most sessions open few.
        from tui.dialogs.add_peer import AddPeerDialog

        dialog = AddPeerDialog(self._cluster, self._editor.peers)
        await self._go_on(await self._app.push_screen_wait(dialog))

    async def invite(self) -> None:
        from tui.dialogs.invite import InviteDialog

        peers, clock = self._editor.peers, self._app.clock
        dialog = InviteDialog(self._cluster, peers, clock)
        await self._go_on(await self._app.push_screen_wait(dialog))

    async def _go_on(self, wish: Wish | None) -> None:
        if wish is None:
            return
        verb, name = wish
        if verb == "invite":
            await self.invite()
        elif (peer := self._peer(name)) is not None:
            await getattr(self, verb)(peer)

    async def open(self, peer: Peer) -> None:
        if peer.question is not None:
            await self.answer(peer)
            return
        from tui.dialogs.peers import PeerDialog

        await self._app.push_screen_wait(PeerDialog(peer, self._app.clock))

    async def answer(self, peer: Peer) -> None:
        from tui.dialogs.peers import question_dialog

        dialog = question_dialog(peer)
        if dialog is None:
            return
        answer = await self._app.push_screen_wait(dialog)
        if answer is not None:
            await self._cluster.answer_peer(peer.name, answer)

    async def data(self, peer: Peer) -> None:
        if peer.data is None:
            self._app.tell(
                f"There is only one way to send data to {peer.name}", "warning"
            )
            return
        from tui.dialogs.dialog import LineDialog

        name = f"peers.{peer.name}.data"
        # A peer in use goes by what was set before until its cluster has ended.
        wanted = await self._settings.value(name) or AUTO
        dialog = LineDialog(f"How data go to {peer.name}", wanted, AUTO, DATA_REMARK)
        text = await self._app.push_screen_wait(dialog)
        if text is not None and text.strip() != wanted:
            await self._settings.change(name, text.strip() or None)
            said = f"Data go to {peer.name} by {text.strip() or AUTO}"
            self._app.tell(f"{said}: {EFFECTS['peers']}")

    async def rename(self, peer: Peer) -> None:
        if peer.transport == Transport.LOCAL:
            self._app.tell("This machine keeps its name", "warning")
            return
        from tui.dialogs.dialog import LineDialog

        remark = "Its measured speeds stay known, and saved plans follow"
        dialog = LineDialog(f"Name of {peer.name}", peer.name, peer.name, remark)
        text = await self._app.push_screen_wait(dialog)
        new = (text or "").strip()
        if new and new != peer.name:
            await self._cluster.rename_peer(peer.name, new)
            self._app.tell(f"{peer.name} is called {new} now")

    async def remove(self, peer: Peer) -> None:
        if peer.transport == Transport.LOCAL:
            self._app.tell("This machine is always there", "warning")
            return
        from tui.dialogs.dialog import confirm

        text = f"The console forgets {peer.name}. What is installed there stays."
        dialog = confirm("Remove?", text, "Remove it", "y")
        if await self._app.push_screen_wait(dialog) == "yes":
            await self._cluster.remove_peer(peer.name)
            self._app.tell(f"{peer.name} is removed")

    # --- work at a peer ---------------------------------------------------------------

    async def probe(self, peer: Peer) -> None:
        if peer.transport == Transport.LOCAL:
            self._app.tell("This machine is probed all the time")
            return
        found = await self._cluster.probe_peer(peer.name)
        self._app.tell(f"Probed {peer.name}: {found.state}")

    async def provision(self, peer: Peer) -> None:
        snapshot = self._editor.snapshot
        if peer.transport == Transport.LOCAL and snapshot and snapshot.no_engine:
            self._app.get_engine()
            return
        if self._can_be_worked_at(peer, "This machine has its engine already"):
            what, plan = f"{peer.name} has our engine now", self._editor.plan
            idle = plan and peer.name not in {worker.peer for worker in plan.workers}
            then = ". {peers.use} adds it to the split" if idle else ""
            work = self._cluster.provision_peer(peer.name)
            await self._long(peer, work, what, then)

    async def copy(self, peer: Peer) -> None:
        plan = self._editor.plan
        if plan is None:
            self._app.tell(PICK_FIRST, "warning")
        elif there := at_peer(plan.model):
            text = f"Only {there[0]} holds the model: copies are made of files here"
            self._app.tell(text, "warning")
        elif self._can_be_worked_at(peer, "This machine has the model already"):
            what = f"{peer.name} has {model_name(plan.model)} now"
            copying = self._cluster.deliver(peer.name, plan.model)
            await self._long(peer, copying, what)

    async def cancel(self, peer: Peer) -> None:
        if peer.work is None:
            self._app.tell(f"No task is running on {peer.name}")
            return
        self._ended.add(peer.name)
        await self._cluster.cancel_work(peer.name)

    async def log(self, peer: Peer) -> None:
        snapshot = self._editor.snapshot
        processes = snapshot.processes if snapshot else ()
        there = [one for one in processes if peer.name in (one.peer, one.name)]
        head = peer.role is PeerRole.HEAD
        first = ProcessRole.SERVER if head else ProcessRole.WORKER
        if there:
            shown = min(there, key=lambda process: process.role is not first)
            self._app.post_message(LogWanted(shown.name))
        else:
            self._app.tell(f"No process of ours runs at {peer.name}", "warning")

    # --- parts in the plan ----------------------------------------------------------

    async def use(self, peer: Peer) -> None:
        """Let a peer work in the plan in the editor, or leave it out."""
        async with self._changing_parts:
            plan = self._editor.plan
            if plan is None:
                self._app.tell(PICK_FIRST, "warning")
            elif Lineup.of(plan).uses(_machine(peer)):
                await self._leave_out(plan, peer)
            else:
                await self._take_in(plan, peer)

    async def join(self, peer: Peer) -> None:
        """Let a peer work in the plan in the editor, if it does not yet."""
        plan = self._editor.plan
        if plan is not None and Lineup.of(plan).uses(_machine(peer)):
            self._app.tell(f"{peer.name} is already in the split")
        else:
            await self.use(peer)

    async def _leave_out(self, plan: Plan, peer: Peer) -> None:
        lineup = Lineup.of(plan)
        is_own_worker = _machine(peer) == LOCAL and peer.role is PeerRole.WORKER
        if is_own_worker and lineup.own and lineup.own > 1:
            lineup = lineup.with_worker(LOCAL, lineup.own - 1)
        else:
            lineup = lineup.without(_machine(peer))
        if lineup.empty:
            self._app.tell(
                f"Only {_machine(peer)} has layers: add another machine first, "
                "with {peers.use}"
            )
        else:
            await self._propose(plan, lineup)

    async def _take_in(self, plan: Plan, peer: Peer) -> None:
        name = _machine(peer)
        if name == plan.head != LOCAL:
            self._app.tell(f"{name} is the head: its devices are in the split already")
        elif name != LOCAL and (reason := why_not(peer)):
            self._app.tell(reason, "warning")
        else:
            own = 0
            if name == LOCAL:
                usual = await self._cluster.propose(Ask(model=plan.model, peers=()))
                own = max(sum(w.peer == LOCAL for w in usual.workers), 1)
            await self._propose(plan, Lineup.of(plan).with_worker(name, own))

    async def lead(self, peer: Peer) -> None:
        async with self._changing_parts:
            plan = self._editor.plan
            if plan is None:
                self._app.tell(PICK_FIRST, "warning")
            elif _machine(peer) == plan.head == LOCAL:
                self._app.tell("This machine is the head already")
            else:
                await self._lead(plan, peer)

    async def _lead(self, plan: Plan, peer: Peer) -> None:
        name = LOCAL if peer.name == plan.head else _machine(peer)
        if name != LOCAL and peer.transport == Transport.BARE:
            self._app.tell(f"{name} is a bare rpc-server: it runs no llama-server")
        elif name != LOCAL and (reason := why_not(peer)):
            self._app.tell(reason, "warning")
        else:
            await self._propose(plan, Lineup.of(plan).led_by(name))

    async def _propose(self, plan: Plan, lineup: Lineup) -> None:
        found = {name: self._peer(name) for name in lineup.peers}
        able = [name for name, peer in found.items() if peer and peer.state in FINE]
        proposed = await self._cluster.propose(
            Ask(
                model=plan.model,
                workers=lineup.own,
                peers=tuple(able),
                head=lineup.head,
                worker_threads=LaunchSettings.of(plan).worker_threads,
                ctx_size=plan.ctx_size,
                server=plan.server,
            )
        )
        same_head = proposed.head == plan.head
        proposed = msgspec.structs.replace(
            with_kept(proposed, plan),
            api_port=plan.api_port,
            engine=plan.engine if same_head else None,
            relay=plan.relay,
            pair=plan.pair,
            extra_args=plan.extra_args,
        )
        if self._editor.plan is None or self._editor.plan.model != plan.model:
            return
        self._editor.put(proposed)
        if missing := [name for name in lineup.peers if name not in able]:
            self._app.tell(f"Skipped (unavailable): {', '.join(missing)}")
        if text := dropped_text(plan, proposed):
            self._app.tell(text, "warning")

    async def _long(
        self, peer: Peer, work: Awaitable[object], done: str, then: str = ""
    ) -> None:
        self._ended.discard(peer.name)
        try:
            result = await work
        except DllmError:
            if peer.name not in self._ended:
                raise
            self._ended.discard(peer.name)
            self._app.tell(f"Cancelled on {peer.name}; the next run resumes")
            return
        note = result.note if isinstance(result, Peer) else ""
        self._app.tell((f"{done}: {note.rstrip('.')}" if note else done) + then)

    def _can_be_worked_at(self, peer: Peer, not_here: str) -> bool:
        if peer.transport == Transport.LOCAL:
            self._app.tell(not_here, "warning")
        elif peer.transport == Transport.BARE:
            what = f"{peer.name} is a bare rpc-server: nothing can be put there"
            more = "Add the machine by its SSH name for more"
            self._app.tell(f"{what}. {more}", "warning")
        elif peer.work is not None:
            what = f"{peer.name} is busy: {peer.work.title}"
            self._app.tell(f"{what}. {{peers.cancel}} cancels it", "warning")
        else:
            return True
        return False

    def _peer(self, name: str) -> Peer | None:
        return next((peer for peer in self._editor.peers if peer.name == name), None)


def _machine(peer: Peer) -> str:
    return LOCAL if peer.transport == Transport.LOCAL else peer.name


Asked = tuple[PeerQuestion | None, float | None]


class Questions(Flow):
    """Opens the dialog of a question when its peer begins to ask."""

    def __init__(self, app: ClusterConsole, flows: PeerFlows) -> None:
        super().__init__(app)
        self._flows = flows
        self._met: dict[str, Asked] = {}
        self._asking = False

    def look(self) -> None:
        if not self._asking and self._news() is not None:
            self._asking = True
            self._app.attempt(self._ask_all(), group="questions", exclusive=False)

    async def _ask_all(self) -> None:
        try:
            while (peer := self._news()) is not None:
                self._met[peer.name] = _asked(peer)
                await self._ask(peer)
        finally:
            self._asking = False

    async def _ask(self, peer: Peer) -> None:
        if self._may_open(peer):
            await self._flows.answer(peer)
        else:
            self._app.tell(
                f"{peer.name} needs your input: select it, press {{peers.open}}"
            )

    def _news(self) -> Peer | None:
        snapshot = self._editor.snapshot
        asking = {p.name: p for p in (snapshot.peers if snapshot else ()) if p.question}
        self._met = {
            name: asked
            for name, asked in self._met.items()
            if name in asking and _asked(asking[name]) == asked
        }
        new = (peer for name, peer in asking.items() if name not in self._met)
        return next(new, None)

    def _may_open(self, peer: Peer) -> bool:
        """True if a dialog would take no key meant for something else."""
        screen = self._app.screen
        if getattr(screen, "follows", "") == peer.name:
            return True
        if not self._app.app_focus:
            return False  # While one is away Textual takes the focus from the field.
        if takes_text(screen.focused) or self._app.mouse_captured:
            return False
        here = self._app.current_mode == self._app.DEFAULT_MODE
        return here and isinstance(screen, ConsoleScreen)


def _asked(peer: Peer) -> Asked:
    return peer.question, peer.since
