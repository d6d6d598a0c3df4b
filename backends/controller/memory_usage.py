"""The memory of all machines, that of our clusters, and that which a plan takes."""

from __future__ import annotations

import asyncio
import glob
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from backends.engine.fit_params import MemoryAsker, MemoryQuestion
from backends.errors import DllmError, EngineError, MachineError, ModelError
from backends.machine_names import LOCAL, at_peer
from backends.paths import Paths, relay_binary
from backends.planning.memory_fit import ClusterMemory
from backends.speculation.memory import loads_with_draft, with_draft, with_own_weights
from backends.split.device_memory import plan_loads
from backends.split.flags import compile_split
from backends.state import (
    ClusterSnapshot,
    ClusterState,
    Device,
    DeviceKind,
    DeviceMemory,
    MeasuredSplit,
    ModelInfo,
    Peer,
    Plan,
    PlanMemory,
)

if TYPE_CHECKING:
    from backends.controller.journal import Record
    from backends.machines.agent import ProcessRecord
    from backends.machines.local_inventory import LocalInventory
    from backends.machines.machine import Machine, Machines

READ_S = 1.0
"""Longest wait for a machine to tell its memory; its last figure stands then."""


async def machines_now(machines: Machines, inventory: LocalInventory) -> list[Peer]:
    """This machine with its devices, then every peer, main memory as it is now."""
    here = machines.get(LOCAL)
    local = (await here.agent.memory(), *await _own_accelerators(inventory))
    others = [machine for machine in machines.all() if machine is not here]
    peers = with_memory(machines.values(), await memory_of(others))
    return [Peer(name=LOCAL, devices=local), *peers]


async def memory_of(machines: Iterable[Machine]) -> list[Device]:
    told = await asyncio.gather(*map(_memory, machines))
    return [memory for memory in told if memory is not None]


def with_memory(peers: Iterable[Peer], memory: Iterable[Device]) -> list[Peer]:
    """The peers with the free main memory that their machines reported."""
    free = {cpu.id: cpu.free_bytes for cpu in memory}

    def now(device: Device) -> Device:
        if device.kind is not DeviceKind.CPU:
            return device
        return replace(device, free_bytes=free.get(device.id, device.free_bytes))

    return [replace(peer, devices=tuple(map(now, peer.devices))) for peer in peers]


async def _own_accelerators(inventory: LocalInventory) -> tuple[Device, ...]:
    try:
        return (await inventory.engine()).info.devices
    except EngineError:
        return ()


async def _memory(machine: Machine) -> Device | None:
    try:
        async with asyncio.timeout(READ_S):
            return await machine.agent.memory()
    except (MachineError, TimeoutError):
        return None


async def held_by(
    plan: Plan | None, snapshot: ClusterSnapshot, inventory: LocalInventory
) -> ClusterMemory | None:
    """Return the memory that a cluster takes, or will take; None if it is idle."""
    if plan is None:
        return None
    measured = snapshot.measured
    if measured is not None and snapshot.state is ClusterState.SERVING:
        return loaded(plan, measured)
    try:
        model = await inventory.model(plan.model)
    except DllmError:
        # It will not load either.
        return None
    protocol = await inventory.rpc_protocol(plan)
    alone = plan_loads(model, plan, protocol=protocol)
    loads = loads_with_draft(alone, plan.speculation)
    return ClusterMemory(
        plan=plan,
        memory=tuple(load.memory for load in loads),
        loaded=False,
        arrived_bytes=_arrived_bytes(plan, snapshot),
    )


def still_held(
    plan: Plan, record: Record, processes: Iterable[ProcessRecord]
) -> ClusterMemory | None:
    """Return the memory of a stopped plan until its llama-server is gone."""
    there = {process.incarnation for process in processes if process.alive}
    if record.measured is None or record.server not in there:
        return None
    return loaded(plan, record.measured)


def loaded(plan: Plan, measured: MeasuredSplit) -> ClusterMemory:
    memory = tuple(with_draft(one, plan.speculation) for one in measured.buffers)
    return ClusterMemory(plan=plan, memory=memory, loaded=True)


def _arrived_bytes(plan: Plan, snapshot: ClusterSnapshot) -> dict[str, int]:
    # Loaded bytes of CPU workers already show in the memory of their machine.
    rss = {(p.peer, p.name): p.rss_bytes or 0 for p in snapshot.processes}
    return {
        device_id: rss.get((worker.peer, worker.name), 0)
        for worker in plan.workers
        for name, device_id in zip(worker.devices, worker.device_ids, strict=True)
        if name == "CPU"
    }


class PlannedMemory:
    """Tells how much memory a plan would take, by asking the engine if possible.

    It keeps the answers below the cache folder.
    """

    def __init__(self, inventory: LocalInventory, paths: Paths) -> None:
        self._inventory = inventory
        self._headers = paths.cache_dir / "headers"
        self._asker = MemoryAsker(paths.cache_dir / "memory", relay_binary)

    async def of(self, plan: Plan) -> PlanMemory:
        """The memory of a plan; predicted, with the reason, if no engine answers."""
        model, protocol = await self._inventory.model(plan.model), ""
        try:
            files = await asyncio.to_thread(self.files, model)
            engine = await self._inventory.engine(
                plan.engine if plan.head == LOCAL else None
            )
            protocol = engine.info.rpc_protocol
            question = question_of(plan, files)
            devices = await self._asker.ask(engine.info, protocol, question)
        except DllmError as error:
            devices = predicted_memory(plan, model, protocol)
            return PlanMemory(devices=devices, note=str(error))
        return PlanMemory(devices=with_own_weights(devices, plan, model))

    def files(self, model: ModelInfo) -> list[str]:
        """Files of ours that have the model's header, the first part first."""
        return files_here(model, self._headers)


def predicted_memory(
    plan: Plan, model: ModelInfo, protocol: str = ""
) -> tuple[DeviceMemory, ...]:
    """By our own arithmetic: every device that holds something, the draft apart."""
    loads = plan_loads(model, plan, protocol=protocol)
    return tuple(load.memory for load in loads if load.total_bytes)


def question_of(plan: Plan, files: Sequence[str]) -> MemoryQuestion:
    placement = compile_split(plan, {})
    return MemoryQuestion(
        files=tuple(files),
        head_cpu=f"{plan.head}/CPU",
        device_ids=placement.device_ids,
        tensor_split=placement.tensor_split,
        head_layers=plan.split.n_layer + 1 - placement.n_gpu_layers,
        ctx_size=plan.ctx_size,
        server=plan.server,
        experts=plan.experts,
        extra_args=plan.extra_args,
    )


def files_here(model: ModelInfo, headers: Path) -> list[str]:
    """Files of ours that have the model's header, the first part first.

    A model on a peer was read through a sparse copy of its beginning. ``headers``
    keeps that by peer.
    """
    there = at_peer(model.path)
    if there is None:
        return list(model.files or (model.path,))
    peer, path = there
    name = path.rpartition("/")[2]
    copies = [c for c in (headers / peer).glob(f"*/{glob.escape(name)}") if c.is_file()]
    copies = [c for c in copies if c.stat().st_size == model.size_bytes]
    if len(model.files) > 1 or not copies:
        raise ModelError(
            f"Of {model.path} there is no copy of the header that the engine can read",
            "What is shown is predicted.",
        )
    return [str(max(copies, key=lambda c: c.stat().st_mtime))]
