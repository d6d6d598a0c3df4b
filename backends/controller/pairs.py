"""Decide if each worker is met by a pair of relays, or by the head's relay alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.controller.together import together
from backends.data_place import DataPlace, wanted_place
from backends.errors import DllmError, PeerUnreachable
from backends.link.relay import direct_in, models_in
from backends.planning.holes import check_holes, check_stand_ins
from backends.planning.pairing import (
    Beside,
    Pairing,
    alone_by_plan,
    judged,
)
from backends.split.flags import used_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from backends.machines.machine import Machine, Machines
    from backends.state import ModelInfo, Plan, WorkerSpec


async def pairings(
    plan: Plan,
    model: ModelInfo,
    machines: Machines,
    secret: Callable[[], str],
    running: Callable[[WorkerSpec], tuple[str, ...]] = lambda _: (),
) -> dict[str, Pairing]:
    """Return the pairing of each worker; empty for a plan without relays.

    ``secret`` gives the secret of the goal, for keys. ``running`` gives the command
    line of the relay beside a worker. A relay that serves is left alone.
    """

    async def pairing(worker: WorkerSpec) -> Pairing:
        if alone := alone_by_plan(plan, worker):
            return Pairing(why=alone)
        machine = machines.get(worker.peer)
        argv = running(worker)
        models, told = await machine.copies_of(model), models_in(argv)
        there = Beside(
            machine=machine.name,
            program=machine.relay_program(),
            features=await _features(machine),
            models=told if set(models) <= set(told) else models,
            searched=machine.searched,
            data=await _data_place(machine, argv),
        )
        head = machines.get(plan.head)
        here = Beside(machine=head.name, features=await _features(head))
        return judged(worker, there, here, secret())

    check_holes(plan, model)
    workers = used_workers(plan) if plan.relay else ()
    found = await together(map(pairing, workers))
    pairs = dict(zip((worker.name for worker in workers), found, strict=True))
    if model.sparse and workers:
        features = await _features(machines.get(plan.head))
        check_stand_ins(plan, model, pairs, features)
    return pairs


async def _data_place(machine: Machine, running: Sequence[str]) -> DataPlace:
    """Return the address of a worker's relay, or a reason for the tunnel.

    A relay that serves stays at its address, even if SSH reaches its machine at
    another address.
    """
    try:
        if known := direct_in(running):
            return wanted_place(known)
        place = await machine.data_place()
    except PeerUnreachable:
        raise
    except DllmError as error:
        return DataPlace(why=error.what)
    if running and place.address:
        return DataPlace(why="its relay was started without another address")
    return place


async def _features(machine: Machine) -> tuple[str, ...]:
    await machine.host.connect()
    return machine.host.features
