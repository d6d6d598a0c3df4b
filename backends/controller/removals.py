"""Deleting models and leftovers here and on peers, but nothing that a cluster uses."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path, PurePath

from msgspec.structs import replace

from backends.config import PeerConfig
from backends.controller.clusters import Clusters
from backends.errors import DllmError
from backends.machine_names import LOCAL, at_peer
from backends.machines.local_inventory import LocalInventory
from backends.machines.peers import Peers
from backends.models.catalogue import Catalogue
from backends.models.layers import read_model
from backends.models.parts import part_paths
from backends.models.removal import DAY_S, leftovers, model_removal, remove
from backends.models.search import Folder, configured_folders
from backends.planning.blueprint import machines_of
from backends.server_settings import weight_files
from backends.state import ModelFile, Plan
from backends.state.models import Removal


@dataclass(frozen=True, eq=False)
class Removals:
    _machines: Peers
    _clusters: Clusters
    _catalogue: Catalogue
    _inventory: LocalInventory

    async def of_model(self, machine: str, path: str) -> Removal:
        await self._machines.reached([machine])
        agent = self._machines.get(machine).agent
        used = await self._used(machine)
        found = await model_removal(agent, path, used=used)
        return replace(found, machine=machine)

    async def of_leftovers(
        self, machine: str, *, older_than_s: float = DAY_S
    ) -> Removal:
        """Plan to delete there what interrupted work left, and what nobody uses."""
        await self._machines.reached([machine])
        agent = self._machines.get(machine).agent
        before_s = time.time() - older_than_s
        here = machine == LOCAL
        more = await self._unused_here(before_s) if here else {}
        found = await leftovers(
            agent,
            await self._folders(machine),
            older_than_s=older_than_s,
            more=more,
            used=await self._used(machine),
        )
        return replace(found, machine=machine)

    async def carry_out(self, removal: Removal) -> Removal:
        await remove(self._machines.get(removal.machine).agent, removal)
        if removal.machine == LOCAL:
            await self._catalogue.refresh()
        else:
            await self._machines.known(removal.machine).look()
        return replace(removal, deleted=True)

    async def _used(self, machine: str) -> dict[str, str]:
        used: dict[str, str] = {}
        for cluster in self._clusters:
            for plan in filter(None, (cluster.pursued, cluster.goal.plan)):
                who = f"the cluster {cluster.name} runs it, or is to"
                for path in await self._files_of(plan, machine):
                    used |= dict.fromkeys(map(str, part_paths(Path(path))), who)
        return used

    async def _files_of(self, plan: Plan, machine: str) -> list[str]:
        files = [plan.model, *weight_files(plan.extra_args)]
        if plan.speculation is not None and plan.speculation.model:
            files.append(plan.speculation.model)
        named = [at_peer(file) or (LOCAL, file) for file in files]
        found = [path for there, path in named if there == machine]
        if machine == plan.head:
            found += [path for _, path in named]
        if machine in machines_of(plan):
            try:
                model = await self._inventory.model(plan.model)
                found += await self._machines.get(machine).copies_of(model)
            except DllmError:
                name = PurePath(plan.model).name
                for peer in self._machines.values():
                    models = peer.facts.models if peer.facts else ()
                    if peer.name == machine:
                        found += [
                            m.path for m in models if PurePath(m.path).name == name
                        ]
        return [path for path in found if path.startswith("/")]

    async def _folders(self, machine: str) -> tuple[Folder, ...]:
        if machine == LOCAL:
            return self._catalogue.folders
        told = await self._machines.get(machine).agent.machine()
        config = self._inventory.settings().peers.get(machine, PeerConfig())
        home = Path(told.variables.get("HOME", "/"))
        return configured_folders(config.model_dirs, home, told.variables)

    async def _unused_here(self, before_s: float) -> dict[str, str]:
        """Headers of peers' models, and sparse copies whose whole model is known."""
        listing = await self._catalogue.refresh()
        held = {model.identity for model in listing.models if not model.sparse}
        for peer in self._machines.values():
            there = peer.facts.models if peer.facts else ()
            held |= {model.identity for model in there}
        names = {peer.name for peer in self._machines.values()}
        headers = self._inventory.paths.cache_dir / "headers"
        return await asyncio.to_thread(
            lambda: (
                _headers(headers, names, before_s)
                | _sparse_copies(listing.models, held - {""}, before_s)
            )
        )


def _headers(folder: Path, peers: Collection[str], before_s: float) -> dict[str, str]:
    return {
        str(file): "header of a peer's model"
        for file in folder.glob("*/*/*")
        if file.is_file()
        and (
            file.relative_to(folder).parts[0] not in peers
            or max(file.stat().st_atime, file.stat().st_mtime) <= before_s
        )
    }


def _sparse_copies(
    models: Collection[ModelFile], held: Collection[str], before_s: float
) -> dict[str, str]:
    found: dict[str, str] = {}
    for model in models:
        path = Path(model.path)
        if not model.sparse or path.is_symlink():
            continue
        with contextlib.suppress(DllmError, OSError):
            info = read_model(path)
            if path.stat().st_mtime > before_s:
                continue
            if info.sparse is not None and info.sparse.identity in held:
                found |= dict.fromkeys(info.files, "sparse copy, no cluster uses it")
    return found
