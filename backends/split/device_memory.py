"""The memory of a split on each device, and a split balanced by memory."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TypeVar

import msgspec

from backends.errors import PlanError
from backends.server_settings import pipelines
from backends.split import buffers
from backends.split.buffers import PLAIN, kv_bytes
from backends.split.experts import moved_layers
from backends.split.layout import even_counts, is_head_cpu, make_split
from backends.state import (
    Device,
    DeviceMemory,
    LayerRange,
    MemorySource,
    ModelInfo,
    Plan,
    ServerSettings,
    Split,
    Value,
)

T = TypeVar("T")

CTX_STEP = buffers.CELL_PAD
"""Contexts are tried in such steps, in tokens."""
# Below this, whole MiB are too coarse to learn a proportion from.
RATIO_FROM_BYTES = 64 << 20
# The engine answers in whole MiB, rounded up or down.
ROUNDING_BYTES = 1 << 20


class DeviceLoad(Value, frozen=True, kw_only=True):
    """Bytes on one device; ``first`` > ``last`` when it holds no layer."""

    device: str
    first: int
    last: int
    n_layers: int
    weight_bytes: int
    kv_bytes: int
    compute_bytes: int
    source: MemorySource = MemorySource.PREDICTED

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.kv_bytes + self.compute_bytes

    @property
    def memory(self) -> DeviceMemory:
        return DeviceMemory(
            device=self.device,
            model_bytes=self.weight_bytes,
            kv_bytes=self.kv_bytes,
            compute_bytes=self.compute_bytes,
            source=self.source,
        )

    def as_told(self, told: DeviceMemory) -> DeviceLoad:
        return msgspec.structs.replace(
            self,
            weight_bytes=told.model_bytes,
            kv_bytes=told.kv_bytes,
            compute_bytes=told.compute_bytes,
            source=told.source,
        )


class EngineFigures(Value, frozen=True, kw_only=True):
    split: Split
    ctx_size: int
    memory: tuple[DeviceMemory, ...]


def layer_bytes(model: ModelInfo) -> tuple[int, ...]:
    return (*(layer.bytes for layer in model.layers), model.output_bytes)


def device_loads(
    model: ModelInfo,
    split: Split,
    ctx_size: int,
    *,
    head: str = "local",
    server: ServerSettings = PLAIN,
    told: Sequence[EngineFigures] = (),
    protocol: str = "",
    all_masks: bool = False,
    experts: Sequence[LayerRange] = (),
    extra_args: Sequence[str] = (),
) -> tuple[DeviceLoad, ...]:
    """Memory per share of a split, in its order, empty shares included.

    ``experts`` are those elsewhere than their layers, as in a plan: then llama.cpp does
    not pipeline, and keeps one copy of its inputs. So it is with some ``extra_args``.
    ``told`` are for the same ones.
    ``protocol`` is the RPC version of the engine; without one the default engine's.
    With ``all_masks`` every device is reckoned as if it held layers of each window: so
    what one needs does not depend on which layers it holds.
    ``told`` are the engine's answers for this model and ``server``, newest last. One
    for this very split and context is what counts: our own figures remain where they
    round to it. Else what the nearest one showed of our own arithmetic's error is
    carried over, and the result is still predicted.
    """

    def predict(split: Split, ctx_size: int) -> tuple[DeviceLoad, ...]:
        is_serial = experts or not pipelines(extra_args)
        n_copies = 1 if is_serial else _copies(split, head)
        sizes = (model, split, ctx_size, n_copies)
        loads = _predicted(*sizes, head, server, protocol, all_masks=all_masks)
        if not experts:
            return loads
        return _with_moved(loads, model, split, experts, ctx_size, server)

    predicted = predict(split, ctx_size)
    exact = [t for t in told if t.split == split and t.ctx_size == ctx_size]
    if exact:
        return _as_said(predicted, exact[-1].memory)
    nearest = _nearest(split, ctx_size, told)
    if nearest is None:
        return predicted
    then = predict(nearest.split, nearest.ctx_size)
    errors = _errors(then, nearest, head)
    return tuple(_corrected(load, errors.get(_role(load, head))) for load in predicted)


def plan_loads(
    model: ModelInfo,
    plan: Plan,
    told: Sequence[DeviceMemory] = (),
    *,
    protocol: str = "",
    all_masks: bool = False,
) -> tuple[DeviceLoad, ...]:
    """Memory per share of a plan; ``told`` is the engine's answer for it.

    ``protocol`` is the RPC version of the head's engine, as for ``device_loads``.
    """
    loads = device_loads(
        model,
        plan.split,
        plan.ctx_size,
        head=plan.head,
        server=plan.server,
        protocol=protocol,
        all_masks=all_masks,
        experts=plan.experts,
        extra_args=plan.extra_args,
    )
    return _as_said(loads, told)


def _with_moved(
    loads: Sequence[DeviceLoad],
    model: ModelInfo,
    split: Split,
    experts: Sequence[LayerRange],
    ctx_size: int,
    server: ServerSettings,
) -> tuple[DeviceLoad, ...]:
    """The loads of the split, with the experts where the plan has them.

    A device that has experts alone needs a device's compute buffers too.
    """
    own = buffers.device_compute_bytes(model, ctx_size, 1, server)
    more = dict.fromkeys((load.device for load in loads), 0)
    for layer, home, device in moved_layers(split, experts):
        n_bytes = model.layers[layer].groups.experts
        more[home] -= n_bytes
        more[device] += n_bytes
    return tuple(
        msgspec.structs.replace(
            load,
            weight_bytes=load.weight_bytes + more[load.device],
            compute_bytes=max(load.compute_bytes, own if more[load.device] > 0 else 0),
        )
        for load in loads
    )


def _predicted(
    model: ModelInfo,
    split: Split,
    ctx_size: int,
    n_copies: int,
    head: str,
    server: ServerSettings,
    protocol: str,
    *,
    all_masks: bool,
) -> tuple[DeviceLoad, ...]:
    weights, kv = layer_bytes(model), kv_bytes(model, ctx_size, server)
    own = buffers.device_compute_bytes(model, ctx_size, n_copies, server)
    hidden = buffers.hidden_bytes(model)
    masks = buffers.inputs_bytes(model.layers, ctx_size, n_copies, server)
    on_host, on_first = buffers.embedded_bytes(model, n_copies, protocol)
    loads: list[DeviceLoad] = []
    first = 0
    for share in split.shares:
        end = first + share.layers
        on_head = is_head_cpu(share.device, head)
        embedding = compute = 0
        if on_head:
            is_tied = model.tied_output and end > split.n_layer
            embedding = 0 if is_tied else model.embedding_bytes
            compute = on_host
            compute += buffers.host_compute_bytes(model, ctx_size, n_copies, server)
        if share.layers:
            # The head's CPU has all masks, and turns tokens into vectors.
            more = hidden + min(hidden, on_host)
            if not on_head:
                held = model.layers if all_masks else model.layers[first:end]
                more = buffers.inputs_bytes(held, ctx_size, n_copies, server) - masks
                is_last = end > model.n_layer
                later = buffers.later_bytes(model, n_copies, is_last=is_last)
                more += later if first else on_first
            compute = max(compute, own + more)
        loads.append(
            DeviceLoad(
                device=share.device,
                first=first,
                last=end - 1,
                n_layers=share.layers,
                weight_bytes=sum(weights[first:end]) + embedding,
                kv_bytes=sum(kv[first:end]),
                compute_bytes=compute,
            )
        )
        first = end
    return tuple(loads)


def _copies(split: Split, head: str) -> int:
    used = [share.device for share in split.shares if share.layers]
    devices = [device for device in used if not is_head_cpu(device, head)]
    return buffers.copies(len(devices), all_offloaded=len(devices) == len(used))


# --- carrying the engine's answers over ----------------------------------------


def _nearest(
    split: Split, ctx_size: int, told: Sequence[EngineFigures]
) -> EngineFigures | None:
    used = _used(split)
    similar = [t for t in reversed(told) if _used(t.split) == used]
    return min(similar, key=lambda t: abs(t.ctx_size - ctx_size), default=None)


def _used(split: Split) -> tuple[str, ...]:
    return tuple(share.device for share in split.shares if share.layers)


class _Error(Value, frozen=True, kw_only=True):
    weights: float
    kv: float
    compute_bytes: int


def _role(load: DeviceLoad, head: str) -> str:
    on_head = is_head_cpu(load.device, head)
    return f"{load.device} head" if on_head else load.device


def _as_said(
    loads: Sequence[DeviceLoad], told: Sequence[DeviceMemory]
) -> tuple[DeviceLoad, ...]:
    said = {memory.device: memory for memory in told}
    return tuple(
        _confirmed(load, said[load.device]) if load.device in said else load
        for load in loads
    )


def _confirmed(load: DeviceLoad, told: DeviceMemory) -> DeviceLoad:
    return msgspec.structs.replace(
        load,
        weight_bytes=_finer(load.weight_bytes, told.model_bytes),
        kv_bytes=_finer(load.kv_bytes, told.kv_bytes),
        compute_bytes=_finer(load.compute_bytes, told.compute_bytes),
        source=told.source,
    )


def _finer(ours: int, told: int) -> int:
    return ours if abs(ours - told) < ROUNDING_BYTES else told


def _errors(
    then: Sequence[DeviceLoad], nearest: EngineFigures, head: str
) -> Mapping[str, _Error]:
    said = {memory.device: memory for memory in nearest.memory}
    return {
        _role(load, head): _Error(
            weights=_ratio(said[load.device].model_bytes, load.weight_bytes),
            kv=_ratio(said[load.device].kv_bytes, load.kv_bytes),
            compute_bytes=_finer(load.compute_bytes, said[load.device].compute_bytes)
            - load.compute_bytes,
        )
        for load in then
        if load.device in said
    }


def _ratio(told: int, predicted: int) -> float:
    if min(told, predicted) < RATIO_FROM_BYTES:
        return 1.0
    return _finer(predicted, told) / predicted


def _corrected(load: DeviceLoad, error: _Error | None) -> DeviceLoad:
    if error is None:
        return load
    return msgspec.structs.replace(
        load,
        weight_bytes=round(load.weight_bytes * error.weights),
        kv_bytes=round(load.kv_bytes * error.kv),
        compute_bytes=max(load.compute_bytes + error.compute_bytes, 0),
    )


# --- memory that adds up ---------------------------------------------------------


def pool_of(device: Device) -> str:
    """Name of the physical memory a device draws on."""
    return device.memory_pool or device.id


def ours_by_pool(
    memory: Iterable[DeviceMemory],
    devices: Sequence[Device],
    *,
    head: str,
    arrived: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Bytes that a cluster of ours takes of what is free in each pool.

    ``memory`` are its measured (or else predicted) figures, ``devices`` those it names.
    The result is what ``overcommitted`` takes as ``ours``. With ``arrived`` (bytes by
    device) only what has still to come is counted. The head's CPU maps the file: the
    system can drop those weights at any time, so they count as free.
    """
    pools = {device.id: pool_of(device) for device in devices}
    arrived = arrived or {}
    taken: Counter[str] = Counter()
    for one in memory:
        if one.device in pools:
            mapped = one.model_bytes if is_head_cpu(one.device, head) else 0
            rest = one.total_bytes - mapped - arrived.get(one.device, 0)
            taken[pools[one.device]] += max(rest, 0)
    return dict(taken)


