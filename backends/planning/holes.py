"""A check that a plan can run from a sparse file: no device may need a hole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from backends.errors import PlanError
from backends.planning.pairing import CAN_BE_SPARSE, Pairing, alone_by_plan
from backends.server_settings import moving
from backends.split.flags import used_workers
from backends.split.layout import ranges
from backends.state import ModelInfo, Plan, SparseModel, WorkerSpec
from backends.units import format_ranges


def check_holes(plan: Plan, model: ModelInfo) -> None:
    """Refuse a plan under which a hole would be read as weights."""
    if (sparse := model.sparse) is None:
        return
    name = _name(model)
    if sparse.for_worker:
        raise PlanError(
            f"{name} has some layers of {_base(sparse.source)}, for a worker",
            "Launch from the model itself; the worker finds these.",
        )
    counted = [arg for arg in plan.extra_args if ".block_count=" in arg]
    elsewhere = ["-ot"] if plan.experts else []
    if moved := [*elsewhere, *moving(plan.extra_args), *counted]:
        raise PlanError(
            f"{name} is sparse, and {moved[0]} may ask the head for what it lacks",
            "Leave that out, or launch from the whole model.",
        )
    used = (share.device for share in plan.split.shares if share.layers)
    own = {device for device in used if device.startswith(f"{plan.head}/")}
    if missing := _missing(plan, model, own, sparse):
        raise PlanError(
            f"{name} is sparse: it lacks {missing}, which {plan.head} is to hold",
            "Give that to workers (--split), or make a file that has it: dllm-tui "
            "models sparse.",
        )
    for worker, lacked in _served(plan, model, sparse):
        why = alone_by_plan(plan, worker) if plan.relay else "relays are turned off"
        if why:
            raise _alone(model, worker, lacked, why)


def check_stand_ins(
    plan: Plan,
    model: ModelInfo,
    pairings: Mapping[str, Pairing],
    head_features: Iterable[str],
) -> None:
    """Refuse a sparse file where a worker could not have what is a hole in it."""
    if model.sparse is None:
        return
    if CAN_BE_SPARSE not in head_features:
        raise PlanError(
            f"{_name(model)} is sparse, and dllm-relay on {plan.head} is too old for "
            "that",
            f"Install ours there: dllm-tui peers setup {plan.head}.",
        )
    for worker, lacked in _served(plan, model, model.sparse):
        pairing = pairings.get(worker.name)
        if pairing is None or not pairing.paired:
            why = pairing.why if pairing else "no relay stands beside it"
            raise _alone(model, worker, lacked, why)
        if not pairing.models:
            why = f"{worker.peer} has no file of {model.sparse.source}"
            raise _alone(model, worker, lacked, why)


def _alone(model: ModelInfo, worker: WorkerSpec, lacked: str, why: str) -> PlanError:
    return PlanError(
        f"{_name(model)} is sparse: it lacks {lacked}, and {worker.name} cannot have "
        f"that from a file of its own: {why}",
        "Launch from the whole model, or give the worker that or a sparse file of it, "
        "and let pairs be used.",
    )


def _served(
    plan: Plan, model: ModelInfo, sparse: SparseModel
) -> Iterable[tuple[WorkerSpec, str]]:
    for worker in used_workers(plan):
        if missing := _missing(plan, model, set(worker.device_ids), sparse):
            yield worker, missing


def _missing(
    plan: Plan, model: ModelInfo, devices: set[str], sparse: SparseModel
) -> str:
    held = [each for each in ranges(plan.split) if each.device in devices]
    wanted = {index for each in held for index in range(each.first, each.last + 1)}
    layers = sorted(wanted - set(sparse.layers) - {model.n_layer})
    has_output = sparse.embedding if model.tied_output else sparse.output
    words = []
    if layers:
        words.append(f"layer{'s' if len(layers) > 1 else ''} {format_ranges(layers)}")
    if model.n_layer in wanted and not has_output:
        words.append("the output")
    is_head = any(device.startswith(f"{plan.head}/") for device in devices)
    if (is_head or not devices) and not sparse.embedding:
        words.append("the embedding")
    return " and ".join(words)


def _name(model: ModelInfo) -> str:
    return _base(model.path)


def _base(path: str) -> str:
    return path.rpartition("/")[2]
