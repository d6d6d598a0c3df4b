"""Limits of a request's numbers, checks of a plan, remarks on it, and sparse holes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from backends.errors import PlanError
from backends.planning.relay_pairs import Pairing, alone_by_plan
from backends.server_settings import (
    check_context,
    check_server,
    check_threads,
    checked_arguments,
    moving,
    settings_apart,
)
from backends.split.buffers import F32_BYTES
from backends.split.device_memory import overcommitted, plan_loads
from backends.split.experts import check_experts
from backends.split.flags import DEVICES_MAX, is_relayed, used_workers
from backends.split.layout import counts, is_head_cpu, make_split, ranges
from backends.split.layout import devices as devices_of
from backends.state import (
    MTP_DRAFT,
    Ask,
    Device,
    ModelInfo,
    Peer,
    Plan,
    SparseModel,
    WorkerSpec,
)
from backends.units import (
    format_bytes,
    format_count,
    format_ms,
    format_ranges,
    format_speed,
)


def check_numbers(asked: Ask, model: ModelInfo) -> None:
    check_worker_count(asked.workers)
    _check_port(asked.api_port)
    check_threads(asked.worker_threads)
    if asked.ctx_size is not None:
        check_context(asked.ctx_size, model)
    for count in (*(asked.counts or ()), *(asked.split or {}).values()):
        if count < 0:
            raise PlanError(
                f"The split has a negative share ({count})",
                "Use whole layers, 0 or more.",
            )
    if asked.counts is not None and asked.split is not None:
        raise PlanError(
            "The split is given twice, by order and by name", "Give one of them."
        )


def check_plan(plan: Plan, model: ModelInfo) -> None:
    _check_port(plan.api_port)
    check_worker_count(len(plan.workers))
    for worker in plan.workers:
        check_threads(worker.threads)
    check_context(plan.ctx_size, model)
    check_server(plan.server, plan.ctx_size, model)
    _check_arguments(plan)
    _check_split(plan, model)
    check_experts(plan, model)
    check_holes(plan, model)


def _check_arguments(plan: Plan) -> None:
    _, rest = settings_apart(plan.extra_args, plan.server)
    if len(rest) < len(plan.extra_args):
        raise PlanError(
            f"The further arguments {' '.join(plan.extra_args)} hold a setting that a "
            "plan has a place for",
            "Set it in the plan (server), or let the plan be proposed.",
        )
    checked_arguments(plan.extra_args, head=plan.head, directory="")


def _check_split(plan: Plan, model: ModelInfo) -> None:
    names = devices_of(plan.split)
    if plan.split.n_layer != model.n_layer:
        raise PlanError(
            f"The split is of {plan.split.n_layer} layers, and the model has "
            f"{model.n_layer}",
            "Plan it anew: the file may have changed.",
        )
    make_split(model.n_layer, names, counts(plan.split))
    known = plan.worker_of
    for name in names:
        if name not in known and not name.startswith(f"{plan.head}/"):
            raise PlanError(
                f"The plan has no device {name}",
                f"It has {', '.join((*sorted(known), f'{plan.head}/…'))}.",
            )


def check_worker_count(count: int | None) -> None:
    _within(count, 0, DEVICES_MAX, "workers", "cannot be started")


def _check_port(port: int | None) -> None:
    _within(port, 1, 65535, "as port", "is none")


def _within(value: int | None, low: int, high: int, what: str, why: str) -> None:
    if value is not None and not low <= value <= high:
        raise PlanError(f"{value} {what} {why}", f"Give {low} to {high}.")


def remarks(
    plan: Plan,
    model: ModelInfo,
    devices: Sequence[Device],
    machines: Mapping[str, Peer],
    *,
    protocol: str = "",
) -> tuple[str, ...]:
    """Sentences on what makes this plan slow, or another one better.

    ``protocol`` is the RPC version of the head's engine.
    """
    found = (
        model.caveat,
        _no_template(plan, model),
        _head_idle(plan, model, machines),
        _on_the_cpu(plan),
        _fits_alone(plan, model, devices, protocol),
        _logs_everything(plan),
        _breaks_off(plan),
        _drafts_cross(plan),
    )
    return tuple(sentence for sentence in found if sentence)


def _no_template(plan: Plan, model: ModelInfo) -> str:
    if model.has_chat_template or plan.gives_chat_template:
        return ""
    return (
        "The model has no chat template: llama-server writes chats in ChatML, which it "
        "may not know. -- --chat-template gives another."
    )


def _head_idle(plan: Plan, model: ModelInfo, machines: Mapping[str, Peer]) -> str:
    own = [s for s in plan.split.shares if s.device.startswith(f"{plan.head}/")]
    workers = used_workers(plan)
    near = all(worker.peer == plan.head for worker in workers)
    if near or any(share.layers for share in own):
        return ""
    sent = token_bytes(plan, model)
    trips = format_count(len(workers), "round trip")
    text = (
        f"Slow: {plan.head} computes no layer, so that every token makes {trips} and "
        f"the last worker sends {format_bytes(F32_BYTES * model.n_vocab)} for it "
        f"({format_bytes(sent)} in all)"
    )
    network_ms = _network_ms(plan, model, workers, machines)
    if network_ms is None:
        return f"{text}."
    most = 1e3 / network_ms
    return (
        f"{text}: ~{format_ms(network_ms)} of network a token, "
        f"~{format_speed(most)} at the most."
    )


def token_bytes(plan: Plan, model: ModelInfo) -> int:
    """Bytes of one token's numbers that workers send, up and down together.

    Each stage takes and gives the hidden state; the one with the output gives a number
    for every word instead.
    """
    return sum(
        up + down
        for up, down in (
            _stage_bytes(plan, model, w.device_ids) for w in used_workers(plan)
        )
    )


def _stage_bytes(plan: Plan, model: ModelInfo, ids: Sequence[str]) -> tuple[int, int]:
    last = next(s.device for s in reversed(plan.split.shares) if s.layers)
    hidden = F32_BYTES * model.n_embd
    return hidden, F32_BYTES * model.n_vocab if last in ids else hidden


def _network_ms(
    plan: Plan,
    model: ModelInfo,
    workers: Sequence[WorkerSpec],
    machines: Mapping[str, Peer],
) -> float | None:
    total_ms = 0.0
    for worker in workers:
        peer = machines.get(worker.peer)
        if peer is None or peer.rtt_ms is None:
            continue
        total_ms += peer.rtt_ms
        mb_s = peer.facts.bandwidth_mb_s if peer.facts else None
        if mb_s:
            sent = sum(_stage_bytes(plan, model, worker.device_ids))
            total_ms += sent / (mb_s * 1e3)
    return total_ms or None


def _on_the_cpu(plan: Plan) -> str:
    first, *others = plan.split.shares
    rest = [share for share in others if share.layers]
    if not is_head_cpu(first.device, plan.head) or not first.layers or not rest:
        return ""
    n_layers = format_count(first.layers, "layer")
    return f"{first.device} computes the first {n_layers} itself."


def _fits_alone(
    plan: Plan, model: ModelInfo, devices: Sequence[Device], protocol: str
) -> str:
    if all(worker.peer == plan.head for worker in used_workers(plan)):
        return ""
    for device in devices:
        if not device.id.startswith(f"{plan.head}/") or is_head_cpu(
            device.id, plan.head
        ):
            continue
        alone = make_split(model.n_layer, [device.id], [model.n_layer + 1])
        moved = msgspec.structs.replace(plan, split=alone, experts=())
        loads = plan_loads(model, moved, protocol=protocol)
        if not overcommitted(loads, [device]):
            return (
                f"{device.id} alone would hold the model, without a network between: "
                "--workers 0."
            )
    return ""


def _logs_everything(plan: Plan) -> str:
    if is_relayed(plan):
        return ""
    return (
        "Without relays only llama-server's verbose log tells which layer went where: "
        "it keeps every prompt and every answer, on the head's disk."
    )


def _drafts_cross(plan: Plan) -> str:
    method = plan.speculation
    far = method is not None and not method.device.startswith(f"{plan.head}/")
    if method is None or plan.server.draft != MTP_DRAFT or not far:
        return ""
    return (
        f"The MTP layers are on {method.device}, with the model's last ones: "
        "each drafted token takes round trips there, and may cost more than it gives. "
        "On a device of the head it costs none."
    )


def _breaks_off(plan: Plan) -> str:
    """llama-server does not tell the tokens of a chat that it drafts."""
    if plan.speculation is None:
        return ""
    return (
        "With a draft a chat's stream that breaks off is not gone on with: "
        "llama-server does not tell which tokens it made."
    )


def check_holes(plan: Plan, model: ModelInfo) -> None:
    """Refuse a plan under which a hole would be read as weights."""
    if (sparse := model.sparse) is None:
        return
    name = _sparse_name(model)
    if sparse.for_worker:
        raise PlanError(
            f"{name} has some layers of {_sparse_base(sparse.source)}, for a worker",
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
    if missing := _sparse_missing(plan, model, own, sparse):
        raise PlanError(
            f"{name} is sparse: it lacks {missing}, which {plan.head} is to hold",
            "Give that to workers (--split), or make a file that has it: dllm-tui "
            "models sparse.",
        )
    for worker, lacked in _sparse_served(plan, model, sparse):
        why = alone_by_plan(plan, worker) if plan.relay else "relays are turned off"
        if why:
            raise _sparse_alone(model, worker, lacked, why)


def check_stand_ins(
    plan: Plan, model: ModelInfo, pairings: Mapping[str, Pairing]
) -> None:
    """Refuse a sparse file where a worker could not have what is a hole in it."""
    if model.sparse is None:
        return
    for worker, lacked in _sparse_served(plan, model, model.sparse):
        pairing = pairings.get(worker.name)
        if pairing is None or not pairing.paired:
            why = pairing.why if pairing else "no relay stands beside it"
            raise _sparse_alone(model, worker, lacked, why)
        if not pairing.models:
            why = f"{worker.peer} has no file of {model.sparse.source}"
            raise _sparse_alone(model, worker, lacked, why)


def _sparse_alone(
    model: ModelInfo, worker: WorkerSpec, lacked: str, why: str
) -> PlanError:
    return PlanError(
        f"{_sparse_name(model)} is sparse: it lacks {lacked}, and {worker.name} cannot "
        f"have that from a file of its own: {why}",
        "Launch from the whole model, or give the worker that or a sparse file of it, "
        "and let pairs be used.",
    )


def _sparse_served(
    plan: Plan, model: ModelInfo, sparse: SparseModel
) -> Iterable[tuple[WorkerSpec, str]]:
    for worker in used_workers(plan):
        if missing := _sparse_missing(plan, model, set(worker.device_ids), sparse):
            yield worker, missing


def _sparse_missing(
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


def _sparse_name(model: ModelInfo) -> str:
    return _sparse_base(model.path)


def _sparse_base(path: str) -> str:
    return path.rpartition("/")[2]
