"""The place and the memory of a draft: pure arithmetic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from backends.split.buffers import kv_bytes
from backends.split.device_memory import DeviceLoad, overcommitted, plan_loads
from backends.split.layout import is_head_cpu, make_split, ranges
from backends.state import (
    MTP_DRAFT,
    Device,
    DeviceMemory,
    MemorySource,
    ModelInfo,
    Plan,
    ServerSettings,
    Speculation,
)

_TRUST = tuple(MemorySource)
"""Sources of a figure, the least certain first."""


def with_draft(memory: DeviceMemory, draft: Speculation | None) -> DeviceMemory:
    """The memory of a device with the draft's part; with ``auto``, of all methods."""
    for one in [
        one for each in (draft.methods if draft else ()) for one in each.memory
    ]:
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
    return tuple(load.as_told(with_draft(load.memory, draft)) for load in loads)


def one_of(methods: Sequence[Speculation]) -> Speculation:
    first, *others = methods
    return replace(first, instead=tuple(others))


# --- a draft model --------------------------------------------------------------


def whole_on(draft: ModelInfo, device: str, plan: Plan) -> Plan:
    cpu = f"{plan.head}/CPU"
    all_layers = draft.n_layer + 1
    on_cpu = device == cpu
    split = make_split(
        draft.n_layer,
        [cpu] if on_cpu else [cpu, device],
        [all_layers] if on_cpu else [0, all_layers],
    )
    return Plan(
        model=draft.path,
        head=plan.head,
        split=split,
        ctx_size=plan.ctx_size,
        server=_usual(plan),
        engine=plan.engine,
    )


def best_place(
    draft: ModelInfo,
    plan: Plan,
    model: ModelInfo,
    devices: Sequence[Device],
    protocol: str = "",
) -> str:
    """The head's first GPU with room for all of a draft model, else its CPU."""
    loads = plan_loads(model, plan, protocol=protocol)
    own = [device for device in devices if device.id.startswith(f"{plan.head}/")]
    for device in own:
        if is_head_cpu(device.id, plan.head):
            continue
        alone = whole_on(draft, device.id, plan)
        added = plan_loads(draft, alone, protocol=protocol)
        if device.id not in overcommitted((*loads, *added), own):
            return device.id
    return f"{plan.head}/CPU"


def _usual(plan: Plan) -> ServerSettings:
    return ServerSettings(
        slots=plan.server.slots, flash_attention=plan.server.flash_attention
    )


# --- layers of the model itself (MTP) -------------------------------------------


def own_layers(
    plan: Plan, model: ModelInfo, method: str, protocol: str = ""
) -> Speculation:
    """The model's own MTP layers, on the device of its last layer.

    llama.cpp gives them a context with a cache and a compute buffer of their own. Their
    weights are in the plan's loads.
    """
    last = model.n_layer - 1
    device = next(r.device for r in ranges(plan.split) if r.first <= last <= r.last)
    # The header's figures are of the model alone: they leave these caches out.
    cache_bytes = max(kv_bytes(model, plan.ctx_size, _usual(plan)))
    loads = {load.device: load for load in plan_loads(model, plan, protocol=protocol)}
    memory = DeviceMemory(
        device=device,
        kv_bytes=cache_bytes * model.n_layer_nextn,
        compute_bytes=loads[device].compute_bytes,
    )
    return Speculation(
        type=method, device=device, n_layer=model.n_layer_nextn, memory=(memory,)
    )


def with_own_layers(plan: Plan, model: ModelInfo, protocol: str = "") -> Plan:
    if plan.speculation is None or not has_own_layers(plan):
        return plan
    methods = (
        own_layers(plan, model, one.type, protocol) if one.draft == MTP_DRAFT else one
        for one in plan.speculation.methods
    )
    return replace(plan, speculation=one_of(tuple(methods)))


def has_own_layers(plan: Plan) -> bool:
    methods = plan.speculation.methods if plan.speculation else ()
    return any(one.draft == MTP_DRAFT for one in methods)


def with_own_weights(
    memory: Iterable[DeviceMemory], plan: Plan, model: ModelInfo
) -> tuple[DeviceMemory, ...]:
    """The engine's figures, with the weights of MTP layers.

    The engine is asked about a model without a draft, and leaves these layers out.
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
