"""The speeds of a plan's devices and links, from what earlier runs measured.

And the other way: what a run that just ended says of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import dropwhile, takewhile
from pathlib import PurePath
from statistics import median
from typing import NamedTuple

from msgspec.structs import replace

from backends.engine.versions import protocols_match
from backends.machine_names import LOCAL
from backends.server_settings import is_by_tensor
from backends.split.calibration import (
    HEAD_PRIOR,
    Calibration,
    LinkObservation,
    Observation,
    Prior,
    device_key,
    device_speeds,
    head_key,
    link_key,
    link_speed,
    noise_of,
    prior_of,
    work_row,
)
from backends.split.cost import (
    MB,
    NO_WORK,
    Work,
    device_work,
    head_work,
    is_pipelined,
    lab_ms,
    layer_work,
)
from backends.split.flags import used_workers
from backends.state import (
    ClusterSpeeds,
    Device,
    DeviceKind,
    EngineInfo,
    Lab,
    ModelInfo,
    Pass,
    Peer,
    Plan,
    WorkerSpec,
)
from backends.units import MS_PER_S

PASSES_MIN = 12
"""A run with fewer passes says too little."""
PROMPT_TOKENS_MIN = 16
PAUSE_FACTOR = 10.0
_LITTLE = 8
"""Of a prompt whose further passes are so many times smaller, nothing overlaps."""


class Ground(NamedTuple):
    """A plan on its machines, as far as speeds depend on them."""

    plan: Plan
    model: ModelInfo
    model_key: str
    """Tells models apart whose weights differ in size or type."""
    devices: Sequence[Device]
    """Of the plan."""
    machines: Mapping[str, Peer]
    engine: EngineInfo | None
    """Of this machine."""

    def build(self, machine: str) -> str:
        engine = self._engine(machine)
        # One version built with other flags is another engine; its folder says so.
        return f"{engine.version} {PurePath(engine.directory).name}" if engine else ""

    @property
    def rpc_protocol(self) -> str:
        """Of the head's llama-server."""
        engine = self._engine(self.plan.head)
        return engine.rpc_protocol if engine else ""

    def _engine(self, machine: str) -> EngineInfo | None:
        """The engine that runs there: of a peer the one that speaks with ours."""
        if machine == LOCAL:
            return self.engine
        peer = self.machines.get(machine)
        there = peer.facts.engines if peer and peer.facts else ()
        spoken = self.engine.rpc_protocol if self.engine else ""
        fitting = (e for e in there if protocols_match(spoken, e.rpc_protocol))
        return next(fitting, None)

    def keys(self) -> dict[str, str]:
        """The key of each device's speed, by its name in the plan."""
        return {device.id: self._key(device) for device in self.devices}

    def _key(self, device: Device) -> str:
        worker = self.plan.worker_of.get(device.id)
        if worker is None:
            threads, role, machine = (self.plan.server.threads, "head", self.plan.head)
        else:
            threads, role, machine = worker.threads, "worker", worker.peer
        return device_key(
            device,
            role=role,
            threads=threads if device.kind is DeviceKind.CPU else None,
            build=self.build(machine),
        )

    @property
    def head_key(self) -> str:
        return head_key(self.plan.head, self.build(self.plan.head))

    def link_key(self, worker: WorkerSpec) -> str:
        return link_key(self.plan.head, worker.peer, f"relay={self.plan.relay}")


