"""The editor of a cluster's plan: the edit, its history, and the newest snapshot.

The editor owns the edited plan. Screens and flows change it here, read it here, and
hear of a change by ``changed``; none keeps a split of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec
from msgspec.structs import replace

from backends.server_settings import without_tensor
from backends.speculation.memory import with_draft
from backends.split.cost import workload
from backends.split.device_memory import EngineFigures, ours_by_pool
from backends.split.experts import with_split
from backends.split.layout import boundaries, move_boundary, reorder
from backends.state import (
    DEFAULT_CLUSTER,
    NO_DRAFT,
    Alternative,
    Bottleneck,
    ClusterSnapshot,
    ClusterSpeeds,
    ClusterState,
    Device,
    DeviceKind,
    DeviceMemory,
    Forecast,
    ModelInfo,
    PairMode,
    Peer,
    Plan,
    PlanMemory,
    Split,
)
from tui.model.edit import (
    ALIVE,
    Edit,
    Prospect,
    fits,
    is_header_of,
    known_devices,
    marks_for,
    peers_of,
    runs_now,
    same_plan,
)
from tui.model.facts import LiveFacts
from tui.model.trends import Trends

T = TypeVar("T")

DEPTH_MAX = 1000
"""Steps that can be taken back."""
SENT_MAX = 8
"""Plans sent to the controller that are remembered."""
TOLD_MAX = 16
"""Answers of the engine kept to learn from, for each way to launch."""
WAYS_MAX = 16
"""Ways to launch (machines and settings) of which answers are kept."""


class History(msgspec.Struct, Generic[T], frozen=True):
    """The present value, the past (oldest first) and the undone (nearest first)."""

    present: T
    past: tuple[T, ...] = ()
    future: tuple[T, ...] = ()

    def push(self, present: T) -> History[T]:
        """Make something the present one; the same again is no step."""
        if present == self.present:
            return self
        return History(present, (*self.past, self.present)[-DEPTH_MAX:])

    def undo(self) -> History[T]:
        if not self.past:
            return self
        *past, present = self.past
        return History(present, tuple(past), (self.present, *self.future))

    def redo(self) -> History[T]:
        if not self.future:
            return self
        present, *future = self.future
        return History(present, (*self.past, self.present), tuple(future))

    def mapped(self, change: Callable[[T], T]) -> History[T]:
        """Every step changed alike: something was learned about all of them."""
        return History(
            change(self.present),
            tuple(map(change, self.past)),
            tuple(map(change, self.future)),
        )


class Version(msgspec.Struct, frozen=True):
    """One step of the history: values that belong together."""

    plan: Plan
    model: ModelInfo | None
    """The header of the plan's own model; None while it is not read."""
    marks: tuple[str, ...]

    def with_split(self, split: Split) -> Version:
        """The same with other layers, or the same devices in another order."""
        plan, marks = with_split(self.plan, split), marks_for(self.marks, split)
        return replace(self, plan=plan, marks=marks)

    def with_header(self, path: str, model: ModelInfo) -> Version:
        """The same with the header of a file, if that is the one it lacks."""
        lacks = self.model is None and self.plan.model == path
        return replace(self, model=model) if lacks and fits(model, self.plan) else self


class _Drag(msgspec.Struct, frozen=True):
    """A boundary that is held: it counts when the user lets go."""

    boundary: int
    start: Split
    """The drag has no meaning for another split."""
    split: Split


class _Work(msgspec.Struct):
    """The editor's memory of one cluster."""

    history: History[Version] | None = None
    seen: Plan | None = None
    sent: list[Plan] = []
    """Plans sent but not yet answered: to meet one in a snapshot is no news."""


