"""What is free now, and what clusters of ours take of it, from what the store knows."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from backends.controller import memory_usage
from backends.controller.memory_usage import held_by, machines_now
from backends.errors import EngineError, ModelError, PeerUnreachable
from backends.machines.readers import Readers
from backends.state import (
    ClusterSnapshot,
    ClusterState,
    Device,
    DeviceMemory,
    MeasuredSplit,
    MemorySource,
    ModelInfo,
    Plan,
    ProcessInfo,
    ProcessRole,
    ProcessState,
)
from tests.unit.planning.machines import ADA, BOB, MIB, MODEL, PLAIN, device, plan_for

PLAN = plan_for(PLAIN, BOB, workers=1, peers=("bob",))


class Engineless:
    async def model(self, path: str) -> ModelInfo:
        if path != MODEL.path:
            raise ModelError(f"There is no {path}")
        return MODEL

    async def engine(self) -> object:
        raise EngineError("There is none")


READERS = cast("Readers", Engineless())


def process(name: str, rss_bytes: int) -> ProcessInfo:
    return ProcessInfo(
        name=name,
        role=ProcessRole.WORKER,
        state=ProcessState.RUNNING,
        rss_bytes=rss_bytes,
    )


async def test_a_cluster_that_serves_holds_what_was_measured() -> None:
    buffers = DeviceMemory(
        device="worker1/CPU", kv_bytes=MIB, source=MemorySource.MEASURED
    )
    measured = MeasuredSplit(layers=(), buffers=(buffers,))
    now = ClusterSnapshot(state=ClusterState.SERVING, measured=measured)
    held = await held_by(PLAN, now, READERS)
    assert held is not None
    assert held.loaded
    assert [(m.kv_bytes, m.source) for m in held.memory] == [
        (MIB, MemorySource.MEASURED)
    ]


async def test_a_cluster_that_loads_is_predicted_and_what_came_is_told() -> None:
    now = ClusterSnapshot(
        state=ClusterState.LOADING,
        processes=(process("worker1", 7 * MIB), process("llama-server", MIB)),
    )
    held = await held_by(PLAN, now, READERS)
    assert held is not None
    assert not held.loaded
    assert {m.device for m in held.memory} == {s.device for s in PLAN.split.shares}
    assert held.arrived_bytes == {"worker1/CPU": 7 * MIB}


async def test_nothing_is_held_by_what_will_not_run() -> None:
    assert await held_by(None, ClusterSnapshot(plan=PLAN), READERS) is None
    odd = Plan(model="/gone.gguf", split=PLAN.split)
    now = ClusterSnapshot(state=ClusterState.STARTING)
    assert await held_by(odd, now, READERS) is None


class Tells:
    def __init__(self, name: str, memory: Device | Exception | None) -> None:
        self.name = name
        self._memory = memory

    @property
    def host(self) -> Tells:
        if isinstance(self._memory, Exception):
            raise self._memory
        return self

    async def memory(self) -> Device:
        if self._memory is None:
            await asyncio.sleep(60)
        assert isinstance(self._memory, Device)
        return self._memory


async def test_main_memory_is_read_anew_of_every_machine_that_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_usage, "READ_S", 0.05)
    here = Tells("local", device("local", "CPU", 3 * MIB))
    all_machines = (
        here,
        Tells("bob", device("bob", "CPU", 4 * MIB)),
        Tells("ada", None),
        Tells("cy", PeerUnreachable("It is gone")),
    )
    machines: Any = SimpleNamespace(
        get=lambda _: here, all=lambda: all_machines, values=lambda: [ADA, BOB]
    )
    local, ada, bob = await machines_now(machines, READERS)
    assert [d.free_bytes for d in local.devices] == [3 * MIB]
    assert ada == ADA
    assert {d.name: d.free_bytes for d in bob.devices} == {
        "CPU": 4 * MIB,
        "CUDA0": BOB.devices[1].free_bytes,
        "CUDA1": BOB.devices[2].free_bytes,
    }
