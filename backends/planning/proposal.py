"""A first plan for a model: its devices, their order and their layers.

Every device of every machine named takes part: those of the workers, then the head's
own GPUs, and the head's CPU where nothing else has room. A machine with accelerators
computes on these, another on its CPU. CPU workers on this machine are for trying
things: nobody gets them who has a GPU or another machine, unless they are asked for.

**The order.** llama.cpp gives the first layers to the head's CPU. The rest goes to the
devices in the order of ``--device``, and the output to the last one. In any order a
token makes one round trip per worker; only the holder of the output differs. As a
worker it sends 4 bytes for each word of the vocabulary and token (600 KB for 150 000).
A worker in the middle sends 4 for each of the embedding's numbers (a few KB). So the
head's GPUs come last, after the workers, side by side.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from backends.errors import PlanError, cannot_take_part, did_you_mean, unknown_peer
from backends.machine_names import LOCAL, at_peer
from backends.planning.checking import check_numbers, check_plan, check_worker_count
from backends.planning.layer_allocation import allocate_layers, by_name, by_order
from backends.server_settings import check_server, checked_arguments, settings_apart
from backends.state import (
    Ask,
    Device,
    DeviceKind,
    ModelInfo,
    Peer,
    PeerState,
    Plan,
    ServerSettings,
    Split,
    Transport,
    WorkerSpec,
)

if TYPE_CHECKING:
    from backends.config import Config

ABLE = (PeerState.READY, PeerState.STARTING, PeerState.SERVING)
CPU = "CPU"
OWN_WORKER = "worker"
"""The name of workers on this machine, before their number."""


def local_workers(
    count: int, threads: int | None, cores: int, cache: str = ""
) -> tuple[WorkerSpec, ...]:
    each = threads or max(cores // max(count, 1), 1)
    return tuple(
        WorkerSpec(name=f"{OWN_WORKER}{index}", threads=each, cache=cache)
        for index in range(1, count + 1)
    )


def peer_workers(
    peer: Peer, threads: int | None, asked: Ask | None = None
) -> tuple[WorkerSpec, ...]:
    """One worker per accelerator of a machine, or one for its CPU.

    A CPU beside accelerators works where ``asked`` names it, and where it leaves none
    of them. ``threads`` of a CPU worker; None: its performance cores.
    """
    if peer.transport == Transport.BARE:
        names = tuple(device.name for device in peer.devices)
        return (
            WorkerSpec(
                name=peer.name, peer=peer.name, devices=names, endpoint=peer.address
            ),
        )
    chosen = _chosen(peer, asked or Ask(model=""))
    cores = peer.facts.performance_cores if peer.facts else 0
    single = len(chosen) == 1 and peer.name != LOCAL
    return tuple(
        WorkerSpec(
            name=peer.name if single else f"{peer.name}-{device.name}",
            peer=peer.name,
            devices=(device.name,),
            place=peer.name,
            threads=(threads or cores or None) if _is_cpu(device) else None,
        )
        for device in chosen
    )


def _chosen(peer: Peer, asked: Ask) -> list[Device]:
    allowed = [d for d in peer.devices if d.id not in asked.exclude]
    accelerators = [device for device in allowed if not _is_cpu(device)]
    named = [d for d in allowed if _is_cpu(d) and d.id in (asked.split or {})]
    return [*named, *accelerators] if accelerators else allowed[:1]


def worker_devices(worker: WorkerSpec, machine: Peer) -> tuple[Device, ...]:
    known = {device.name: device for device in machine.devices}
    return tuple(
        msgspec.structs.replace(
            known[name],
            id=device_id,
            memory_pool=known[name].memory_pool or known[name].id,
        )
        for name, device_id in zip(worker.devices, worker.device_ids, strict=True)
        if name in known
    )


def plan_devices(
    head: str, workers: Iterable[WorkerSpec], machines: Mapping[str, Peer]
) -> tuple[Device, ...]:
    """The known devices of a plan, in the order of a split: see above."""
    own = machines[head].devices if head in machines else ()
    unknown = Device(id=f"{head}/{CPU}", name=CPU, kind=DeviceKind.CPU)
    cpu = next(filter(_is_cpu, own), unknown)
    accelerators = (device for device in own if not _is_cpu(device))
    remote = (
        device
        for worker in workers
        if worker.peer in machines
        for device in worker_devices(worker, machines[worker.peer])
    )
    return (cpu, *remote, *accelerators)


def _is_cpu(device: Device) -> bool:
    return device.kind is DeviceKind.CPU or device.name == CPU


def propose(
    request: Ask, model: ModelInfo, config: Config, machines: Sequence[Peer], cores: int
) -> Plan:
    check_numbers(request, model)
    by_machine = {machine.name: machine for machine in machines}
    there = at_peer(model.path)
    default = there[0] if there else machines[0].name
    head = _ready(by_machine, request.head or default)
    workers = _workers(request, config, by_machine, head, cores)
    all_devices = plan_devices(head.name, workers, by_machine)
    devices = [device for device in all_devices if device.id not in request.exclude]
    trained = model.n_ctx_train or config.ctx_size
    ctx_size = request.ctx_size or min(config.ctx_size, trained)
    if (request.depth or 0) > ctx_size:
        raise PlanError(
            f"A depth of {request.depth} tokens is more than the context of {ctx_size}",
            "Give a longer --context, or a smaller --depth.",
        )
    server, further = settings_apart(request.extra_args, request.server)
    check_server(server, ctx_size, model)
    split = _split(request, model, head.name, devices, ctx_size, server)
    plan = Plan(
        model=model.path,
        split=split,
        workers=workers,
        head=head.name,
        ctx_size=ctx_size,
        server=server,
        api_port=request.api_port,
        relay=request.relay,
        pair=request.pair or config.pair,
        keep_awake=config.keep_awake,
        experts=request.experts,
        extra_args=checked_arguments(
            further, head=head.name, directory=request.directory
        ),
        asked=request,
    )
    check_plan(plan, model)
    return plan


def _split(
    request: Ask,
    model: ModelInfo,
    head: str,
    devices: Sequence[Device],
    ctx_size: int,
    server: ServerSettings,
) -> Split:
    ids = [device.id for device in devices]
    if not ids:
        raise PlanError("No device is left to compute with", "Exclude fewer devices.")
    if request.split is not None:
        return by_name(model, ids, request.split)
    if request.counts is not None:
        return by_order(model, ids, request.counts, head=head)
    return allocate_layers(
        *(model, devices, ctx_size),
        head=head,
        server=server,
        experts=request.experts,
    )


def _workers(
    request: Ask, config: Config, machines: Mapping[str, Peer], head: Peer, cores: int
) -> tuple[WorkerSpec, ...]:
    found: list[WorkerSpec] = []
    for name in _machines(request, machines, head):
        settings = config.peers.get(name)
        threads = settings.threads if settings else None
        found += peer_workers(_ready(machines, name), threads, request)
    # Workers here for a head elsewhere would be the slowest of all: only if asked.
    alone = (
        not found
        and head.name == LOCAL
        and request.peers is None
        and not _accelerators(head, request.exclude)
    )
    count = _own_count(request, config, alone=alone)
    each = request.worker_threads or config.worker_threads
    found += local_workers(count, each, cores, request.worker_cache)
    check_worker_count(len(found))
    _require_known(request.exclude, found, machines)
    allowed = set(request.exclude)
    return tuple(w for w in found if not allowed.issuperset(w.device_ids))


def _machines(
    request: Ask, machines: Mapping[str, Peer], head: Peer
) -> tuple[str, ...]:
    if request.peers is not None:
        return tuple(name for name in request.peers if name != head.name)
    others = [name for name in machines if name != head.name]
    if request.split is not None:
        named = {device.partition("/")[0] for device in request.split}
        for name in named:
            if not _is_own_worker(name):
                _known(machines, name)
        return tuple(name for name in others if name in named)
    if request.workers is not None:
        return ()
    return tuple(n for n in others if _takes_part(machines[n], request.exclude))


def _takes_part(peer: Peer, exclude: Collection[str]) -> bool:
    if peer.transport == Transport.LOCAL:
        return bool(_accelerators(peer, exclude))
    return peer.state in ABLE and any(d.id not in exclude for d in peer.devices)


def _accelerators(machine: Peer, exclude: Collection[str]) -> list[Device]:
    return [d for d in machine.devices if not _is_cpu(d) and d.id not in exclude]


def _own_count(request: Ask, config: Config, *, alone: bool) -> int:
    if request.workers is not None:
        return request.workers
    if request.split is not None:
        names = {name.partition("/")[0] for name in request.split}
        own = [int(n.removeprefix(OWN_WORKER)) for n in names if _is_own_worker(n)]
        return max(own, default=0)
    if not alone:
        return 0
    return len(request.counts) if request.counts else config.workers


def _is_own_worker(name: str) -> bool:
    number = name.removeprefix(OWN_WORKER)
    return number != name and number.isascii() and number.isdigit() and len(number) < 3


def _require_known(
    exclude: Iterable[str], workers: Iterable[WorkerSpec], machines: Mapping[str, Peer]
) -> None:
    known = [device.id for machine in machines.values() for device in machine.devices]
    known += [device_id for worker in workers for device_id in worker.device_ids]
    for name in exclude:
        if name not in known:
            there = ", ".join(dict.fromkeys(known))
            raise PlanError(
                f"There is no device {name} to exclude",
                f"{did_you_mean(name, known)}Known: {there}.",
            )


def _ready(machines: Mapping[str, Peer], name: str) -> Peer:
    peer = _known(machines, name)
    if peer.state not in ABLE or not peer.devices:
        why = peer.note or f"it is {peer.state.value}"
        raise PlanError(cannot_take_part(name, why))
    return peer


def _known(machines: Mapping[str, Peer], name: str) -> Peer:
    if name not in machines:
        raise PlanError(*unknown_peer(name, machines))
    return machines[name]
