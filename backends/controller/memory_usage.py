"""Read the memory of all machines, and compute the share of our own clusters."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from msgspec.structs import replace

from backends.errors import DllmError, EngineError, HostError
from backends.places import LOCAL
from backends.planning.room import ClusterMemory
from backends.speculation.memory import loads_with_draft, with_draft
from backends.split.loads import plan_loads
from backends.state import ClusterState, DeviceKind, Peer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from backends.controller.cluster import Cluster
    from backends.controller.journal import Record
    from backends.machines.host import ProcessRecord
    from backends.machines.machine import Machine, Machines
    from backends.machines.readers import Readers
    from backends.state import ClusterSnapshot, Device, MeasuredSplit, Plan

READ_S = 1.0
"""Longest wait for a machine to tell its memory; its last figure stands then."""


async def machines_now(machines: Machines, readers: Readers) -> list[Peer]:
    """This machine with its devices, then every peer, main memory as it is now."""
    here = machines.get(LOCAL)
    local = (await here.host.memory(), *await _own_accelerators(readers))
    others = [machine for machine in machines.all() if machine is not here]
    peers = with_memory(machines.values(), await memory_of(others))
    return [Peer(name=LOCAL, devices=local), *peers]


async def memory_of(machines: Iterable[Machine]) -> list[Device]:
    """Main memory of each machine that tells it."""
    told = await asyncio.gather(*map(_memory, machines))
    return [memory for memory in told if memory is not None]


def with_memory(peers: Iterable[Peer], memory: Iterable[Device]) -> list[Peer]:
    """The peers with the free main memory that their machines reported."""
    free = {cpu.id: cpu.free_bytes for cpu in memory}
    return [replace(peer, devices=_with(peer.devices, free)) for peer in peers]


async def _own_accelerators(readers: Readers) -> tuple[Device, ...]:
    try:
        return (await readers.engine()).info.devices
    except EngineError:
        return ()


async def _memory(machine: Machine) -> Device | None:
    try:
        async with asyncio.timeout(READ_S):
            return await machine.host.memory()
    except (HostError, TimeoutError):
        return None


def _with(devices: Iterable[Device], free: dict[str, int]) -> tuple[Device, ...]:
    return tuple(
        replace(device, free_bytes=free.get(device.id, device.free_bytes))
        if device.kind is DeviceKind.CPU
        else device
        for device in devices
    )


async def held_by(cluster: Cluster, readers: Readers) -> ClusterMemory | None:
    """Return the memory that a cluster takes, or will take; None if it is idle."""
    plan, snapshot = cluster.pursued, cluster.store.snapshot
    if plan is None:
        return None
    measured = snapshot.measured
    if measured is not None and snapshot.state is ClusterState.SERVING:
        return loaded(plan, measured)
    try:
        model = await readers.model(plan.model)
    except DllmError:
        # It will not load either.
        return None
    loads = loads_with_draft(plan_loads(model, plan), plan.speculation)
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
    """Return the memory that a loaded plan takes, by its measurements."""
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