def room_bytes(device: Device, ours: Mapping[str, int]) -> int:
    """The room of a device for a plan that replaces ours.

    That is the user's budget, else what is free and what our own cluster gives back.
    """
    if device.budget_bytes is not None:
        return device.budget_bytes
    room = device.free_bytes + ours.get(pool_of(device), 0)
    return min(room, device.total_bytes) if device.total_bytes else room


def pool_rooms(devices: Sequence[Device], ours: Mapping[str, int]) -> dict[str, int]:
    """Room of each pool: the most any of its devices has, for each tells the same."""
    rooms: dict[str, int] = {}
    for device in devices:
        name, room = pool_of(device), room_bytes(device, ours)
        rooms[name] = max(rooms.get(name, 0), room)
    return rooms


def overcommitted(
    loads: Sequence[DeviceLoad],
    devices: Sequence[Device],
    ours: Mapping[str, int] | None = None,
    *,
    part: float = 1.0,
) -> frozenset[str]:
    """Ids of devices whose load exceeds what they, or the memory they share, have.

    Or that ``part`` of it. ``ours`` is what the running cluster holds by pool, which a
    launch gives back first.
    Devices not listed are taken to fit: nothing is known of them.
    """
    ours = ours or {}
    known = {device.id: device for device in devices}
    held = [
        (load.device, known[load.device], load.total_bytes)
        for load in loads
        if load.device in known and load.total_bytes
    ]
    wanted: Counter[str] = Counter()
    for _, device, n_bytes in held:
        wanted[pool_of(device)] += n_bytes
    rooms = pool_rooms([one for one in devices if pool_of(one) in wanted], ours)
    return frozenset(
        name
        for name, device, n_bytes in held
        if n_bytes > part * room_bytes(device, ours)
        or wanted[pool_of(device)] > part * rooms[pool_of(device)]
    )


