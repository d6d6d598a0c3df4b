"""The site of a plan: engines, model, draft and pairs of the machines that take part.

A preparation finds it before a launch, the builder before each later start.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from backends.controller.steps import Steps
from backends.data_place import DataPlace, wanted_place
from backends.engine.ask import Engine
from backends.engine.versions import require_same_protocol
from backends.errors import (
    DllmError,
    ModelError,
    PeerUnreachable,
    PlanError,
    about_worker,
)
from backends.link.relay import direct_in, models_in
from backends.machines.machine import Machine, Machines
from backends.machines.readers import Readers
from backends.models.header import read_header
from backends.models.parts import part_paths
from backends.models.sparse import has_holes
from backends.places import LOCAL
from backends.planning.blueprint import Facts, own_workers
from backends.planning.holes import check_holes, check_stand_ins
from backends.planning.pairing import PairEnd, Pairing, alone_by_plan, judged
from backends.printable import printable
from backends.server_settings import weight_files
from backends.split.flags import used_workers
from backends.state import ModelInfo, Plan, WorkerSpec
from backends.tasks import gather_or_cancel

OTHER_DRAFT = "Take another draft (dllm-tui models drafts), or none (--draft none)."


async def site_of(
    cluster: str,
    plan: Plan,
    machines: Machines,
    readers: Readers,
    steps: Steps,
    running: Callable[[WorkerSpec], Sequence[str]] = lambda _: (),
) -> Facts:
    """The facts of a plan, without ports, ways and keys; reports two steps."""
    head = machines.get(plan.head)
    with steps.step("engine"):
        engines = await engines_of(plan, machines)
    with steps.step("model"):
        model = await readers.model(plan.model)
        if model.n_layer != plan.split.n_layer:
            raise PlanError(
                f"The plan is for {plan.split.n_layer} layers, "
                f"{plan.model} has {model.n_layer}",
                "Pick the model again to get a plan for it.",
            )
        model_path = await head.model_path(model)
        await check_whole(plan)
        draft = await draft_path(plan, machines, readers)
    workers = used_workers(plan) if plan.relay else ()
    return Facts(
        cluster=cluster,
        engines=engines,
        model=model,
        model_path=model_path,
        sparse=model.sparse is not None,
        draft_path=draft,
        relay=head.relay_program() if workers else "",
        stats={w.name: head.relay_stats(relay_key(cluster, w.name)) for w in workers},
        pairings=await _pairings(plan, model, machines, running),
    )


def relay_key(cluster: str, worker: str) -> str:
    return f"{cluster}.{worker}"


async def engines_of(plan: Plan, machines: Machines) -> dict[str, Engine]:
    """The engine of every machine that takes part, the head's first, by machine."""
    first = await machines.get(plan.head).engine(plan.engine)
    protocol = first.info.rpc_protocol
    engines = {plan.head: first}
    for worker in own_workers(plan):
        if worker.peer in engines:
            continue
        wanted = plan.engine if worker.peer == LOCAL else None
        with about_worker(worker.name):
            there = await machines.get(worker.peer).engine(wanted, protocol)
            require_same_protocol(protocol, there.info.rpc_protocol, worker.peer)
        engines[worker.peer] = there
    return engines


async def draft_path(plan: Plan, machines: Machines, readers: Readers) -> str:
    """Return the path of the draft model on the head; empty without a draft."""
    if plan.speculation is None or not plan.speculation.model:
        return ""
    with blaming_draft():
        draft = await readers.model(plan.speculation.model)
        return await machines.get(plan.head).model_path(draft)


@contextlib.contextmanager
def blaming_draft() -> Iterator[None]:
    """Have what is wrong with a model's file told of the draft."""
    try:
        yield
    except ModelError as error:
        raise ModelError(
            f"The draft model cannot be used: {error.what}", OTHER_DRAFT
        ) from error


async def check_whole(plan: Plan) -> None:
    """Refuse a sparse file that llama-server would read for itself alone."""
    draft = [plan.speculation.model] if plan.speculation else []
    files = [*weight_files(plan.extra_args), *draft] if plan.head == LOCAL else []
    if sparse := await asyncio.to_thread(_first_sparse, files):
        raise PlanError(
            f"{printable(sparse)} is sparse, and what it lacks only the model's own "
            "workers can have",
            "Name the whole file it was made from.",
        )


def _first_sparse(files: list[str]) -> str:
    for file in files:
        for part in part_paths(Path(file)):
            with contextlib.suppress(ModelError, OSError, ValueError):
                if has_holes(read_header(part)):
                    return part.name
    return ""


async def _pairings(
    plan: Plan,
    model: ModelInfo,
    machines: Machines,
    running: Callable[[WorkerSpec], Sequence[str]],
) -> dict[str, Pairing]:
    """The pairing of each worker; empty for a plan without relays."""

    async def pairing(worker: WorkerSpec) -> Pairing:
        if alone := alone_by_plan(plan, worker):
            return Pairing(why=alone)
        machine = machines.get(worker.peer)
        argv = running(worker)
        models, told = await machine.copies_of(model), models_in(argv)
        there = PairEnd(
            machine=machine.name,
            program=machine.relay_program(),
            features=await _features(machine),
            models=told if set(models) <= set(told) else models,
            searched=machine.searched,
            data=await _data_place(machine, argv),
        )
        head = machines.get(plan.head)
        here = PairEnd(machine=head.name, features=await _features(head))
        return judged(there, here)

    check_holes(plan, model)
    workers = used_workers(plan) if plan.relay else ()
    found = await gather_or_cancel(map(pairing, workers))
    pairs = dict(zip((worker.name for worker in workers), found, strict=True))
    if model.sparse and workers:
        features = await _features(machines.get(plan.head))
        check_stand_ins(plan, model, pairs, features)
    return pairs


async def _data_place(machine: Machine, running: Sequence[str]) -> DataPlace:
    """The address of a worker's relay, or a reason for the tunnel.

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
