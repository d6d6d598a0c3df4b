"""A plan being edited, with all that is needed to draw it and to say what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import msgspec
from msgspec.structs import replace

from backends.machine_names import LOCAL, at_peer
from backends.speculation.memory import loads_with_draft, with_draft
from backends.split.cost import CountedWork, Workload, counted_work, forecast, workload
from backends.split.device_memory import (
    DeviceLoad,
    EngineFigures,
    device_loads,
    overcommitted,
    room_bytes,
)
from backends.split.layout import ranges
from backends.state import (
    ClusterSnapshot,
    ClusterSpeeds,
    ClusterState,
    Device,
    DeviceMemory,
    EngineInfo,
    Forecast,
    LayerRange,
    ModelInfo,
    Peer,
    PeerRole,
    Plan,
    Split,
    Transport,
    WorkerSpec,
)

RUNS = frozenset({ClusterState.STARTING, ClusterState.LOADING, ClusterState.SERVING})
"""States in which a plan runs or is being started."""
ALIVE = RUNS | {ClusterState.STOPPING}
"""States in which there are processes."""
NOT_STARTED = "starts with the launch"
TIGHT = 0.03
"""A device with less than this part of its room left is tight."""


class Prospect:
    """All that predicts the speed of any split of one plan."""

    def __init__(self, model: ModelInfo, plan: Plan, speeds: ClusterSpeeds) -> None:
        self.speeds = speeds
        self.model = model
        self._load = workload(plan)
        self._works: CountedWork = counted_work(model, plan)
        self._last: tuple[tuple[Plan, int], Forecast] | None = None

    def of(self, plan: Plan, depth: int = 0) -> Forecast:
        """The speed of a plan; 0: at the usual depth."""
        if not depth:
            return self._told(plan, self._load)
        # The depth of the last answer is asked for again with each snapshot.
        if self._last is None or self._last[0] != (plan, depth):
            told = self._told(plan, self._load._replace(depth=depth))
            self._last = (plan, depth), told
        return self._last[1]

    def _told(self, plan: Plan, load: Workload) -> Forecast:
        return forecast(self.model, plan, self.speeds, load, self._works)


class Edit(msgspec.Struct, frozen=True, dict=True):
    """One state of the edited plan; a change makes a new one."""

    plan: Plan
    model: ModelInfo
    devices: tuple[Device, ...]
    """The known devices of the split, in any order."""
    marks: tuple[str, ...]
    """Device ids in the order of their letters: a reorder keeps letter and colour."""
    measured: tuple[DeviceMemory, ...] = ()
    """The memory by llama-server's log, if this very split runs."""
    told: tuple[EngineFigures, ...] = ()
    """The engine's answers for this model and these machines, newest last."""
    ours: tuple[tuple[str, int], ...] = ()
    """Bytes the running cluster holds by memory pool: a launch gives them back."""
    protocol: str = ""
    """The RPC version of the engine; empty: not known yet."""
    note: str = ""
    """The reason why the engine could not answer, if it should have."""
    prospect: Prospect | None = None
    """Predicts its speed; None while no speeds are known."""

    @property
    def split(self) -> Split:
        return self.plan.split

    @cached_property
    def loads(self) -> tuple[DeviceLoad, ...]:
        """Memory per share: predicted, or as the engine says, or as measured."""
        found = {
            memory.device: with_draft(memory, self.plan.speculation)
            for memory in self.measured
        }
        return tuple(
            load.as_told(found[load.device]) if load.device in found else load
            for load in self.settled
        )

    @cached_property
    def load_of(self) -> Mapping[str, DeviceLoad]:
        return {load.device: load for load in self.loads}

    @cached_property
    def settled(self) -> tuple[DeviceLoad, ...]:
        """Memory per share before a load: as the engine says it, else predicted."""
        loads = device_loads(
            self.model,
            self.split,
            self.plan.ctx_size,
            head=self.plan.head,
            server=self.plan.server,
            told=self.told,
            protocol=self.protocol,
            experts=self.plan.experts,
            extra_args=self.plan.extra_args,
        )
        return loads_with_draft(loads, self.plan.speculation)

    @property
    def is_settled(self) -> bool:
        return any(
            told.split == self.split and told.ctx_size == self.plan.ctx_size
            for told in self.told
        )

    @cached_property
    def misfits(self) -> frozenset[str]:
        return overcommitted(self.loads, self.devices, dict(self.ours))

    @cached_property
    def tight(self) -> frozenset[str]:
        """Devices that hold their share, with next to nothing left."""
        ours, part = dict(self.ours), 1 - TIGHT
        return overcommitted(self.loads, self.devices, ours, part=part) - self.misfits

    @cached_property
    def forecast(self) -> Forecast | None:
        """The predicted speed once it is launched; None while none can be told."""
        return self.prospect.of(self.plan) if self.prospect else None

    @cached_property
    def ranges(self) -> tuple[LayerRange, ...]:
        return ranges(self.split)

    @cached_property
    def available(self) -> Mapping[str, int]:
        ours = dict(self.ours)
        return {device.id: room_bytes(device, ours) for device in self.devices}

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(share.layers for share in self.split.shares)

    def mark(self, device: str) -> int:
        """Number of a device's letter and colour."""
        return self.marks.index(device) if device in self.marks else len(self.marks)


# --- plans ------------------------------------------------------------------------


def runs_now(snapshot: ClusterSnapshot | None) -> Plan | None:
    return snapshot.plan if snapshot and snapshot.state in RUNS else None