def speeds_of(
    calibration: Calibration,
    ground: Ground,
    rtts_ms: Mapping[str, float | None] | None = None,
) -> ClusterSpeeds:
    """The speeds for a plan; ``rtts_ms`` are live round trips by worker."""
    keys, plan = ground.keys(), ground.plan
    priors: dict[str, Prior] = {
        keys[d.id]: prior_of(
            d.kind, (plan.worker_of.get(d.id) or plan.server).threads or d.cores
        )
        for d in ground.devices
    }
    priors[ground.head_key] = HEAD_PRIOR
    names = {key: key for key in priors}
    noise = noise_of(calibration, priors, ground.model_key)
    found = device_speeds(calibration, priors, names, ground.model_key, noise)
    runs = reversed(calibration.residuals)
    links = (
        link_speed(
            calibration,
            ground.link_key(worker),
            worker.name,
            rtt_ms=(rtts_ms or {}).get(worker.name),
            far_rtt_ms=_peer_rtt_ms(ground, worker),
            mb_s=_mb_s(ground, worker),
            near=worker.peer == plan.head,
        )
        for worker in plan.workers
    )
    return ClusterSpeeds(
        head=replace(found[ground.head_key], device="head"),
        devices=tuple(
            replace(found[key], device=device_id) for device_id, key in keys.items()
        ),
        links=tuple(links),
        rpc_protocol=ground.rpc_protocol,
        noise=noise.passes,
        prompt_noise=noise.prompts,
        residual=next(
            (one.part for one in runs if one.model == ground.model_key), None
        ),
    )


def _peer_rtt_ms(ground: Ground, worker: WorkerSpec) -> float | None:
    # Of two peers the controller knows only its own way to each: they are taken to be
    # one switch apart.
    ends = [name for name in (ground.plan.head, worker.peer) if name != LOCAL]
    peers = [ground.machines[name] for name in ends if name in ground.machines]
    known = [peer.rtt_ms for peer in peers if peer.rtt_ms is not None]
    return max(known, default=None)


def _mb_s(ground: Ground, worker: WorkerSpec) -> float | None:
    ends = (ground.plan.head, worker.peer)
    rates = [
        peer.facts.bandwidth_mb_s
        for name in ends
        if (peer := ground.machines.get(name)) and peer.facts
    ]
    return min((rate for rate in rates if rate), default=None)


# --- what a run says -----------------------------------------------------------------


class WorkerRun(NamedTuple):
    """The passes of one run at a worker, and its link meanwhile."""

    passes: Sequence[Pass]
    rtt_ms: float | None
    lab: Lab | None


class ServerRun(NamedTuple):
    """The run by llama-server's own figures."""

    depth: int
    """Tokens of the context at the end."""
    tokens: int
    """Generated in the run."""
    tok_per_s: float | None
    prompt_tok_per_s: float | None
    """None where no new prompt was read."""
    prompt_tokens: int = 0
    """Tokens of the prompt that were read, not found in the cache."""


class RunSays(NamedTuple):
    observations: tuple[Observation, ...]
    links: tuple[LinkObservation, ...]
    pass_ms: float | None
    """Measured time of a pass, without what labs added; None if it is not known."""
    depth: int
    parts: tuple[tuple[str, float, float], ...] = ()
    """Of a pass: each machine, its time and that of its network without a lab."""


NOTHING = RunSays((), (), None, 0)


