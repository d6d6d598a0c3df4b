"""A first plan for a model: which workers, which split, which context."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.errors import PlanError
from backends.split.layout import make_split
from backends.split.memory import balance
from backends.state import Device, ModelInfo, Plan, Split, Value, WorkerSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from backends.config import Config

WORKERS_MAX = 16


class ProposalRequest(Value, frozen=True, kw_only=True):
    """What the user said; None is left to the configuration."""

    model: str
    workers: int | None = None
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
        PlanError: more workers than llama.cpp takes devices, or none.
    """
    if not 1 <= count <= WORKERS_MAX:
        raise PlanError(
            f"{count} workers cannot be started", f"Give 1 to {WORKERS_MAX} workers."
        )
    each = threads or max(cores // count, 1)
    return tuple(
        WorkerSpec(name=f"worker{index}", threads=each) for index in range(1, count + 1)
    )


def worker_device(worker: WorkerSpec, memory: Device) -> Device:
    """A local CPU worker as a device: the machine's memory under the worker's name."""
    return Device(
        id=f"{worker.name}/{worker.device}",
        name=worker.device,
        kind=memory.kind,
        description=memory.description,
        total_bytes=memory.total_bytes,
        free_bytes=memory.free_bytes,
        memory_pool=memory.memory_pool,
    )


def propose(
    request: ProposalRequest,
    model: ModelInfo,
    config: Config,
    head_devices: Sequence[Device],
    cores: int,
) -> Plan:
    """A plan for this machine's workers, split as asked or balanced by memory.

    The head's own devices are in the split with no layers, for the user to fill; its
    CPU (the first of ``head_devices``) leads, its GPUs follow the workers.

    Raises:
        PlanError: the counts do not fit the workers or the model.
    """
    n_workers = request.workers or (
        len(request.counts) if request.counts else config.workers
    )
    workers = local_workers(n_workers, config.worker_threads, cores)
    ctx_size = request.ctx_size or _context(config, model)
    devices = [worker_device(worker, head_devices[0]) for worker in workers]
    return Plan(
        model=model.path,
        split=_split(model, devices, head_devices, request.counts, ctx_size),
        workers=workers,
        ctx_size=ctx_size,
        api_port=request.api_port,
        relay=request.relay,
        extra_args=request.extra_args,
    )


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
