"""The steps of a launch or a stop as they go, shown in the snapshot."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

from backends.controller.snapshot_store import SnapshotStore
from backends.errors import DllmError
from backends.link.relay import relay_name, worker_relay_name
from backends.planning.blueprint import SERVER
from backends.planning.relay_pairs import paired_workers
from backends.split.flags import used_workers
from backends.state import ClusterState, Plan, Step, StepState


def launch_steps(plan: Plan) -> tuple[Step, ...]:
    workers = used_workers(plan)
    reached = {w.name: "Reach" if w.endpoint else "Start" for w in workers}
    beside = [worker_relay_name(worker.name) for worker in paired_workers(plan)]
    relayed = [worker.name for worker in workers] if plan.relay else []
    titles = {
        "engine": "Find the engine",
        "model": "Read the model",
        **{name: f"{how} {name}" for name, how in reached.items()},
        **{name: f"Start {name}" for name in (*beside, *map(relay_name, relayed))},
        SERVER: "Start llama-server",
        "load": "Load the model",
        **{f"load:{name}": f"Weights to {name}" for name in relayed},
        "verify": "Compare with the plan",
    }
    return tuple(Step(id=step_id, title=title) for step_id, title in titles.items())


class Steps:
    """An ordered list of steps, shown in ``store``.

    A change to a step of an earlier list is ignored.
    """

    def __init__(self, store: SnapshotStore | None = None) -> None:
        self._store = store
        self._steps: dict[str, Step] = {}

    def reset(self, *steps: Step) -> None:
        self._steps = {step.id: step for step in steps}
        self._show()

    def update(
        self, step_id: str, *, detail: str | None = None, progress: float | None = None
    ) -> None:
        told = {"detail": detail, "progress": progress}
        self._change(step_id, **{k: v for k, v in told.items() if v is not None})

    def go_on(self, step_id: str, detail: str, progress: float | None) -> None:
        """Show a step that runs beside others, begun when it first tells something."""
        if self._is_pending(step_id):
            self._begin(step_id)
        self.update(step_id, detail=detail, progress=progress)

    def done(self, step_id: str, detail: str | None = None) -> None:
        """End a step; one that never began took no time."""
        if self._is_pending(step_id):
            self._begin(step_id)
        self._end(step_id, StepState.DONE, detail)

    @contextmanager
    def step(self, step_id: str) -> Iterator[None]:
        self._begin(step_id)
        try:
            yield
        except DllmError as error:
            self._end(step_id, StepState.FAILED, error.what)
            raise
        except asyncio.CancelledError:
            self._end(step_id, StepState.FAILED, "cancelled")
            raise
        self._end(step_id, StepState.DONE)

    def _is_pending(self, step_id: str) -> bool:
        step = self._steps.get(step_id)
        return step is not None and step.state is StepState.PENDING

    def _begin(self, step_id: str) -> None:
        now = time.time()
        self._change(step_id, state=StepState.RUNNING, started_at=now, seconds=None)

    def _end(self, step_id: str, state: StepState, detail: str | None = None) -> None:
        if (old := self._steps.get(step_id)) is None:
            return
        self._change(
            step_id,
            state=state,
            seconds=time.time() - (old.started_at or 0.0),
            detail=old.detail if detail is None else detail,
            progress=1.0 if state is StepState.DONE else old.progress,
        )

    def _change(self, step_id: str, **changes: Any) -> None:
        old = self._steps.get(step_id)
        if old is None or (new := replace(old, **changes)) == old:
            return
        self._steps[step_id] = new
        self._show()

    def _show(self) -> None:
        if self._store is None:
            return
        load = self._steps.get("load")
        loads = load is not None and load.state is StepState.RUNNING
        state = ClusterState.LOADING if loads else self._store.snapshot.state
        self._store.update(steps=tuple(self._steps.values()), state=state)
