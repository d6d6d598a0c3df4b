"""Experts of some layers on another device than the rest of the layer (``-ot``).

A plan's split gives whole layers. Its ``experts`` are exceptions: ranges of layers, and
the device that holds their experts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from backends.errors import PlanError
from backends.server_settings import moving
from backends.split.layout import devices, format_range, is_head_cpu, ranges, runs_of
from backends.state import LayerRange, ModelInfo, Plan, Split
from backends.units import format_bytes, format_count

CPU_BUFFER = "CPU"


def tensor_pattern(run: LayerRange) -> str:
    """llama.cpp's regular expression for the experts of a range of layers."""
    layers = "|".join(map(str, range(run.first, run.last + 1)))
    return rf"^blk\.({layers})\.ffn_(gate|up|down|gate_up)_(ch)?exps\."


def override_tensor(
    runs: Iterable[LayerRange], buffer_of: Mapping[str, str]
) -> tuple[str, ...]:
    """The arguments for them; ``buffer_of`` is llama.cpp's buffer of each device."""
    moved = [f"{tensor_pattern(run)}={buffer_of[run.device]}" for run in runs]
    return ("-ot", ",".join(moved)) if moved else ()


def owners(split: Split) -> tuple[str, ...]:
    """The device of each layer, the output last."""
    return tuple(
        run.device for run in ranges(split) for _ in range(run.first, run.last + 1)
    )


def moved_layers(
    split: Split, experts: Sequence[LayerRange]
) -> Iterator[tuple[int, str, str]]:
    """Layers whose experts are elsewhere: the number, its device, and theirs."""
    if not experts:
        return
    holders = owners(split)
    for run in experts:
        for layer in range(run.first, run.last + 1):
            if holders[layer] != run.device:
                yield layer, holders[layer], run.device


def as_runs(split: Split, experts: Sequence[LayerRange]) -> tuple[LayerRange, ...]:
    """The same, without layers that are on that device themselves."""
    moved: dict[str, list[int]] = {}
    for layer, _, device in moved_layers(split, experts):
        moved.setdefault(device, []).append(layer)
    runs = (runs_of(device, sorted(layers)) for device, layers in moved.items())
    return tuple(run for of_device in runs for run in of_device)


def with_given(plan: Plan, layers: Iterable[int], device: str) -> Plan:
    """The plan with the experts of some layers on a device, be it their own."""
    holders = {
        layer: run.device
        for run in plan.experts
        for layer in range(run.first, run.last + 1)
    }
    holders |= dict.fromkeys(layers, device)
    runs = [LayerRange(device, layer, layer) for layer, device in holders.items()]
    return replace(plan, experts=as_runs(plan.split, runs))


def with_split(plan: Plan, split: Split) -> Plan:
    """The plan with other layers; experts on a device that is left without go home."""
    return with_kept(replace(plan, split=split), plan)


def with_kept(plan: Plan, before: Plan) -> Plan:
    """A plan with the moved experts of the one before, as far as it has the devices."""
    able = [run for run in before.experts if _holds(plan, run.device)]
    return replace(plan, experts=as_runs(plan.split, able))


def dropped_text(before: Plan, after: Plan) -> str:
    """A sentence if experts are with their layers again for want of their device."""
    there = {run.device for run in after.experts}
    gone = [
        run
        for run in before.experts
        if run.device not in there and not _holds(after, run.device)
    ]
    if not gone:
        return ""
    text = f"Experts of {places_text(gone)} are with their layers again"
    return f"{text}: no layer is there now"


def _holds(plan: Plan, device: str) -> bool:
    # llama.cpp gives tensors to what has a layer, and to the head's CPU.
    there = is_head_cpu(device, plan.head) and device in devices(plan.split)
    return there or any(run.device == device for run in ranges(plan.split))


def check_experts(plan: Plan, model: ModelInfo) -> None:
    """Refuse exceptions that llama.cpp cannot follow, or that mean no tensor."""
    if not plan.experts:
        return
    if moved := moving(plan.extra_args):
        raise PlanError(
            f"{moved[0]} says where tensors go, and so do the plan's experts",
            "Leave one of them out.",
        )
    holding = {run.device for run in ranges(plan.split)}
    known = devices(plan.split)
    seen: set[int] = set()
    for run in plan.experts:
        layers = range(run.first, run.last + 1)
        text = format_range(run, model.n_layer)
        if not layers or not 0 <= run.first <= run.last < model.n_layer:
            raise PlanError(
                f"The plan moves experts of layers {run.first} to {run.last}, and the "
                f"model has {format_count(model.n_layer, 'layer')}"
            )
        if not all(model.layers[layer].groups.experts for layer in layers):
            raise PlanError(f"Not all of the layers {text} have experts to move")
        if not seen.isdisjoint(layers):
            raise PlanError(f"The plan moves experts of the layers {text} twice")
        if run.device not in holding and not is_head_cpu(run.device, plan.head):
            raise PlanError(
                f"{run.device} has no layers, so that llama.cpp gives it no experts",
                "Give it a layer, or move them to another device.",
            )
        if run.device not in known:
            raise PlanError(
                f"{run.device} is left out of the plan, and is to hold experts",
                "Take it into the plan, or move them to another device.",
            )
        seen.update(layers)


def parse_experts(texts: Iterable[str]) -> tuple[LayerRange, ...]:
    """``local/CPU=0-11`` and ``mini/CUDA0=12``, as ``--experts`` takes them."""
    return tuple(map(_parsed, texts))


def _parsed(text: str) -> LayerRange:
    found = re.fullmatch(r"\s*([^\s=]+)\s*=\s*([0-9]{1,6})(?:-([0-9]{1,6}))?\s*", text)
    if found is None or int(found[2]) > int(found[3] or found[2]):
        raise PlanError(
            f"{text!r} does not say where experts are",
            "Give the device and its layers, such as local/CPU=0-11.",
        )
    return LayerRange(found[1], int(found[2]), int(found[3] or found[2]))


def experts_words(runs: Iterable[LayerRange]) -> Iterator[str]:
    """The same texts, for a command."""
    for run in runs:
        yield f"{run.device}={run.first}-{run.last}"


def experts_text(runs: Sequence[LayerRange]) -> str:
    """``experts of 0–11 on local/CPU``, for people; empty if none are elsewhere."""
    return f"experts of {places_text(runs)}" if runs else ""


def places_text(runs: Iterable[LayerRange]) -> str:
    """``0–11 on local/CPU``, for people; empty if no experts are elsewhere."""
    return ", ".join(f"{format_range(r, r.last + 1)} on {r.device}" for r in runs)


# --- what arrived --------------------------------------------------------------------


def misplaced(
    plan: Plan, model: ModelInfo, holders: Sequence[Mapping[str, int]]
) -> tuple[str, ...]:
    """A sentence for each worker's device that got other experts than planned.

    ``holders`` are the bytes that each of them got of each layer.
    """
    return tuple(
        f"{device} got {format_bytes(got)} of layer {layer}, planned "
        f"{format_bytes(wanted)} {what} its experts"
        for layer, home, to in moved_layers(plan.split, plan.experts)
        for device, wanted, what in _wanted(model, layer, home, to)
        if not device.startswith(f"{plan.head}/")
        and (got := holders[layer].get(device, 0)) != wanted
    )


def _wanted(
    model: ModelInfo, layer: int, home: str, to: str
) -> Iterator[tuple[str, int, str]]:
    whole, experts = model.layers[layer].bytes, model.layers[layer].groups.experts
    yield home, whole - experts, "without"
    yield to, experts, "of"
