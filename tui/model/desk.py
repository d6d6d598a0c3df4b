"""The console's desk: the draft, beside the running plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from backends.places import at_peer
from backends.speculation.memory import with_draft
from backends.split.loads import EngineFigures, ours_by_pool
from backends.state import (
    DEFAULT_CLUSTER,
    NO_DRAFT,
    ClusterState,
    DeviceKind,
    PairMode,
    Split,
    Transport,
)
from tui.model.draft import Draft, known_devices, marks_for
from tui.model.editing import Editing, Goals, fits, same_plan
from tui.model.lineup import PlannedPeers
from tui.model.trends import Trends
from tui.model.verdict import runs_now

if TYPE_CHECKING:
    from backends.state import (
        ClusterSnapshot,
        Device,
        DeviceMemory,
        ModelInfo,
        Peer,
        Plan,
        PlanMemory,
    )

TOLD_MAX = 16
"""Answers of the engine kept to learn from, for each way to launch."""
WAYS_MAX = 16
"""Ways to launch (machines and settings) of which answers are kept."""
_ALIVE = frozenset(
    {
        ClusterState.STARTING,
        ClusterState.LOADING,
        ClusterState.SERVING,
        ClusterState.STOPPING,
    }
)


class Desk:
    """The plan in editing and the newest snapshot; draws nothing and calls nobody."""

    def __init__(self, cluster: str = DEFAULT_CLUSTER) -> None:
        self._drawers: dict[str, tuple[Editing, Goals]] = {}
        self.go_to(cluster)

    def go_to(self, cluster: str) -> None:
        """Work on a cluster: with what lay here of it, and nothing of another."""
        drawer = self._drawers.setdefault(cluster, (Editing(), Goals()))
        self.editing, self.goals = drawer
        self.snapshot: ClusterSnapshot | None = None
        self.trends = Trends()
        self._draft: Draft | None = None
        self._devices: tuple[Device, ...] = ()
        self._told: dict[Plan, tuple[EngineFigures, ...]] = {}
        self._unanswered: tuple[Plan | None, str] = (None, "")

    def take(self, snapshot: ClusterSnapshot) -> bool:
        """Take a snapshot; False for one that is older than what is known.

        A plan that somebody else brought to run is put on the desk; the draft before
        is one undo away. What was met before stays where it is: the user may have
        edited it since.
        """
        if _is_late(snapshot, self.snapshot):
            return False
        self.snapshot = snapshot
        self.trends.add(snapshot)
        plan, model = snapshot.plan, snapshot.model
        if plan is None:
            return True
        header = model if model and is_header_of(model, plan) else None
        if self.goals.meet(plan):
            self.editing.put(plan, header)
        elif header is not None:
            self.editing.learn(plan.model, header)
        return True

    @property
    def plan(self) -> Plan | None:
        """The plan being edited."""
        return self.editing.plan

    @property
    def model(self) -> ModelInfo | None:
        """The header of its model; None where it has still to be read."""
        return self.editing.model

    def put(self, plan: Plan, model: ModelInfo | None = None) -> None:
        """Work on another plan; the one before can be brought back."""
        self.editing.put(plan, model)

    @property
    def unsettled(self) -> Plan | None:
        """The plan on the desk, if the engine has not answered for it yet."""
        draft, plan = self.draft, self.plan
        if draft is None or plan is None or draft.is_settled:
            return None
        return None if plan == self._unanswered[0] else plan

    def settle(self, plan: Plan, memory: PlanMemory) -> None:
        """Take the answer to the question about a plan."""
        if memory.note:
            self._unanswered = (plan, memory.note)
            return
        told = EngineFigures(
            split=plan.split, ctx_size=plan.ctx_size, memory=memory.devices
        )
        before = self._told_for(plan)
        self._told.pop(_way(plan), None)
        self._told[_way(plan)] = (*before[-TOLD_MAX + 1 :], told)
        while len(self._told) > WAYS_MAX:
            del self._told[next(iter(self._told))]

    def _told_for(self, plan: Plan) -> tuple[EngineFigures, ...]:
        return self._told.get(_way(plan), ())

    def _ours(self) -> tuple[tuple[str, int], ...]:
        """The running cluster's bytes in each memory that is measured all the time.

        A GPU is not asked while it serves: what it has free is from before, so nothing
        of ours is in it.
        """
        snapshot = self.snapshot
        if snapshot is None or snapshot.plan is None or snapshot.measured is None:
            return ()
        plan = snapshot.plan
        devices = known_devices(plan, snapshot.peers, snapshot.engine)
        cpus = [device for device in devices if device.kind is DeviceKind.CPU]
        buffers = snapshot.measured.buffers
        held = (with_draft(one, plan.speculation) for one in buffers)
        return tuple(sorted(ours_by_pool(held, cpus, head=plan.head).items()))

    @property
    def alive(self) -> bool:
        """True if a cluster runs, starts or stops."""
        return self.snapshot is not None and self.snapshot.state in _ALIVE

    @property
    def unchanged(self) -> bool:
        """True if the very plan on the desk runs already."""
        running = runs_now(self.snapshot)
        return bool(running and self.plan and same_plan(running, self.plan))

    @property
    def head_cpu(self) -> str | None:
        """The head's CPU, if the split names it."""
        if self.plan is None:
            return None
        cpu = f"{self.plan.head}/CPU"
        return cpu if any(s.device == cpu for s in self.plan.split.shares) else None

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices of the plan, in the order of its split."""
        if self.plan is None:
            return ()
        found = self._devices_of(self.plan)
        if found != self._devices:
            self._devices = found
        return self._devices

    def _devices_of(self, plan: Plan) -> tuple[Device, ...]:
        if self.snapshot is None:
            return ()
        return known_devices(plan, self.snapshot.peers, self.snapshot.engine)

    @property
    def draft(self) -> Draft | None:
        """The plan with all that is needed to draw it; the same object while it is."""
        if self.plan is None or self.model is None:
            return None
        draft = self._drawn(self.plan, self.model)
        if draft != self._draft:
            self._draft = draft
        return self._draft

    def drawn(self, plan: Plan) -> Draft | None:
        """Another plan for the model on the desk, with what is known of it."""
        if self.model is None or not fits(self.model, plan):
            return None
        return self._drawn(plan, self.model)

    def _drawn(self, plan: Plan, model: ModelInfo) -> Draft:
        return Draft(
            model=model,
            split=plan.split,
            ctx_size=plan.ctx_size,
            server=plan.server,
            devices=self.devices if plan == self.plan else self._devices_of(plan),
            marks=marks_for(self.editing.marks, plan.split),
            head=plan.head,
            speculation=plan.speculation,
            measured=self._measured(plan),
            told=self._told_for(plan),
            ours=self._ours(),
            note=self._unanswered[1] if plan == self._unanswered[0] else "",
        )

    @property
    def peers(self) -> tuple[Peer, ...]:
        """The peers with their parts in the plan on the desk, and workers to come."""
        known = self.snapshot.peers if self.snapshot else ()
        plan = self.plan
        if plan is None:
            return known
        planned = PlannedPeers(plan)
        running = self.snapshot.plan if self.snapshot else None
        shown = [planned.shown(peer) for peer in known if planned.keeps(peer, running)]
        here = [peer for peer in shown if peer.transport == Transport.LOCAL]
        others = [peer for peer in shown if peer.transport != Transport.LOCAL]
        return (*here, *planned.to_come(shown, self.devices), *others)

    def _measured(self, plan: Plan) -> tuple[DeviceMemory, ...]:
        measured = self.snapshot.measured if self.snapshot else None
        running = runs_now(self.snapshot)
        runs = running is not None and same_plan(running, plan)
        return measured.buffers if measured and runs else ()


def is_header_of(model: ModelInfo, plan: Plan) -> bool:
    """True if a snapshot's header is that of its plan's model.

    While a launch begins, the header is still that of what ran before.
    """
    path = at_peer(plan.model)
    same = model.path == (path[1] if path else plan.model) or plan.model in model.files
    return same and fits(model, plan)


def _way(plan: Plan) -> Plan:
    return msgspec.structs.replace(
        plan,
        split=Split(n_layer=plan.split.n_layer, shares=()),
        ctx_size=0,
        server=msgspec.structs.replace(plan.server, draft=NO_DRAFT),
        speculation=None,
        api_port=None,
        relay=True,
        pair=PairMode.AUTO,
        asked=None,
    )


def _is_late(snapshot: ClusterSnapshot, newest: ClusterSnapshot | None) -> bool:
    if newest is None or newest.controller_pid != snapshot.controller_pid:
        return False
    return snapshot.seq < newest.seq