def balance(
    model: ModelInfo,
    devices: Sequence[Device],
    ctx_size: int,
    *,
    head_cpu: str | None,
    ours: Mapping[str, int] | None = None,
    server: ServerSettings = PLAIN,
) -> Split:
    """Give each device layers in proportion to the memory it can offer.

    Devices that share one memory share its room. The head's CPU, when named, leads the
    split with no layers: it is for the user to fill. Bytes (weights and KV), not layer
    counts, follow the proportion.
    """
    workers = [device for device in devices if device.id != head_cpu]
    lead = [head_cpu] if head_cpu else []
    if not workers:
        return make_split(model.n_layer, lead, [model.n_layer + 1])
    sizes = sizes_by_layer(model, ctx_size, server)
    shares = proportional(sizes, shared_rooms(workers, ours or {}))
    ids = [*lead, *(device.id for device in workers)]
    return make_split(model.n_layer, ids, [*(0 for _ in lead), *shares])


def shared_rooms(devices: Sequence[Device], ours: Mapping[str, int]) -> list[int]:
    rooms = pool_rooms(devices, ours)
    asked: Counter[str] = Counter()
    for device in devices:
        asked[pool_of(device)] += room_bytes(device, ours)
    return [
        room_bytes(device, ours)
        * rooms[pool_of(device)]
        // (asked[pool_of(device)] or 1)
        for device in devices
    ]


