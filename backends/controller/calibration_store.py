"""The store of measured speeds: what each run says is added when it ends.

Plans are predicted from it. It is a small file that is written beside the event loop,
and an unreadable one begins anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from backends.controller.snapshot_store import SnapshotStore
from backends.planning.proposal import plan_devices
from backends.planning.speeds import (
    Ground,
    RunSays,
    ServerRun,
    WorkerRun,
    run_says,
    speeds_of,
)
from backends.split.calibration import Calibration, Residual, decoded
from backends.split.cost import PassCost, pass_cost
from backends.split.flags import used_workers
from backends.state import (
    NOT_JSON,
    ClusterSnapshot,
    ClusterSpeeds,
    EngineInfo,
    Lab,
    LastRun,
    Link,
    ModelInfo,
    Pass,
    Peer,
    Plan,
    RunPart,
    Speed,
)
from backends.tasks import end_tasks
from backends.writing import write_private

log = logging.getLogger(__name__)

LONG_RUN_TOKENS = 256
"""An answer that goes on is looked at after so many tokens."""


def model_key(model: ModelInfo) -> str:
    """The same text for files with the same layers in the same types."""
    layers = [(one.bytes, one.quants) for one in model.layers]
    facts = (model.arch, model.n_embd, model.output_bytes, layers)
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:16]


class CalibrationStore:
    """Keeps the calibration of all clusters of a controller in a file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._turn = asyncio.Lock()
        self.calibration = Calibration()
        with contextlib.suppress(OSError, *NOT_JSON):
            self.calibration = decoded(file.read_bytes())

    def speeds(self, ground: Ground, links: Sequence[Link] = ()) -> ClusterSpeeds:
        """The speeds for a plan; ``links`` are those that run now."""
        rtts = {link.worker: link.rtt_ms for link in links}
        return speeds_of(self.calibration, ground, rtts)

    async def keep(
        self, ground: Ground, says: RunSays, links: Sequence[Link] = ()
    ) -> LastRun | None:
        """Add what a run says; the run beside what was predicted for it."""
        if not says.observations:
            return None
        async with self._turn:
            last, self.calibration = await asyncio.to_thread(
                self._added, ground, says, links
            )
            await asyncio.to_thread(self._save, self.calibration)
        return last

    async def rename(self, old: str, new: str) -> None:
        """Keep what is known of a machine under its new name."""
        async with self._turn:
            self.calibration = self.calibration.renamed(old, new)
            await asyncio.to_thread(self._save, self.calibration)

    def _added(
        self, ground: Ground, says: RunSays, links: Sequence[Link]
    ) -> tuple[LastRun | None, Calibration]:
        at = says.observations[0].at
        last = residual = None
        if says.pass_ms:
            cost = pass_cost(
                ground.model,
                ground.plan,
                self.speeds(ground, links),
                depth=says.depth,
                batch=1,
                rows=1,
            )
            residual = Residual(
                predicted_ms=cost.ms,
                measured_ms=says.pass_ms,
                at=at,
                model=ground.model_key,
            )
            last = _compared(says, cost, at)
        return last, self.calibration.with_run(says.observations, says.links, residual)

    def _save(self, calibration: Calibration) -> None:
        # Of a disk that is full only the next prediction is worse.
        with contextlib.suppress(OSError):
            write_private(self._file, msgspec.json.encode(calibration), durable=False)


def _compared(says: RunSays, cost: PassCost, at: float) -> LastRun:
    told = {part.name: part for part in cost.parts}
    return LastRun(
        at=at,
        parts=tuple(
            RunPart(
                name=name,
                compute_ms=compute_ms,
                predicted_compute_ms=told[name].compute_ms,
                network_ms=network_ms,
                predicted_network_ms=told[name].network_ms,
            )
            for name, compute_ms, network_ms in says.parts
            if name in told
        ),
    )


