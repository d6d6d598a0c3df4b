"""The layers of each device, if a person did not say.

Of a sparse file the head computes what is there at either end, as far as its memory
goes: the workers may have no more than the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import pairwise

from msgspec.structs import replace

from backends.errors import PlanError
from backends.split.buffers import PLAIN, copies, device_compute_bytes, later_bytes
from backends.split.device_memory import (
    balance,
    device_loads,
    overcommitted,
    pool_of,
    proportional,
    shared_rooms,
    sizes_by_layer,
)
from backends.split.layout import counts, is_head_cpu, make_split
from backends.state import Device, LayerRange, ModelInfo, ServerSettings, Split


def allocate_layers(
    model: ModelInfo,
    devices: Sequence[Device],
    ctx_size: int,
    *,
    head: str,
    server: ServerSettings = PLAIN,
    experts: Sequence[LayerRange] = (),
) -> Split:
    """A split over these devices, in this order.

    By memory, in proportion. The head's CPU is the last resort. It computes the first
    layers only if the others together cannot hold all, and no more than it must.
    Where nothing fits, the split is the proportional one all the same. ``experts`` are
    those whose device is given.
    """
    if experts:
        model, devices = _with_experts_apart(model, devices, experts)
    if ends := _ends(model, devices, head):
        return _around(ends, model, devices, ctx_size, head, server)
    others = [d for d in devices if not is_head_cpu(d.id, head)]
    lead = [device.id for device in devices if is_head_cpu(device.id, head)]
    ids = [*lead, *(device.id for device in others)]
    if not others:
        return make_split(model.n_layer, ids, [model.n_layer + 1])
    even = balance(model, others, ctx_size, head_cpu=None, server=server)
    split = make_split(model.n_layer, ids, [*(0 for _ in lead), *counts(even)])

    def fits(split: Split) -> bool:
        loads = device_loads(model, split, ctx_size, head=head, server=server)
        return not overcommitted(loads, devices)

    if fits(split):
        return split
    for kept in range(model.n_layer + 1 if lead else 1):
        filled = _filled(model, others, ctx_size, kept, server)
        if filled is not None:
            tight = make_split(model.n_layer, ids, [*(kept for _ in lead), *filled])
            return tight if fits(tight) else split
    return split


def _with_experts_apart(
    model: ModelInfo, devices: Sequence[Device], experts: Sequence[LayerRange]
) -> tuple[ModelInfo, Sequence[Device]]:
    """Layers without experts that have their place, and devices without its memory."""
    taken, pools, layers = Counter[str](), Counter[str](), list(model.layers)
    for run in experts:
        for layer in model.layers[run.first : run.last + 1]:
            own = layer.groups.experts
            taken[run.device] += own
            groups = replace(layer.groups, experts=0)
            rest = replace(layer, bytes=layer.bytes - own, groups=groups)
            layers[layer.index] = rest
    for device in devices:
        pools[pool_of(device)] += taken[device.id]
    left = [
        replace(
            device,
            free_bytes=max(device.free_bytes - pools[pool_of(device)], 0),
            budget_bytes=None
            if device.budget_bytes is None
            else max(device.budget_bytes - taken[device.id], 0),
        )
        for device in devices
    ]
    return replace(model, layers=tuple(layers)), left


def _ends(
    model: ModelInfo, devices: Sequence[Device], head: str
) -> tuple[int, int] | None:
    """The numbers of first and last layers of a sparse file that the head can have.

    None where there is nobody else to take what is between, or nothing is.
    """
    if model.sparse is None or all(_is_of(head, device) for device in devices):
        return None
    output = model.sparse.embedding if model.tied_output else model.sparse.output
    there = [*(index in model.sparse.layers for index in range(model.n_layer)), output]
    if all(there):
        return None
    has_cpu = any(is_head_cpu(device.id, head) for device in devices)
    has_others = any(_is_accelerator_of(head, device) for device in devices)
    return (
        there.index(False) if has_cpu and model.sparse.embedding else 0,
        there[::-1].index(False) if has_others else 0,
    )


def _around(
    ends: tuple[int, int],
    model: ModelInfo,
    devices: Sequence[Device],
    ctx_size: int,
    head: str,
    server: ServerSettings,
) -> Split:
    """Give the layers between to the workers; more if the head is too small.

    To them by memory in proportion too, and where that does not fit, one after another.
    """
    sizes = sizes_by_layer(model, ctx_size, server)
    groups = (
        [device for device in devices if is_head_cpu(device.id, head)],
        [device for device in devices if not _is_of(head, device)],
        [device for device in devices if _is_accelerator_of(head, device)],
    )
    ids = [device.id for group in groups for device in group]

    def shared() -> Iterator[Split]:
        for spared in range(max(ends) + 1):
            first, last = (max(count - spared, 0) for count in ends)
            after = len(sizes) - last
            parts = sizes[:first], sizes[first:after], sizes[after:]
            lead, even, rest = map(_shared_among, groups, parts)
            yield make_split(model.n_layer, ids, [*lead, *even, *rest])
            filled = _filled(model, groups[1], ctx_size, first, server, after)
            if filled is not None:
                yield make_split(model.n_layer, ids, [*lead, *filled, *rest])

    def fits(split: Split) -> bool:
        loads = device_loads(model, split, ctx_size, head=head, server=server)
        return not overcommitted(loads, devices)

    return next(filter(fits, shared()), next(shared()))


def _shared_among(devices: Sequence[Device], sizes: Sequence[int]) -> list[int]:
    if not devices or not sizes:
        return [0 for _ in devices]
    return proportional(sizes, shared_rooms(devices, {}))


def _is_of(head: str, device: Device) -> bool:
    return device.id.startswith(f"{head}/")


def _is_accelerator_of(head: str, device: Device) -> bool:
    return _is_of(head, device) and not is_head_cpu(device.id, head)


def _filled(
    model: ModelInfo,
    devices: Sequence[Device],
    ctx_size: int,
    first: int,
    server: ServerSettings,
    after: int | None = None,
) -> list[int] | None:
    """Layers from ``first`` on, each device filled in turn; None if some are left.

    ``after``: the first one that is not theirs; None: all that follow are.
    """
    sizes = sizes_by_layer(model, ctx_size, server)[:after]
    n_copies = copies(len(devices), all_offloaded=not first)
    compute = device_compute_bytes(model, ctx_size, n_copies, server)
    taken: dict[str, int] = {}
    edges = [first]
    for device in devices:
        pool = pool_of(device)
        room = device.usable_bytes - taken.get(pool, 0)
        needed = compute + (later_bytes(model, n_copies) if edges[-1] else 0)
        edge, used = _fill(sizes, edges[-1], room - needed)
        taken[pool] = taken.get(pool, 0) + used + needed
        edges.append(edge)
    complete = edges[-1] == len(sizes)
    return [high - low for low, high in pairwise(edges)] if complete else None


def _fill(sizes: Sequence[int], start: int, room: int) -> tuple[int, int]:
    edge, used = start, 0
    while edge < len(sizes) and used + sizes[edge] <= room:
        used += sizes[edge]
        edge += 1
    return edge, used


def by_order(
    model: ModelInfo, ids: Sequence[str], wanted: Sequence[int], *, head: str
) -> Split:
    """Layers in the order of the devices; the head's CPU may be left out."""
    meant = [device for device in ids if not is_head_cpu(device, head)] or ids
    if len(wanted) == len(ids):
        return make_split(model.n_layer, ids, wanted)
    make_split(model.n_layer, meant, wanted)
    return make_split(model.n_layer, ids, [0, *wanted])


def by_name(model: ModelInfo, ids: Sequence[str], wanted: Mapping[str, int]) -> Split:
    unknown = [name for name in wanted if name not in ids]
    if unknown:
        by_case = {device.casefold(): device for device in ids}
        like = get_close_matches(unknown[0].casefold(), by_case, n=1, cutoff=0.76)
        raise PlanError(
            f"The plan has no device {unknown[0]}",
            (f"Did you mean {by_case[like[0]]}? " if like else "")
            + f"It has {', '.join(ids)}.",
        )
    typed = ",".join(f"{name}={count}" for name, count in wanted.items())
    numbers = [wanted.get(name, 0) for name in ids]
    return make_split(model.n_layer, ids, numbers, typed=typed)
