"""Remarks on a plan before it is launched: one sentence each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from backends.split.buffers import F32_BYTES
from backends.split.flags import is_relayed, used_workers
from backends.split.layout import is_head_cpu, make_split
from backends.split.loads import overcommitted, plan_loads
from backends.state import MTP_DRAFT, Device, ModelInfo, Peer, Plan, WorkerSpec
from backends.units import format_bytes, format_count, format_ms, format_speed


def remarks(
    plan: Plan,
    model: ModelInfo,
    devices: Sequence[Device],
    machines: Mapping[str, Peer],
) -> tuple[str, ...]:
    """Sentences on what makes this plan slow, or another one better."""
    found = (
        model.caveat,
        _head_idle(plan, model, machines),
        _on_the_cpu(plan),
        _fits_alone(plan, model, devices),
        _logs_everything(plan),
        _breaks_off(plan),
        _drafts_cross(plan),
    )
    return tuple(sentence for sentence in found if sentence)


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


def _fits_alone(plan: Plan, model: ModelInfo, devices: Sequence[Device]) -> str:
    if all(worker.peer == plan.head for worker in used_workers(plan)):
        return ""
    for device in devices:
        if not device.id.startswith(f"{plan.head}/") or is_head_cpu(
            device.id, plan.head
        ):
            continue
        alone = make_split(model.n_layer, [device.id], [model.n_layer + 1])
        loads = plan_loads(
            model, msgspec.structs.replace(plan, split=alone, experts=())
        )
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