def run_says(
    ground: Ground, workers: Mapping[str, WorkerRun], server: ServerRun, at: float
) -> RunSays:
    """The equations of a run; none where it was too short, or passes are drafts'.

    ``workers`` are all of the plan that hold layers. Parts of layers say nothing.
    """
    plan = ground.plan
    if plan.speculation or plan.experts or is_by_tensor(plan.extra_args):
        return NOTHING
    depth = max(server.depth - server.tokens // 2, 1)
    if not used_workers(ground.plan):
        return _alone(ground, server, depth, at)
    generated = {
        name: [one for one in run.passes if one.generated and one.batch == 1]
        for name, run in workers.items()
    }
    names = {worker.name for worker in used_workers(ground.plan)}
    if generated.keys() < names or min(map(len, generated.values())) < PASSES_MIN:
        return NOTHING
    middles = {name: _middle(passes) for name, passes in generated.items()}
    says = _Says(ground, at)
    says.devices_of(middles, [(depth, 1)])
    for name, one in middles.items():
        says.link_of(name, workers[name], one)
    own_ms = sum(one.own_ms for one in middles.values())
    seen_ms = max(one.own_ms + one.head_ms for one in middles.values())
    head_ms = max(seen_ms - own_ms, 0.0)
    says.head(head_ms, [(depth, 1)])
    _prompts(says, workers, server)
    added = {
        name: lab_ms(workers[name].lab, one.trips, one.n_bytes)
        for name, one in middles.items()
    }
    return RunSays(
        tuple(says.observations),
        tuple(says.links),
        head_ms + own_ms - sum(added.values()),
        depth,
        (
            (ground.plan.head, head_ms, 0.0),
            *(
                (name, one.compute_ms, max(one.way_ms - added[name], 0.0))
                for name, one in middles.items()
            ),
        ),
    )


def _alone(ground: Ground, server: ServerRun, depth: int, at: float) -> RunSays:
    """A head without workers: llama-server's own rates are all there is."""
    if not server.tok_per_s or server.tokens < PASSES_MIN:
        return NOTHING
    says = _Says(ground, at)
    pass_ms = MS_PER_S / server.tok_per_s
    says.head(pass_ms, [(depth, 1)])
    batch = min(server.prompt_tokens, 512)
    if server.prompt_tok_per_s and batch >= PROMPT_TOKENS_MIN:
        cached = max(server.depth - server.tokens - server.prompt_tokens, 0)
        ms = batch * MS_PER_S / server.prompt_tok_per_s
        says.head(ms, [(cached + batch // 2, batch)])
    parts = ((ground.plan.head, pass_ms, 0.0),)
    return RunSays(tuple(says.observations), (), pass_ms, depth, parts)


class _Middle(NamedTuple):
    """Medians over the passes of a run at a worker, or sums over those of a prompt."""

    head_ms: float
    compute_ms: float
    way_ms: float
    trips: float
    n_bytes: float

    @property
    def own_ms(self) -> float:
        return self.compute_ms + self.way_ms


def _middle(passes: Iterable[Pass]) -> _Middle:
    steady = [
        (
            p.head_ms,
            p.compute_ms,
            p.up_ms + p.down_ms + p.wait_ms,
            p.round_trips,
            p,
        )
        for p in passes
    ]
    usual_ms = median(one[0] for one in steady)
    rest = [one for one in steady if one[0] <= PAUSE_FACTOR * usual_ms] or steady
    return _Middle(
        head_ms=median(one[0] for one in rest),
        compute_ms=median(one[1] for one in rest),
        way_ms=median(one[2] for one in rest),
        trips=median(one[3] for one in rest),
        n_bytes=median(one[4].bytes_up + one[4].bytes_down for one in rest),
    )


def _sum(passes: Sequence[Pass]) -> _Middle:
    """Of a prompt: while it is read, a worker's wait is for the workers before it."""
    return _Middle(
        head_ms=sum(one.head_ms for one in passes),
        compute_ms=sum(one.compute_ms for one in passes),
        way_ms=sum(one.up_ms + one.down_ms for one in passes),
        trips=sum(one.round_trips for one in passes),
        n_bytes=sum(one.bytes_up + one.bytes_down for one in passes),
    )


class _Says:
    def __init__(self, ground: Ground, at: float) -> None:
        self._ground, self._at = ground, at
        self.plan = ground.plan
        self._keys = ground.keys()
        self._workers = {one.name: one for one in used_workers(ground.plan)}
        self.observations: list[Observation] = []
        self.links: list[LinkObservation] = []

    @property
    def last_worker(self) -> str:
        """The worker with the last layers; empty if the head has them."""
        held = [share.device for share in self.plan.split.shares if share.layers]
        worker = self.plan.worker_of.get(held[-1])
        return worker.name if worker else ""

    def _work(self, passes: Iterable[tuple[int, int]]) -> dict[str, Work]:
        model, plan = self._ground.model, self._ground.plan
        found: dict[str, Work] = {}
        for depth, batch in passes:
            works = layer_work(model, plan, depth, batch, rows=1)
            for device, one in device_work(plan, works).items():
                found[device] = found.get(device, NO_WORK) + one
        return found

    def devices_of(
        self, middles: Mapping[str, _Middle], passes: Sequence[tuple[int, int]]
    ) -> None:
        """The workers' devices take these times for passes of a depth and a batch."""
        work = self._work(passes)
        for name, one in middles.items():
            ids = [d for d in self._workers[name].device_ids if d in work]
            if one.compute_ms > 0 and all(device in self._keys for device in ids):
                self._add({self._keys[d]: work[d] for d in ids}, one.compute_ms)

    def head(
        self, ms: float, passes: Sequence[tuple[int, int]], worker: str = ""
    ) -> None:
        """The head's devices and the server take that time, with a worker or alone."""
        remote = {
            device: one
            for device, one in self.plan.worker_of.items()
            if one.name != worker
        }
        work = self._work(passes)
        own = {device: one for device, one in work.items() if device not in remote}
        if all(device in self._keys for device in own):
            visits = sum(device in self.plan.worker_of for device in work)
            both: dict[str, Work] = {}
            for device, one in own.items():
                key = self._keys[device]
                both[key] = both.get(key, NO_WORK) + one
            each = [head_work(visits)] * len(passes)
            both[self._ground.head_key] = sum(each, NO_WORK)
            self._add(both, ms)

    def _add(self, work: Mapping[str, Work], ms: float) -> None:
        if ms <= 0:
            return
        self.observations.append(
            Observation(
                work={key: work_row(one) for key, one in work.items()},
                ms=ms,
                model=self._ground.model_key,
                at=self._at,
            )
        )

    def link_of(self, name: str, run: WorkerRun, one: _Middle) -> None:
        worker = self._workers[name]
        held = {s.device for s in self._ground.plan.split.shares if s.layers}
        added = lab_ms(run.lab, one.trips, one.n_bytes)
        self.links.append(
            LinkObservation(
                link=self._ground.link_key(worker),
                stages=max(len(held.intersection(worker.device_ids)), 1),
                trips=one.trips,
                megabytes=one.n_bytes / MB,
                ms=max(one.way_ms - added, 0.0),
                rtt_ms=run.rtt_ms or 0.0,
                at=self._at,
            )
        )


def _prompts(says: _Says, workers: Mapping[str, WorkerRun], server: ServerRun) -> None:
    """The last prompt of a run: in each pass all workers read it, then the head."""
    read = {name: _last_prompt(run.passes) for name, run in workers.items()}
    batches, *others = ([one.batch for one in passes] for passes in read.values())
    tokens = sum(batches)
    if tokens < PROMPT_TOKENS_MIN or any(one != batches for one in others):
        return
    # What was read before is in the cache.
    depth, passes = max(server.depth - server.tokens - tokens, 0), []
    for batch in batches:
        passes.append((depth + batch // 2, batch))
        depth += batch
    sums = {name: _sum(of) for name, of in read.items()}
    several = len(passes) > 1
    # No answer says when it is done with a pass before the last.
    silent = says.last_worker if several else ""
    last = sums.pop(silent) if silent else None
    says.devices_of(sums, passes)
    overlaps = several and is_pipelined(says.plan)
    if not server.prompt_tok_per_s or (overlaps and _is_long(batches)):
        return
    rest_ms = tokens * MS_PER_S / server.prompt_tok_per_s
    rest_ms -= sum(one.own_ms for one in sums.values())
    if last is not None:
        lab = workers[silent].lab
        way_ms = max(last.way_ms, lab_ms(lab, last.trips, last.n_bytes))
        if lab is not None and not way_ms:
            return
        rest_ms -= way_ms
    says.head(rest_ms, passes, silent)


def _is_long(batches: Sequence[int]) -> bool:
    # So much follows the first pass that what overlaps counts.
    return sum(batches[1:]) > batches[0] / _LITTLE


def _last_prompt(passes: Sequence[Pass]) -> list[Pass]:
    before = dropwhile(lambda one: one.generated, reversed(passes))
    return [*takewhile(lambda one: not one.generated, before)][::-1]
