"""What a draft adds to the memory of devices, and where a model's own layers guess."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from msgspec.structs import replace

from backends.split.buffers import kv_bytes
from backends.split.layout import ranges
from backends.split.loads import plan_loads
from backends.state import (
    MTP_DRAFT,
    DeviceMemory,
    MemorySource,
    ServerSettings,
    Speculation,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from backends.split.loads import DeviceLoad
    from backends.state import ModelInfo, Plan

_TRUST = tuple(MemorySource)
"""Whose word a figure is, least first."""


def with_draft(memory: DeviceMemory, draft: Speculation | None) -> DeviceMemory:
    """The memory of a device and what the draft takes of the same.

    Where ``auto`` chooses that is whatever it may choose.
    """
    for one in [one for guess in ways_to_guess(draft) for one in guess.memory]:
        if one.device == memory.device:
            memory = replace(
                memory,
                model_bytes=memory.model_bytes + one.model_bytes,
                kv_bytes=memory.kv_bytes + one.kv_bytes,
                compute_bytes=memory.compute_bytes + one.compute_bytes,
                source=min(memory.source, one.source, key=_TRUST.index),
            )
    return memory


def loads_with_draft(
    loads: Iterable[DeviceLoad], draft: Speculation | None
) -> tuple[DeviceLoad, ...]:
    """The same of whole loads."""
    return tuple(load.as_told(with_draft(load.memory, draft)) for load in loads)


def own_layers(plan: Plan, model: ModelInfo, way: str) -> Speculation:
    """A model's own layers to guess with (MTP): where its last layers are.

    llama.cpp gives them a context of their own, which has a cache for them alone, in
    its usual type, and a compute buffer. Their weights are in the plan's loads.
    """
    last = model.n_layer - 1
    device = next(r.device for r in ranges(plan.split) if r.first <= last <= r.last)
    usual = ServerSettings(
        slots=plan.server.slots, flash_attention=plan.server.flash_attention
    )
    # Their caches are not in the header's figures, which are of the model alone.
    cache_bytes = max(kv_bytes(model, plan.ctx_size, usual)) * model.n_layer_nextn
    loads = {load.device: load for load in plan_loads(model, plan)}
    memory = DeviceMemory(
        device=device,
        kv_bytes=cache_bytes,
        compute_bytes=loads[device].compute_bytes,
    )
    return Speculation(
        type=way, device=device, n_layer=model.n_layer_nextn, memory=(memory,)
    )


def with_own_layers(plan: Plan, model: ModelInfo) -> Plan:
    """The plan, its model's own layers guessing where its split has them now."""
    if not has_own_layers(plan):
        return plan
    ways = (
        own_layers(plan, model, one.type) if one.draft == MTP_DRAFT else one
        for one in ways_to_guess(plan.speculation)
    )
    return replace(plan, speculation=guessing_with(tuple(ways)))


def has_own_layers(plan: Plan) -> bool:
    """Whether layers of the model itself guess, or may."""
    return any(one.draft == MTP_DRAFT for one in ways_to_guess(plan.speculation))


def with_own_weights(
    memory: Iterable[DeviceMemory], plan: Plan, model: ModelInfo
) -> tuple[DeviceMemory, ...]:
    """What the engine says of a plan, and these layers' weights.

    It is asked of a model that is not to guess, whose layers for that it leaves out.
    """
    if not has_own_layers(plan):
        return tuple(memory)
    first = model.n_layer - model.n_layer_nextn
    added: Counter[str] = Counter()
    for run in ranges(plan.split):
        own = model.layers[max(run.first, first) : run.last + 1]
        added[run.device] = sum(layer.bytes for layer in own)
    return tuple(
        replace(one, model_bytes=one.model_bytes + added[one.device]) for one in memory
    )


def ways_to_guess(draft: Speculation | None) -> tuple[Speculation, ...]:
    """All that ``auto`` may choose from, else the one; none without a draft."""
    return (draft, *draft.instead) if draft else ()


def guessing_with(ways: Sequence[Speculation]) -> Speculation:
    """The first of these, or instead one of the others."""
    first, *others = ways
    return replace(first, instead=tuple(others))
