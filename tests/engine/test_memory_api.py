"""``POST /v1/memory``: the engine's word on a plan, or a prediction and why."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from backends.controller.memory_usage import PlannedMemory, files_here
from backends.demo import MODEL_PATH
from backends.engine.install import find_engine
from backends.errors import ModelError
from backends.machines.local import local_agent_for_now
from backends.machines.local_inventory import LocalInventory
from backends.models.layers import read_model
from backends.paths import Paths, user_paths
from backends.split.layout import make_split
from backends.state import MemorySource, Plan, WorkerSpec
from tests.engine.conftest import User
from tests.engine.driving import client_of

pytestmark = pytest.mark.engine
PLAN = Plan(
    model=str(MODEL_PATH),
    split=make_split(12, ("local/CPU", "worker1/CPU", "worker2/CPU"), (0, 6, 7)),
    workers=(WorkerSpec(name="worker1"), WorkerSpec(name="worker2")),
    ctx_size=1024,
)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return msgspec.structs.replace(
        user_paths(), config_dir=tmp_path / "config", state_dir=tmp_path / "state"
    )


@pytest.fixture
async def asker(paths: Paths) -> AsyncIterator[PlannedMemory]:
    async with local_agent_for_now(paths.run_dir) as agent:
        yield PlannedMemory(LocalInventory(paths, agent), paths)


async def test_the_engine_tells_what_a_plan_takes(asker: PlannedMemory) -> None:
    memory = await asker.of(PLAN)
    assert memory.note == ""
    assert [m.device for m in memory.devices] == [s.device for s in PLAN.split.shares]
    assert {m.source for m in memory.devices} == {MemorySource.ENGINE}
    assert all(m.compute_bytes for m in memory.devices)


async def test_an_engine_without_the_tool_leaves_the_prediction(
    asker: PlannedMemory, tmp_path: Path
) -> None:
    location = find_engine(None, user_paths())
    folder = tmp_path / "engine"
    folder.mkdir()
    for program in (location.server_path, location.worker_path):
        (folder / program.rpartition("/")[2]).symlink_to(program)
    plan = msgspec.structs.replace(PLAN, engine=str(folder))
    memory = await asker.of(plan)
    assert "no llama-fit-params" in memory.note
    assert "engine build" in memory.note
    assert {m.source for m in memory.devices} == {MemorySource.PREDICTED}
    assert memory.devices[0].model_bytes > 0, "the head has the embedding"


async def test_a_models_header_is_enough(asker: PlannedMemory, tmp_path: Path) -> None:
    """A model on a peer is read through a sparse copy: the engine reads it, too."""
    here = read_model(MODEL_PATH)
    there = msgspec.structs.replace(here, path=f"mini:{MODEL_PATH}", files=())
    with pytest.raises(ModelError, match="no copy of the header"):
        files_here(there, tmp_path)
    copy = tmp_path / "mini" / "0123" / MODEL_PATH.name
    copy.parent.mkdir(parents=True)
    shutil.copy(MODEL_PATH, copy)
    header_bytes = MODEL_PATH.stat().st_size - here.tensor_bytes
    with copy.open("r+b") as file:
        file.truncate(header_bytes + 4096)
        file.truncate(MODEL_PATH.stat().st_size)
    assert files_here(there, tmp_path) == [str(copy)]
    whole = await asker.of(PLAN)
    plan = msgspec.structs.replace(PLAN, model=str(copy))
    assert (await asker.of(plan)).devices == whole.devices


async def test_it_can_be_asked_for(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(user, monkeypatch)
    await client.start()
    try:
        memory = await client.memory(PLAN)
    finally:
        await client.shutdown()
    assert memory.note == ""
    assert len(memory.devices) == 3
