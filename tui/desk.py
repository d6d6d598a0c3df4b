"""What the console works on: the plan being edited, beside what runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from backends.state import ClusterState, Transport
from tui.lineup import Cast
from tui.widgets.draft import Draft, known_devices, marks_for
from tui.widgets.verdict import runs_now, same_work

if TYPE_CHECKING:
    from backends.state import (
        ClusterSnapshot,
        Device,
        DeviceBuffers,
        ModelInfo,
        Peer,
        Plan,
        Split,
    )

UNDO_MAX = 20
_ALIVE = frozenset(
    {
        ClusterState.STARTING,
        ClusterState.LOADING,
        ClusterState.SERVING,
        ClusterState.STOPPING,
    }
)


class Desk:
    """Plan, model and newest snapshot; draws nothing and calls nobody."""

    def __init__(self) -> None:
        """Begin with an empty desk."""
        self.snapshot: ClusterSnapshot | None = None
        self.plan: Plan | None = None
        self.model: ModelInfo | None = None
        self._seen: Plan | None = None
        self._marks: tuple[str, ...] = ()
        self._draft: Draft | None = None
        self._devices: tuple[Device, ...] = ()
        self._before: list[Plan] = []

    def take(self, snapshot: ClusterSnapshot) -> None:
        """Take the newest snapshot; a plan newly running is put on the desk.

        A plan seen before stays where it is: the user may have edited it since.
        """
        self.snapshot = snapshot
        plan = snapshot.plan
        if plan is not None and plan != self._seen:
            self.put(plan, snapshot.model or self._model_of(plan))
        elif plan is not None and self.model is None and self.plan == plan:
            self.model = snapshot.model
        self._seen = plan

    def put(self, plan: Plan, model: ModelInfo | None) -> None:
        """Work on another plan."""
        self.plan = plan
        self.model = model
        self._marks = marks_for(self._marks, plan.split)

    def put_anew(self, plan: Plan) -> None:
        """Work on a plan with other machines; the one before can be brought back."""
        if self.plan is not None:
            self._before = [*self._before[-UNDO_MAX + 1 :], self.plan]
        self.put(plan, self.model)

    def undo(self) -> bool:
        """Bring back the plan before the last change of machines, if there was one."""
        while self._before and self.plan is not None:
            plan = self._before.pop()
            if plan.model == self.plan.model:
                self.put(plan, self.model)
                return True
        return False

    @property
    def can_undo(self) -> bool:
        """Whether a change of machines can be taken back."""
        return any(self.plan and p.model == self.plan.model for p in self._before)

    def edit(self, split: Split) -> None:
        """The user moved layers."""
        if self.plan is not None:
            self.plan = msgspec.structs.replace(self.plan, split=split)

    def launched(self, plan: Plan) -> None:
        """This plan was sent off: meeting it in a snapshot is no news."""
        self._seen = plan

    @property
    def alive(self) -> bool:
        """Whether something runs, or is coming or going."""
        return self.snapshot is not None and self.snapshot.state in _ALIVE

    @property
    def unchanged(self) -> bool:
        """Whether the very plan on the desk runs already."""
        running = runs_now(self.snapshot)
        return bool(running and self.plan and same_work(running, self.plan))

    @property
    def lacks_model(self) -> bool:
        """Whether the header of the plan's model has still to be read."""
        return self.plan is not None and self.model is None

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
        if self.plan is None or self.snapshot is None:
            return ()
        found = known_devices(self.plan, self.snapshot.peers, self.snapshot.engine)
        if found != self._devices:
            self._devices = found
        return self._devices

    @property
    def draft(self) -> Draft | None:
        """The plan with all that is needed to draw it; the same object while it is."""
        if self.plan is None or self.model is None:
            return None
        draft = Draft(
            model=self.model,
            split=self.plan.split,
            ctx_size=self.plan.ctx_size,
            devices=self.devices,
            marks=self._marks,
            head=self.plan.head,
            measured=self._measured(),
        )
        if draft != self._draft:
            self._draft = draft
        return self._draft

    @property
    def peers(self) -> tuple[Peer, ...]:
        """The peers with their parts in the plan on the desk, and workers to come."""
        known = self.snapshot.peers if self.snapshot else ()
        plan = self.plan
        if plan is None:
            return known
        cast = Cast(plan)
        running = self.snapshot.plan if self.snapshot else None
        shown = [cast.shown(peer) for peer in known if cast.keeps(peer, running)]
        here = [peer for peer in shown if peer.transport == Transport.LOCAL]
        others = [peer for peer in shown if peer.transport != Transport.LOCAL]
        return (*here, *cast.to_come(shown, self.devices), *others)

    def _measured(self) -> tuple[DeviceBuffers, ...]:
        """Measured bytes, where the very plan on the desk is the one that runs."""
        measured = self.snapshot.measured if self.snapshot else None
        return measured.buffers if measured and self.unchanged else ()

    def _model_of(self, plan: Plan) -> ModelInfo | None:
        """The header already read, if the plan is for the same file."""
        if self.plan is not None and self.plan.model == plan.model:
            return self.model
        return None