class PlanEditor:
    """The plan in editing beside the running one; draws nothing and calls nobody."""

    def __init__(self, cluster: str = DEFAULT_CLUSTER) -> None:
        self.changed: Callable[[], object] = lambda: None
        """Called after each change of the edit; a snapshot changes it silently."""
        self._works: dict[str, _Work] = {}
        self.go_to(cluster)

    def go_to(self, cluster: str) -> None:
        """Work on a cluster, with the history of its edits and no other's."""
        self._work = self._works.setdefault(cluster, _Work())
        self.snapshot: ClusterSnapshot | None = None
        self.bottleneck: Bottleneck | None = None
        self.trends = Trends()
        self._drag: _Drag | None = None
        self._preview: Plan | None = None
        self._edit: Edit | None = None
        self._edit_ground: tuple[object, ...] = ()
        self._facts: LiveFacts | None = None
        self._answered: tuple[float | None, float | None] | None = None
        self._told: dict[Plan, tuple[EngineFigures, ...]] = {}
        self._unanswered: tuple[Plan | None, str] = (None, "")
        self._speeds: dict[Plan, ClusterSpeeds] = {}
        self._prospects: dict[tuple[Plan, int, int], Prospect] = {}
        self._others: tuple[Alternative, ...] = ()
        self._others_ground: tuple[object, ...] | None = None

    def rewind(self, trends: Trends) -> None:
        """Be told of an earlier moment next, which these figures led to."""
        self.snapshot, self.trends = None, trends

    def take(self, snapshot: ClusterSnapshot) -> bool:
        """Take a snapshot; False for one that is older than what is known.

        A plan that another console brought to run becomes the edit; the edit before is
        one undo away. A plan met before stays as it is: the user may have edited it.
        """
        before = self.snapshot
        same = before is not None and before.controller_pid == snapshot.controller_pid
        if same and before is not None and snapshot.seq < before.seq:
            return False
        self.snapshot = snapshot
        # Where answers always come, only a run that was learnt from is news.
        learnt_at = snapshot.last_run.at if snapshot.last_run else None
        known, idle = self._answered, snapshot.speed.tok_per_s is None
        if known is None or idle or learnt_at != known[1]:
            self._answered = snapshot.speed.last_tok_per_s, learnt_at
        self.trends.add(self.facts)
        plan, model = snapshot.plan, snapshot.model
        if plan is None:
            return True
        header = model if model and is_header_of(model, plan) else None
        if self._is_news(plan):
            self._put(plan, header)
        elif header is not None:
            self._learn(plan.model, header)
        return True

    @property
    def facts(self) -> LiveFacts:
        assert self.snapshot is not None
        old = self._facts
        if old is None or (old.snapshot, old.marks) != (self.snapshot, self.marks):
            self._facts = old = LiveFacts.of(self.snapshot, self.marks)
        return old

    # --- the edit -----------------------------------------------------------------

    @property
    def _version(self) -> Version | None:
        return self._work.history.present if self._work.history else None

    @property
    def plan(self) -> Plan | None:
        return self._version.plan if self._version else None

    @property
    def split(self) -> Split | None:
        return self.plan.split if self.plan else None

    @property
    def model(self) -> ModelInfo | None:
        return self._version.model if self._version else None

    @property
    def marks(self) -> tuple[str, ...]:
        return self._version.marks if self._version else ()

    @property
    def edit(self) -> Edit | None:
        """The plan with all that is needed to draw it; the same object while it is."""
        version = self._version
        if version is None or version.model is None:
            return None
        ground = version, self._preview, self._drag, self.snapshot
        # Each move of a drag asks several times.
        if ground != self._edit_ground:
            self._edit_ground = ground
            plan = self._preview or version.plan
            if self.dragging and self._drag is not None:
                plan = with_split(plan, self._drag.split)
            edit = self._drawn(plan, version.model)
            if edit != self._edit:
                self._edit = edit
        return self._edit

    def drawn(self, plan: Plan) -> Edit | None:
        """Another plan for the edited model, with the figures known of it."""
        if self.model is None or not fits(self.model, plan):
            return None
        return self._drawn(plan, self.model)

    def _drawn(self, plan: Plan, model: ModelInfo) -> Edit:
        return Edit(
            plan=plan,
            model=model,
            devices=self._devices_of(plan),
            marks=marks_for(self.marks, plan.split),
            measured=self._measured(plan),
            told=self._told.get(_way(plan), ()),
            ours=self._ours(),
            protocol=self._protocol,
            note=self._unanswered[1] if plan == self._unanswered[0] else "",
            prospect=self._prospect(plan, model),
        )

    @property
    def _protocol(self) -> str:
        engine = self.snapshot.engine if self.snapshot else None
        return engine.rpc_protocol if engine else ""

    @property
    def devices(self) -> tuple[Device, ...]:
        return self._devices_of(self.plan) if self.plan else ()

    def _devices_of(self, plan: Plan) -> tuple[Device, ...]:
        if self.snapshot is None:
            return ()
        return known_devices(plan, self.snapshot.peers, self.snapshot.engine)

    @property
    def peers(self) -> tuple[Peer, ...]:
        if self.plan is None:
            return self.snapshot.peers if self.snapshot else ()
        return peers_of(self.plan, self.snapshot, self.devices)

    @property
    def head_cpu(self) -> str | None:
        cpu = f"{self.plan.head}/CPU" if self.plan else ""
        shares = self.plan.split.shares if self.plan else ()
        return cpu if any(share.device == cpu for share in shares) else None

    # --- against the running plan -------------------------------------------------

    @property
    def alive(self) -> bool:
        return self.snapshot is not None and self.snapshot.state in ALIVE

    @property
    def unchanged(self) -> bool:
        running = runs_now(self.snapshot)
        return bool(running and self.plan and same_plan(running, self.plan))

    def _measured(self, plan: Plan) -> tuple[DeviceMemory, ...]:
        measured = self.snapshot.measured if self.snapshot else None
        running = runs_now(self.snapshot)
        runs = running is not None and same_plan(running, plan)
        return measured.buffers if measured and runs else ()

    def _ours(self) -> tuple[tuple[str, int], ...]:
        """The running cluster's bytes in each memory that is measured all the time.

        A serving GPU is not asked: its free memory is of before the launch, so nothing
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

    # --- memory by the engine -----------------------------------------------------

    @property
    def unsettled(self) -> Plan | None:
        """The edited plan, if the engine is to be asked about its memory."""
        edit, plan = self.edit, self.plan
        held = self.dragging or self._preview is not None
        if edit is None or plan is None or edit.is_settled or held:
            return None
        return None if plan == self._unanswered[0] else plan

    def settle(self, plan: Plan, memory: PlanMemory) -> None:
        if memory.note:
            self._unanswered = (plan, memory.note)
        else:
            told = EngineFigures(
                split=plan.split, ctx_size=plan.ctx_size, memory=memory.devices
            )
            before = self._told.pop(_way(plan), ())
            self._told[_way(plan)] = (*before[-TOLD_MAX + 1 :], told)
            if len(self._told) > WAYS_MAX:
                del self._told[next(iter(self._told))]
        self._edit_ground = ()
        self.changed()

    # --- predicted speed ----------------------------------------------------------

    @property
    def speeds_ground(self) -> tuple[object, ...] | None:
        """All that the speeds of the edited plan depend on; None without a plan.

        A finished answer may have taught the controller something.
        """
        now = self.snapshot
        if self.plan is None or self.model is None or now is None:
            return None
        serves = now.state is ClusterState.SERVING
        way = _speeds_way(self.plan)
        return way, now.generation, serves, self._answered

    def learn_speeds(self, plan: Plan, speeds: ClusterSpeeds) -> None:
        """Predict any split of the plan with these from now on."""
        way = _speeds_way(plan)
        if self._speeds.pop(way, None) != speeds:
            self._prospects.clear()
        self._speeds[way] = speeds
        if len(self._speeds) > WAYS_MAX:
            del self._speeds[next(iter(self._speeds))]
        self._edit_ground = ()
        self.changed()

    def _prospect(self, plan: Plan, model: ModelInfo) -> Prospect | None:
        way = _speeds_way(plan)
        speeds, key = self._speeds.get(way), (way, plan.ctx_size, workload(plan).depth)
        if speeds is None:
            return None
        found = self._prospects.get(key)
        if found is None or found.model is not model:
            self._prospects[key] = found = Prospect(model, plan, speeds)
        return found

    # --- other plans than the edited one -------------------------------------------

    @property
    def others_ground(self) -> tuple[object, ...] | None:
        """All that the best plans depend on, but no split; None if none are sought.

        They are sought before a launch.
        """
        if self.plan is None or self.model is None or self.unchanged:
            return None
        way = _speeds_way(self.plan)
        speeds = self._speeds.get(way)
        if speeds is None:
            return None
        return way, self.plan.ctx_size, workload(self.plan).depth, speeds

    def learn_others(
        self, ground: tuple[object, ...], found: tuple[Alternative, ...]
    ) -> None:
        self._others_ground, self._others = ground, found
        self.changed()

    @property
    def others(self) -> tuple[Alternative, ...]:
        """The best plans and others; empty where they are not known or sought."""
        ground = self.others_ground if self._others else None
        return self._others if ground and ground == self._others_ground else ()

    # --- what a token waits for ---------------------------------------------------

    @property
    def running_forecast(self) -> Forecast | None:
        """The prediction for what serves; None where its speeds are not known."""
        plan = self.snapshot.plan if self.snapshot else None
        edit = self.drawn(plan) if plan else None
        return edit.forecast if edit else None

    @property
    def bottleneck_ground(self) -> tuple[object, ...] | None:
        """All that the bottleneck of what serves depends on; None if nothing serves.

        It is asked for between answers only.
        """
        now = self.snapshot
        if now is None or now.state is not ClusterState.SERVING:
            return None
        labs = tuple(link.lab for link in now.links)
        return now.cluster, now.generation, now.served_since, labs, self._answered

    def learn_bottleneck(self, found: Bottleneck | None) -> None:
        if found != self.bottleneck:
            self.bottleneck = found
            self.changed()

    # --- plans sent ---------------------------------------------------------------

    def send(self, plan: Plan) -> None:
        self._work.sent = [*self._work.sent[-SENT_MAX + 1 :], plan]

    def answered(self, plan: Plan) -> None:
        if plan in self._work.sent:
            self._work.sent.remove(plan)

    def _is_news(self, plan: Plan) -> bool:
        work = self._work
        if work.seen is not None and same_plan(plan, work.seen):
            return False
        work.seen = plan
        return not any(same_plan(plan, sent) for sent in work.sent)

    # --- other plans --------------------------------------------------------------

    def put(self, plan: Plan, model: ModelInfo | None = None) -> None:
        """Work on another plan; the one before can be brought back.

        Without its header, one already read for the same file is taken. A plan that
        does the same as the edit takes its place without being a step.
        """
        self._put(plan, model)
        self.changed()

    def preview(self, plan: Plan | None) -> None:
        """Show another split of the edited plan, as no step; None: the plan again."""
        self._preview = plan
        self.changed()

    def _put(self, plan: Plan, model: ModelInfo | None) -> None:
        self._preview = None
        if model is None or not fits(model, plan):
            model = self._header_of(plan)
        version = Version(plan, model, marks_for(self.marks, plan.split))
        history = self._work.history
        if history is None:
            self._work.history = History(version)
        elif same_plan(plan, history.present.plan):
            self._work.history = replace(history, present=version)
        else:
            self._work.history = history.push(version)

    def learn(self, path: str, model: ModelInfo) -> None:
        self._learn(path, model)
        self.changed()

    def _learn(self, path: str, model: ModelInfo) -> None:
        if self._work.history is not None:
            self._work.history = self._work.history.mapped(
                lambda version: version.with_header(path, model)
            )

    def _header_of(self, plan: Plan) -> ModelInfo | None:
        history = self._work.history
        if history is None:
            return None
        versions = (history.present, *reversed(history.past), *history.future)
        known = (v.model for v in versions if v.plan.model == plan.model)
        return next((m for m in known if m is not None and fits(m, plan)), None)

    # --- layers and order ---------------------------------------------------------

    def set_split(self, split: Split) -> bool:
        history = self._work.history
        if history is None or split == self.split:
            return False
        self._work.history = history.push(history.present.with_split(split))
        self.changed()
        return True

    def move(self, boundary: int, by: int) -> bool:
        """Move a boundary by some layers, as far as its neighbours let it."""
        at = self._position(boundary)
        return at is not None and self._place(boundary, at + by)

    def give(self, boundary: int, layers: int) -> bool:
        """Give the device left of a boundary so many layers, as far as there are."""
        at = self._position(boundary)
        if at is None or self.split is None:
            return False
        first = at - self.split.shares[boundary].layers
        return self._place(boundary, first + layers)

    def exchange(self, index: int, by: int) -> bool:
        """Exchange a device with a neighbour; False if that cannot be."""
        if self.plan is None:
            return False
        return self.set_split(reorder(self.plan.split, index, by, head=self.plan.head))

    def _position(self, boundary: int) -> int | None:
        positions = boundaries(self.split) if self.split else ()
        return positions[boundary] if 0 <= boundary < len(positions) else None

    def _place(self, boundary: int, position: int) -> bool:
        split = self.split
        return split is not None and self.set_split(
            move_boundary(split, boundary, position)
        )

    # --- a drag -------------------------------------------------------------------

    @property
    def dragging(self) -> bool:
        return self._drag is not None and self._drag.start == self.split

    def grab(self, boundary: int) -> None:
        if self.split is not None:
            self._drag = _Drag(boundary, self.split, self.split)

    def drag_to(self, position: int | None) -> None:
        """Hold it after so many layers, between its neighbours; None: at the start."""
        drag = self._drag
        if drag is None or not self.dragging:
            return
        split = drag.start
        if position is not None:
            split = move_boundary(drag.start, drag.boundary, position)
        if split != drag.split:
            self._drag = replace(drag, split=split)
            self.changed()

    def drop(self) -> bool:
        """Let go: the drag becomes a step, unless its split is gone meanwhile."""
        held, drag = self.dragging, self._drag
        self._drag = None
        if held and drag is not None and self.set_split(drag.split):
            return True
        if drag is not None and drag.split != drag.start:
            self.changed()
        return False

    def cancel_drag(self) -> None:
        self._drag = None
        self.changed()

    # --- history ------------------------------------------------------------------

    @property
    def can_undo(self) -> bool:
        return bool(self._work.history and self._work.history.past)

    @property
    def can_redo(self) -> bool:
        return bool(self._work.history and self._work.history.future)

    @property
    def refusals(self) -> dict[str, str]:
        """Why the plan cannot be launched, stopped, undone and so on, by verb."""
        found: dict[str, str] = {}
        if self.plan is None:
            none = "no model is picked"
            found |= {"launch": none, "balance": none, "settings": none}
        elif self.unchanged:
            found["launch"] = "it runs as it is shown"
        if not self.alive:
            found["stop"] = "nothing runs"
        if not self.can_undo:
            found["undo"] = "nothing was changed"
        if not self.can_redo:
            found["redo"] = "nothing was undone"
        return found

    def undo(self) -> bool:
        return self._go(self._work.history and self._work.history.undo())

    def redo(self) -> bool:
        return self._go(self._work.history and self._work.history.redo())

    def _go(self, history: History[Version] | None) -> bool:
        moved = history is not self._work.history
        self._work.history = history
        if moved:
            self.changed()
        return moved


def _way(plan: Plan) -> Plan:
    """The plan without all that changes no memory by itself."""
    return replace(
        plan,
        split=Split(n_layer=plan.split.n_layer, shares=()),
        ctx_size=0,
        server=replace(plan.server, draft=NO_DRAFT),
        speculation=None,
        api_port=None,
        relay=True,
        pair=PairMode.AUTO,
        asked=None,
    )


def _speeds_way(plan: Plan) -> Plan:
    # Speeds of devices are the same for whole layers and for parts of them.
    words = without_tensor(plan.extra_args)
    return replace(_way(plan), extra_args=words, experts=())