class RunWatch:
    """Sees when a run of one cluster ends, and takes what is new of it; pure."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        """The last pass taken, by worker, on its relay's clock."""
        self._labs: dict[str, Lab | None] = {}
        self._tokens = 0
        self._prompt: float | None = None
        self._rate: float | None = None
        self._begun = False

    def look(
        self, speed: Speed, links: Sequence[Link], passes: Mapping[str, Sequence[Pass]]
    ) -> tuple[dict[str, WorkerRun], ServerRun] | None:
        """The run that just ended, or has gone on for long; None if there is none."""
        # A link may be told of only after the first answer, or not for a while.
        labs = self._labs | {link.worker: link.lab for link in links}
        changed = any(labs[worker] != lab for worker, lab in self._labs.items())
        self._labs = labs
        if not self._begun or changed:
            # What is there is of other circumstances, or of an earlier controller.
            self._begun = True
            self._take(speed, passes)
            return None
        new = speed.tokens - self._tokens
        if not new or (speed.requests_active and new < LONG_RUN_TOKENS):
            return None
        rtts = {link.worker: link.rtt_ms for link in links}
        workers = {
            name: WorkerRun(
                [one for one in of if one.at_ms > self._since.get(name, 0.0)],
                rtts.get(name),
                labs.get(name),
            )
            for name, of in passes.items()
        }
        server = ServerRun(
            depth=speed.ctx_used,
            tokens=new,
            tok_per_s=_new(speed.last_tok_per_s, self._rate),
            prompt_tok_per_s=_new(speed.prompt_tok_per_s, self._prompt),
            prompt_tokens=speed.prompt_tokens,
        )
        self._take(speed, passes)
        return workers, server

    def _take(self, speed: Speed, passes: Mapping[str, Sequence[Pass]]) -> None:
        self._since = {name: of[-1].at_ms for name, of in passes.items() if of}
        self._tokens = speed.tokens
        self._prompt, self._rate = speed.prompt_tok_per_s, speed.last_tok_per_s


def _new(figure: float | None, before: float | None) -> float | None:
    return None if figure == before else figure


class RunRecorder:
    """Keeps each run that has ended, and has the snapshot store tell of it."""

    def __init__(
        self,
        calibrations: CalibrationStore,
        store: SnapshotStore,
        passes: Callable[[], Mapping[str, Sequence[Pass]]],
        machines: Callable[[], Awaitable[Sequence[Peer]]],
    ) -> None:
        self._calibrations = calibrations
        self._store = store
        self._passes = passes
        self._machines = machines
        self._watch = RunWatch()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._watch = RunWatch()

    def look(self, speed: Speed) -> None:
        """Take a reading of the speed; a run that has ended is kept, beside this."""
        snapshot = self._store.snapshot
        ended = self._watch.look(speed, snapshot.links, self._passes())
        plain = any(link.mode == "plain" for link in snapshot.links)
        if ended is None or plain or snapshot.plan is None or snapshot.model is None:
            return
        if self._task is None or self._task.done():
            keeping = self._keep(snapshot, snapshot.plan, snapshot.model, *ended)
            self._task = asyncio.create_task(keeping)

    async def end(self) -> None:
        """Give up what is not kept yet."""
        await end_tasks(self._task)

    async def settled(self) -> None:
        """Wait until the run that ended last is kept."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def _keep(
        self,
        snapshot: ClusterSnapshot,
        plan: Plan,
        model: ModelInfo,
        workers: dict[str, WorkerRun],
        server: ServerRun,
    ) -> None:
        try:
            machines = await self._machines()
            ground = ground_of(plan, model, machines, snapshot.engine)
            names = {worker.name for worker in used_workers(plan)}
            of_plan = {name: run for name, run in workers.items() if name in names}
            says = await asyncio.to_thread(
                run_says, ground, of_plan, server, time.time()
            )
            last = await self._calibrations.keep(ground, says, snapshot.links)
            if self._store.snapshot.served_since == snapshot.served_since:
                self._store.update(last_run=last or snapshot.last_run)
        except Exception:
            # No prediction is worth disturbing what serves.
            log.exception("what a run says of speeds was not kept")


def ground_of(
    plan: Plan, model: ModelInfo, machines: Sequence[Peer], engine: EngineInfo | None
) -> Ground:
    by_name = {machine.name: machine for machine in machines}
    return Ground(
        plan=plan,
        model=model,
        model_key=model_key(model),
        devices=plan_devices(plan.head, plan.workers, by_name),
        machines=by_name,
        engine=engine,
    )
