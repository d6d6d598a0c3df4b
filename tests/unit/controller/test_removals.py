"""What a cluster uses is not deleted; what nobody uses is found."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from backends.controller.removals import Removals
from backends.errors import UsageError
from backends.machine_names import LOCAL
from backends.machines.agent import AgentSession
from backends.machines.local import local_agent_for_now
from backends.machines.local_inventory import LocalInventory
from backends.machines.machine import LocalMachine
from backends.models.catalogue import Catalogue
from backends.models.search import Folder
from backends.models.sparse_copy import plan_sparse, write_sparse
from backends.state import Plan, Speculation
from tests.kit.clusters import paths_in, plan_on
from tests.kit.models import write_llama
from tests.unit.models.ggufs import write_gguf, write_split

LONG_AGO_S = 1_000_000_000.0


class Machines:
    """This machine, and the names of peers."""

    def __init__(self, machine: LocalMachine, *peers: str) -> None:
        self.machine = machine
        self.peers = peers

    def get(self, name: str) -> LocalMachine:
        assert name == LOCAL
        return self.machine

    async def reached(self, names: list[str]) -> None: ...

    def values(self) -> list[Any]:
        return [SimpleNamespace(name=name, facts=None) for name in self.peers]


class House:
    """One machine with a folder of models, and the plans of its clusters."""

    def __init__(self, folder: Path, agent: AgentSession) -> None:
        self.models = folder / "models"
        self.models.mkdir()
        self.paths = paths_in(folder)
        inventory = LocalInventory(self.paths, agent)
        catalogue = Catalogue(agent, [Folder("models", self.models)])
        listed = lambda: catalogue.listing.models  # noqa: E731
        machine = LocalMachine(agent, inventory, self.paths.relay_socket, listed)
        self.clusters: list[Any] = []
        peers: Any = Machines(machine, "mini")
        clusters: Any = self.clusters
        self.removals = Removals(peers, clusters, catalogue, inventory)

    def runs(self, plan: Plan | None, *, wants: Plan | None = None) -> None:
        goal = SimpleNamespace(plan=wants)
        self.clusters[:] = [SimpleNamespace(name="lab", pursued=plan, goal=goal)]

    async def may_delete(self, path: Path) -> bool:
        try:
            await self.removals.of_model(LOCAL, str(path))
        except UsageError as error:
            return "in use: the cluster lab runs it, or is to" not in error.what
        return True


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with local_agent_for_now(tmp_path / "run") as agent:
        yield House(tmp_path, agent)


async def test_no_model_of_a_cluster_is_deleted(house: House) -> None:
    parts = write_split(house.models, "big", 2)
    other = write_gguf(house.models / "other.gguf")
    draft = write_gguf(house.models / "draft.gguf")
    plan = replace(plan_on(LOCAL), model=str(parts[0]))
    assert await house.may_delete(parts[0])
    house.runs(plan)
    assert [await house.may_delete(part) for part in parts] == [False, False]
    assert await house.may_delete(other)
    house.runs(None, wants=plan)
    assert not await house.may_delete(parts[1]), "a machine of it may be away"
    drafted = Speculation(type="draft-simple", model=str(draft), device="local/CPU")
    house.runs(replace(plan, speculation=drafted))
    assert not await house.may_delete(draft)
    house.runs(replace(plan, extra_args=("--mmproj", str(other))))
    assert not await house.may_delete(other)


async def test_deleted_is_deleted_and_found_no_more(house: House) -> None:
    model = write_gguf(house.models / "m.gguf")
    planned = await house.removals.of_model(LOCAL, str(model))
    assert not planned.deleted
    assert model.exists()
    assert (await house.removals.carry_out(planned)).deleted
    assert not model.exists()


async def test_what_nobody_uses(house: House) -> None:
    whole = house.models / "whole.gguf"
    write_llama(whole, n_layer=2, n_embd=128, n_ff=256)
    orphaned = house.models / "lost.gguf"
    write_llama(orphaned, n_layer=2, n_embd=64, n_ff=128)
    copies = {}
    for model in (whole, orphaned):
        copies[model] = house.models / f"sparse-{model.name}"
        plan = plan_sparse(model, "output,0", copies[model])
        await write_sparse(plan, lambda done: None)
    orphaned.unlink()
    headers = house.paths.cache_dir / "headers"
    kept, gone, old = (headers / name for name in ("mini/1/a", "left/2/a", "mini/3/a"))
    for file in (kept, gone, old):
        file.parent.mkdir(parents=True)
        file.write_bytes(bytes(4096))
    for file in (*copies.values(), old):
        os.utime(file, (LONG_AGO_S, LONG_AGO_S))
    found = await house.removals.of_leftovers(LOCAL)
    expected = {str(copies[whole]), str(gone), str(old)}
    assert {file.path for file in found.files} == expected, "no copy but that is lost"
    house.runs(replace(plan_on(LOCAL), model=str(copies[whole])))
    found = await house.removals.of_leftovers(LOCAL)
    assert str(copies[whole]) not in {file.path for file in found.files}
    await house.removals.carry_out(found)
    assert kept.exists()
    assert not old.exists()
    assert copies[whole].exists()
