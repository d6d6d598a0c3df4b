"""A first plan for a model: which workers, which split, which context."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from backends.controller.places import at_peer
from backends.errors import PlanError
from backends.split.layout import make_split
from backends.split.memory import balance
from backends.state import (
    Device,
    DeviceKind,
    ModelInfo,
    Peer,
    PeerState,
    Plan,
    Split,
    Transport,
    Value,
    WorkerSpec,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from backends.config import Config

WORKERS_MAX = 16
_ABLE = (PeerState.READY, PeerState.STARTING, PeerState.SERVING)


class ProposalRequest(Value, frozen=True, kw_only=True):
    """What the user said; None is left to the configuration."""

    model: str
    workers: int | None = None
    """Workers on this machine."""
    peers: tuple[str, ...] | None = None
    """Peers whose devices take part; None: all that are ready, else this machine."""
    head: str | None = None
    """Who runs llama-server; None: this machine, or the only one with the model."""
    counts: tuple[int, ...] | None = None
    """Whole layers per worker, the output counted as one more."""
    ctx_size: int | None = None
    api_port: int | None = None
    relay: bool = True
    extra_args: tuple[str, ...] = ()


def local_workers(
    count: int, threads: int | None, cores: int
) -> tuple[WorkerSpec, ...]:
    """``count`` CPU workers on this machine, the cores shared out evenly.

    Raises:
        PlanError: more workers than llama.cpp takes devices.
    """
    if count > WORKERS_MAX:
        raise PlanError(
            f"{count} workers cannot be started", f"Give 1 to {WORKERS_MAX} workers."
        )
    each = threads or max(cores // max(count, 1), 1)
    return tuple(
        WorkerSpec(name=f"worker{index}", threads=each) for index in range(1, count + 1)
    )


def peer_workers(
    peer: Peer, threads: int | None, *, is_head: bool = False
) -> tuple[WorkerSpec, ...]:
    """One worker per accelerator of a peer, or one for its CPU.

    ``threads`` of a CPU worker; None: its performance cores. On the head the peer's own
    name stands for what llama-server itself computes with.
    """
    accelerators = [d for d in peer.devices if d.kind is not DeviceKind.CPU]
    chosen = accelerators or list(peer.devices[:1])
    cores = peer.facts.performance_cores if peer.facts else 0
    return tuple(
        WorkerSpec(
            name=f"{peer.name}-{device.name}"
            if len(chosen) > 1 or is_head
            else peer.name,
            peer=peer.name,
            device=device.name,
            threads=None if accelerators else threads or cores or None,
            endpoint=peer.address if peer.transport == Transport.BARE else "",
        )
        for device in chosen
    )


def worker_device(worker: WorkerSpec, device: Device) -> Device:
    """A machine's device under the worker's name."""
    return msgspec.structs.replace(device, id=f"{worker.name}/{worker.device}")


def propose(
    request: ProposalRequest,
    model: ModelInfo,
    config: Config,
    machines: Sequence[Peer],
    cores: int,
) -> Plan:
    """A plan for some machines, split as asked or balanced by memory.

    ``machines`` are this one, then every peer. The head's own devices are in the split
    with no layers, for the user to fill; its CPU leads, its GPUs follow the workers.

    Raises:
        PlanError: the counts do not fit the workers or the model, or a peer is unknown
            or cannot take part.
    """
    by_name = {machine.name: machine for machine in machines}
    there = at_peer(model.path)
    default = there[0] if there else machines[0].name
    head = _ready(by_name, request.head or default)
    workers = _workers(request, config, by_name, head.name, cores)
    ctx_size = request.ctx_size or _context(config, model)
    devices = [_device_of(worker, by_name[worker.peer]) for worker in workers]
    return Plan(
        model=model.path,
        split=_split(model, devices, head.devices, request.counts, ctx_size),
        workers=workers,
        head=head.name,
        ctx_size=ctx_size,
        api_port=request.api_port,
        relay=request.relay,
        extra_args=request.extra_args,
    )


def _workers(
    request: ProposalRequest,
    config: Config,
    machines: Mapping[str, Peer],
    head: str,
    cores: int,
) -> tuple[WorkerSpec, ...]:
    """The workers asked for; where nothing was said, those of all ready peers."""
    names = request.peers
    if names is None and request.workers is None:
        names = tuple(
            name
            for name, peer in machines.items()
            if _takes_part(peer) and name != head
        )
    found: list[WorkerSpec] = []
    for name in names or ():
        settings = config.peers.get(name)
        threads = settings.threads if settings else None
        peer = _ready(machines, name)
        found += peer_workers(peer, threads, is_head=name == head)
    count = request.workers
    if count is None and not found:
        count = len(request.counts) if request.counts else config.workers
    found += local_workers(count or 0, config.worker_threads, cores)
    if not found or len(found) > WORKERS_MAX:
        raise PlanError(
            f"{len(found)} workers cannot be started", f"Give 1 to {WORKERS_MAX}."
        )
    return tuple(found)


def _takes_part(peer: Peer) -> bool:
    return peer.transport != Transport.LOCAL and peer.state in _ABLE


def _ready(machines: Mapping[str, Peer], name: str) -> Peer:
    """A machine that can take part.

    Raises:
        PlanError: it is unknown, or cannot now.
    """
    peer = machines.get(name)
    if peer is None:
        known = ", ".join(machines)
        raise PlanError(
            f"There is no peer {name}", f"Known: {known}. Add it: dllm-tui peers add."
        )
    if peer.state not in _ABLE or not peer.devices:
        why = peer.note or f"it is {peer.state.value}"
        raise PlanError(f"{name} cannot take part now: {why}".rstrip("."))
    return peer


def _device_of(worker: WorkerSpec, machine: Peer) -> Device:
    named = {device.name: device for device in machine.devices}
    return worker_device(worker, named.get(worker.device, machine.devices[0]))


def _context(config: Config, model: ModelInfo) -> int:
    """The configured context, never beyond what the model was trained for."""
    return min(config.ctx_size, model.n_ctx_train or config.ctx_size)


def _split(
    model: ModelInfo,
    workers: Sequence[Device],
    head: Sequence[Device],
    counts: Sequence[int] | None,
    ctx_size: int,
) -> Split:
    """The split over head CPU, workers, head GPUs; only workers get layers."""
    if counts is None:
        balanced = balance(model, workers, ctx_size, head_cpu=None)
        counts = [share.layers for share in balanced.shares]
    make_split(model.n_layer, [worker.id for worker in workers], counts)
    ids = [head[0].id, *(w.id for w in workers), *(d.id for d in head[1:])]
    return make_split(model.n_layer, ids, [0, *counts, *(0 for _ in head[1:])])
