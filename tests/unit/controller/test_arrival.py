"""Load progress from the workers' memory."""

from __future__ import annotations

import pytest

from backends.controller.arrival import Arrival
from backends.peers.host import ProcessRecord
from backends.split.layout import make_split
from backends.state import (
    Layer,
    ModelInfo,
    Plan,
    ProcessRole,
    ProcessState,
    WorkerSpec,
)

MIB = 1 << 20
MODEL = ModelInfo(
    path="m",
    arch="llama",
    n_layer=2,
    n_embd=8,
    n_vocab=8,
    layers=tuple(Layer(index=i, bytes=100 * MIB) for i in range(2)),
    output_bytes=0,
)
WORKERS = (WorkerSpec(name="a"), WorkerSpec(name="b"))
PLAN = Plan(model="m", split=make_split(2, ["a/CPU", "b/CPU"], [1, 2]), workers=WORKERS)


class MemoryOnly:
    """Machines of which only the workers' memory is asked."""

    def __init__(self) -> None:
        self.rss = {"a": 10 * MIB, "b": 10 * MIB}

    def get(self, name: str) -> MemoryOnly:
        return self

    @property
    def records(self) -> tuple[ProcessRecord, ...]:
        return tuple(
            ProcessRecord(
                name=name,
                role=ProcessRole.WORKER,
                state=ProcessState.RUNNING,
                pid=1,
                argv=(),
                rss_bytes=rss_bytes,
            )
            for name, rss_bytes in self.rss.items()
        )


def test_growth_is_progress() -> None:
    now = [0.0]
    machines = MemoryOnly()
    arrival = Arrival(machines, PLAN, MODEL, WORKERS, clock=lambda: now[0])  # type: ignore[arg-type]
    arrival.measure()
    assert arrival.fraction is None
    assert arrival.text == ""
    now[0] = 4.0
    machines.rss = {"a": 60 * MIB, "b": 500 * MIB}
    arrival.measure()
    assert arrival.fraction == pytest.approx(0.75), "no more than expected counts"
    assert arrival.text == "150 MiB of 200 MiB · 37.5 MiB/s · 1.33 s left"


def test_what_somebody_else_started_is_not_waited_for() -> None:
    bare = WorkerSpec(name="b", peer="b", endpoint="10.0.0.2:50052")
    machines = MemoryOnly()
    arrival = Arrival(machines, PLAN, MODEL, (WORKERS[0], bare))  # type: ignore[arg-type]
    assert arrival.total_bytes == 100 * MIB