def sizes_by_layer(
    model: ModelInfo, ctx_size: int, server: ServerSettings
) -> list[int]:
    pairs = zip(layer_bytes(model), kv_bytes(model, ctx_size, server), strict=True)
    return [weight + kv for weight, kv in pairs]


def proportional(sizes: Sequence[int], room: Sequence[int]) -> list[int]:
    """Counts whose cumulative bytes come nearest to the cumulative room."""
    total_room = sum(room)
    if not total_room:
        return list(even_counts(len(sizes) - 1, len(room)))
    before = [0, *accumulate(sizes)]
    total, edges, reached = before[-1] or 1, [0], 0.0
    for part in room[:-1]:
        reached += part / total_room * total
        edges.append(_nearest_edge(before, reached, edges[-1]))
    edges.append(len(sizes))
    return [high - low for low, high in pairwise(edges)]


def _nearest_edge(before: Sequence[int], target: float, start: int) -> int:
    above = bisect_left(before, target, lo=start)
    if above == start:
        return start
    below = bisect_left(before, before[above - 1], lo=start)
    if above == len(before) or target - before[below] <= before[above] - target:
        return below
    return above


def longest(sizes: Sequence[int], made: Callable[[int], T]) -> tuple[int, T] | None:
    """The number of the largest context that can be, and what is made of it.

    None without any. ``made`` raises a ``PlanError`` for a context, and for all larger
    ones. The largest is tried first: most often it can be.
    """
    found, low, high = None, -1, len(sizes)
    middle = high - 1
    while high - low > 1:
        try:
            found = middle, made(sizes[middle])
            low = middle
        except PlanError:
            high = middle
        middle = (low + high) // 2
    return found