def same_plan(one: Plan, other: Plan) -> bool:
    """True if two plans do the same.

    Their origin, their port and the prompts they keep may differ: all three are filled
    in at the launch.
    """
    return one == replace(
        other,
        api_port=one.api_port,
        asked=one.asked,
        prompt_cache_mib=one.prompt_cache_mib,
    )


def fits(model: ModelInfo, plan: Plan) -> bool:
    """True if the header may belong to the plan's model: it has as many layers."""
    return model.n_layer == plan.split.n_layer


def is_header_of(model: ModelInfo, plan: Plan) -> bool:
    """True if a snapshot's header is that of its plan's model.

    While a launch begins, the header is still that of the plan before.
    """
    path = at_peer(plan.model)
    same = model.path == (path[1] if path else plan.model) or plan.model in model.files
    return same and fits(model, plan)


# --- devices ----------------------------------------------------------------------


def marks_for(previous: Sequence[str], split: Split) -> tuple[str, ...]:
    """Marks of a split's devices: kept while the devices stay the same."""
    ids = [share.device for share in split.shares]
    return tuple(previous) if set(previous) == set(ids) else tuple(ids)


def known_devices(
    plan: Plan, peers: Iterable[Peer], engine: EngineInfo | None
) -> tuple[Device, ...]:
    """The devices a plan names, under the names it has for them.

    A worker computes on a device of its machine. So it shows that device's memory,
    whether it runs already or not.
    """
    peers = tuple(peers)
    found = {device.id: device for peer in peers for device in peer.devices}
    own = {device.name: device for device in engine.devices} if engine else {}
    here = [peer for peer in peers if peer.transport == Transport.LOCAL]
    own |= {device.name: device for peer in here for device in peer.devices}
    machines = {worker.place or worker.name: worker.peer for worker in plan.workers}
    devices: list[Device] = []
    for share in plan.split.shares:
        owner, _, name = share.device.partition("/")
        machine = machines.get(owner, owner)
        device = found.get(share.device) or found.get(f"{machine}/{name}")
        if device is None and machine == LOCAL:
            device = own.get(name)
        if device is not None:
            devices.append(_renamed(device, share.device))
    return tuple(devices)


def _renamed(device: Device, device_id: str) -> Device:
    if device.id == device_id:
        return device
    return replace(device, id=device_id, memory_pool=device.memory_pool or device.id)


# --- machines ---------------------------------------------------------------------


class Lineup(msgspec.Struct, frozen=True):
    head: str
    peers: tuple[str, ...]
    """Other machines that work, in the plan's order."""
    own: int | None
    """Workers on this machine; None: as many as the configuration says."""

    @classmethod
    def of(cls, plan: Plan) -> Lineup:
        machines = [worker.peer for worker in plan.workers]
        others = dict.fromkeys(name for name in machines if name != LOCAL)
        return cls(plan.head, tuple(others), machines.count(LOCAL))

    @property
    def empty(self) -> bool:
        return not self.peers and self.own == 0

    def uses(self, name: str) -> bool:
        return bool(self.own) if name == LOCAL else name in self.peers

    def with_worker(self, name: str, own: int) -> Lineup:
        if name == LOCAL:
            return replace(self, own=own)
        return replace(self, peers=(*self.peers, name))

    def without(self, name: str) -> Lineup:
        if name == LOCAL:
            return replace(self, own=0)
        return replace(self, peers=tuple(p for p in self.peers if p != name))

    def led_by(self, name: str) -> Lineup:
        """Another head. A peer is head or worker, this machine may be both.

        Without any worker left, this machine's own take over.
        """
        lineup = replace(self, head=name)
        if name != LOCAL:
            lineup = lineup.without(name)
        return replace(lineup, own=None) if lineup.empty else lineup


def peers_of(
    plan: Plan, snapshot: ClusterSnapshot | None, devices: Sequence[Device]
) -> tuple[Peer, ...]:
    """The peers with their parts in a plan, and its workers to come.

    A worker of this machine that neither this plan nor the running one has is left out.
    """
    known = snapshot.peers if snapshot else ()
    running = snapshot.plan if snapshot else None
    started = {w.name for p in (plan, running) if p is not None for w in p.workers}
    here: list[Peer] = []
    others: list[Peer] = []
    for peer in known:
        if peer.transport != Transport.LOCAL:
            others.append(_with_part(peer, plan))
        elif peer.role is not PeerRole.WORKER or peer.name in started:
            here.append(_with_part(peer, plan))
    names = {peer.name for peer in (*here, *others)}
    return (*here, *_to_come(plan, names, devices), *others)


def _with_part(peer: Peer, plan: Plan) -> Peer:
    names: dict[str, str] = {
        name: device_id
        for worker in plan.workers
        if worker.peer == peer.name != LOCAL
        for name, device_id in zip(worker.devices, worker.device_ids, strict=True)
    }
    devices = tuple(_renamed(d, names.get(d.name, d.id)) for d in peer.devices)
    works = {w.name if w.peer == LOCAL else w.peer for w in plan.workers}
    role = PeerRole.WORKER if peer.name in works else PeerRole.IDLE
    role = PeerRole.HEAD if peer.name == plan.head else role
    if role is peer.role and devices == peer.devices:
        return peer
    return replace(peer, role=role, devices=devices)


def _to_come(plan: Plan, known: set[str], devices: Sequence[Device]) -> Iterator[Peer]:
    worker: WorkerSpec
    for worker in plan.workers:
        if worker.name not in known and worker.peer == LOCAL:
            yield Peer(
                name=worker.name,
                role=PeerRole.WORKER,
                transport=worker.peer,
                devices=tuple(d for d in devices if d.id in worker.device_ids),
                note=NOT_STARTED,
            )
