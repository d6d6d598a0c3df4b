"""What a cluster's store shows of machines that other clusters work on too."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from backends.config import Config
from backends.controller import memory_usage
from backends.controller.clusters import Clusters
from backends.controller.memory_usage import held_by, machines_now
from backends.controller.snapshot_store import SnapshotStore
from backends.errors import EngineError, ModelError, PeerUnreachable
from backends.machines.local_inventory import LocalInventory
from backends.machines.machine import Machines
from backends.paths import Paths
from backends.planning.memory_fit import ClusterMemory
from backends.state import (
    ClusterSnapshot,
    ClusterState,
    Device,
    DeviceMemory,
    DraftNow,
    Failure,
    Link,
    MeasuredSplit,
    MemorySource,
    ModelInfo,
    PeerData,
    Plan,
    ProcessInfo,
    ProcessRole,
    ProcessState,
)
from tests.kit.machines import Cast
from tests.unit.planning.machines import (
    ADA,
    BOB,
    GIB,
    MIB,
    MODEL,
    PLAIN,
    WITH_GPU,
    device,
    engine,
    plan_for,
)
from tui.model.editor import PlanEditor

CPU, GPU = device("local", "CPU"), device("local", "CUDA0")
ENGINE = replace(engine("e").info, devices=(GPU,))
PLAN = plan_for(WITH_GPU, BOB, workers=1, peers=("bob",))
HELD = ClusterMemory(
    plan=PLAN,
    memory=(
        DeviceMemory(device="local/CUDA0", model_bytes=100 * MIB),
        DeviceMemory(device="worker1/CPU", model_bytes=200 * MIB),
        DeviceMemory(device="bob/CUDA0", model_bytes=300 * MIB),
    ),
    loaded=True,
)


def store() -> SnapshotStore:
    shown = SnapshotStore(Config)
    shown.update(engine=ENGINE)
    shown.show_peers((BOB,))
    return shown


def missing_mib(shown: SnapshotStore) -> dict[str, int]:
    devices = {d.id: d for peer in shown.snapshot.peers for d in peer.devices}
    missing = {name: (GIB - d.free_bytes) // MIB for name, d in devices.items()}
    return {name: n for name, n in missing.items() if n}


async def test_a_closed_board_ends_its_streams_and_does_not_change_for_ever() -> None:
    shown = store()

    async def streamed() -> int:
        return len([one async for one in shown.changes()])

    streaming = asyncio.create_task(streamed())
    await asyncio.sleep(0)
    shown.close()
    assert await asyncio.wait_for(streaming, 30) == 1
    changing = asyncio.create_task(shown.change())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not changing.done()
    changing.cancel()


def test_what_others_hold_is_taken_of_gpus_and_shows_in_main_memory() -> None:
    shown = store()
    shown.show_memory(CPU)
    assert missing_mib(shown) == {}
    shown.show_memory(CPU, others=[HELD])
    assert missing_mib(shown) == {"local/CUDA0": 100, "bob/CUDA0": 300}
    shown.show_memory(CPU, others=[replace(HELD, loaded=False)])
    loading = {"local/CPU": 200, "local/CUDA0": 100, "bob/CUDA0": 300}
    assert missing_mib(shown) == loading


def test_main_memory_elsewhere_is_as_it_was_told_last() -> None:
    shown = store()
    shown.show_memory(CPU, there=[replace(BOB.devices[0], free_bytes=768 * MIB)])
    assert missing_mib(shown) == {"bob/CPU": 256}


def test_an_edited_plan_gets_no_more_than_others_leave() -> None:
    shown, editor = store(), PlanEditor()
    editor.put(PLAN, MODEL)
    shown.show_memory(CPU)
    assert editor.take(shown.snapshot)
    assert editor.edit is not None
    assert set(editor.edit.available.values()) == {GIB}
    shown.show_memory(CPU, others=[HELD])
    assert editor.take(shown.snapshot)
    assert editor.edit.available["bob/CUDA0"] == GIB - 300 * MIB
    assert editor.edit.available["local/CUDA0"] == GIB - 100 * MIB


async def test_every_store_is_told_what_the_other_clusters_hold(paths: Paths) -> None:
    machines = Cast()
    machines.get("local").device = CPU
    known = Clusters(cast("LocalInventory", SimpleNamespace(settings=Config)), paths)
    known._machines = cast("Machines", machines)
    known.book = cast("Any", SimpleNamespace(of=lambda _: ()))
    default = known.get()
    known.show_engine(ENGINE)
    other = known.get("other")
    try:
        await default.want(PLAN)
        held = DeviceMemory(device="local/CUDA0", model_bytes=64 * MIB)
        default.store.update(
            state=ClusterState.SERVING,
            measured=MeasuredSplit(layers=(), buffers=(held,)),
        )
        await known.look_at_memory()
        assert missing_mib(other.store) == {"local/CUDA0": 64}
        assert missing_mib(default.store) == {}, "its own is not counted against it"
    finally:
        await known.leave()


def test_a_failed_cluster_has_no_draft() -> None:
    shown = store()
    shown.update(draft_now=DraftNow(draft="ngram", doing="to be measured"))
    shown.failed(Failure(what="ada is gone"))
    assert shown.snapshot.draft_now is None


def test_how_data_go_to_a_peer_is_kept_when_they_go_no_more() -> None:
    shown = store()
    plan = plan_for(WITH_GPU, BOB, workers=1, peers=("bob",))
    shown.show_peers((replace(BOB, data=PeerData(wanted="10.0.0.7")),))
    shown.show_memory(CPU)

    def data() -> PeerData | None:
        return next(p.data for p in shown.snapshot.peers if p.name == "bob")

    assert data() == PeerData(wanted="10.0.0.7")
    why = "nobody answers"
    worker = next(one.name for one in plan.workers if one.peer == "bob")
    link = Link(worker=worker, way="tunnel", way_reason=why)
    shown.begin(1, plan, ClusterState.SERVING)
    shown.update(links=(Link(worker="worker1", way="local"), link))
    went = PeerData(wanted="10.0.0.7", ways=("tunnel",), why=why, now=True)
    assert data() == went
    shown.idle()
    assert data() == replace(went, now=False)
    shown.show_peers((BOB,))
    assert data() is None


# --- What is free now, and what clusters of ours take of it, from what the store …

PLAIN_PLAN = plan_for(PLAIN, BOB, workers=1, peers=("bob",))


class Engineless:
    async def model(self, path: str) -> ModelInfo:
        if path != MODEL.path:
            raise ModelError(f"There is no {path}")
        return MODEL

    async def engine(self) -> object:
        raise EngineError("There is none")

    async def rpc_protocol(self, plan: Plan) -> str:
        return ""


INVENTORY = cast("LocalInventory", Engineless())


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
    held = await held_by(PLAIN_PLAN, now, INVENTORY)
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
    held = await held_by(PLAIN_PLAN, now, INVENTORY)
    assert held is not None
    assert not held.loaded
    assert {m.device for m in held.memory} == {
        s.device for s in PLAIN_PLAN.split.shares
    }
    assert held.arrived_bytes == {"worker1/CPU": 7 * MIB}


async def test_nothing_is_held_by_what_will_not_run() -> None:
    assert await held_by(None, ClusterSnapshot(plan=PLAIN_PLAN), INVENTORY) is None
    odd = Plan(model="/gone.gguf", split=PLAIN_PLAN.split)
    now = ClusterSnapshot(state=ClusterState.STARTING)
    assert await held_by(odd, now, INVENTORY) is None


class Tells:
    def __init__(self, name: str, memory: Device | Exception | None) -> None:
        self.name = name
        self._memory = memory

    @property
    def agent(self) -> Tells:
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
    local, ada, bob = await machines_now(machines, INVENTORY)
    assert [d.free_bytes for d in local.devices] == [3 * MIB]
    assert ada == ADA
    assert {d.name: d.free_bytes for d in bob.devices} == {
        "CPU": 4 * MIB,
        "CUDA0": BOB.devices[1].free_bytes,
        "CUDA1": BOB.devices[2].free_bytes,
    }
