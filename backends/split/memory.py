"""What a split needs in each device's memory, and a split balanced by memory."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from backends.split.layout import even_counts, make_split
from backends.state import Device, Layer, ModelInfo, Split, Value

if TYPE_CHECKING:
    from collections.abc import Sequence

# llama-server's default physical batch (-ub): tokens of one prompt pass.
UBATCH_TOKENS = 512
F32_BYTES = 4
CELL_PAD = 256
# Activations llama.cpp keeps per token of a batch, as multiples of n_embd. A rough
# ceiling from the compute buffers logged for dense models; shown as predicted.
ACTIVATION_WIDTHS = 12


class DeviceLoad(Value, frozen=True, kw_only=True):
    """Predicted bytes on one device; ``first`` > ``last`` when it holds no layer."""

    device: str
    first: int
    last: int
    n_layers: int
    weight_bytes: int
    kv_bytes: int
    compute_bytes: int

    @property
    def total_bytes(self) -> int:
        """Weights, KV cache and compute buffer."""
        return self.weight_bytes + self.kv_bytes + self.compute_bytes


def layer_bytes(model: ModelInfo) -> tuple[int, ...]:
    """Weight bytes of each layer, the output last."""
    return (*(layer.bytes for layer in model.layers), model.output_bytes)


def kv_bytes(model: ModelInfo, ctx_size: int) -> tuple[int, ...]:
    """KV cache bytes of each layer at a context, 0 for the output."""
    return (
        *(layer.kv_bytes_per_token * _cells(layer, ctx_size) for layer in model.layers),
        0,
    )


def _cells(layer: Layer, ctx_size: int) -> int:
    """Tokens whose K and V a layer keeps, for one sequence.

    A sliding-window layer keeps its window and one batch, in whole pads
    (``llama_kv_cache_iswa``).
    """
    if not layer.kv_window:
        return ctx_size
    wanted = min(ctx_size, layer.kv_window + UBATCH_TOKENS)
    return -(-wanted // CELL_PAD) * CELL_PAD


def compute_bytes(model: ModelInfo, *, has_output: bool) -> int:
    """Predicted compute buffer: activations of one batch, plus logits at the output."""
    width = ACTIVATION_WIDTHS * model.n_embd + (model.n_vocab if has_output else 0)
    return UBATCH_TOKENS * F32_BYTES * width


def device_loads(
    model: ModelInfo, split: Split, ctx_size: int
) -> tuple[DeviceLoad, ...]:
    """Predicted memory per share of a split, in its order, empty shares included."""
    weights, kv = layer_bytes(model), kv_bytes(model, ctx_size)
    loads: list[DeviceLoad] = []
    first = 0
    for share in split.shares:
        end = first + share.layers
        compute = compute_bytes(model, has_output=end == split.n_layer + 1)
        loads.append(
            DeviceLoad(
                device=share.device,
                first=first,
                last=end - 1,
                n_layers=share.layers,
                weight_bytes=sum(weights[first:end]),
                kv_bytes=sum(kv[first:end]),
                compute_bytes=compute if share.layers else 0,
            )
        )
        first = end
    return tuple(loads)


def overcommitted(
    loads: Sequence[DeviceLoad], devices: Sequence[Device]
) -> frozenset[str]:
    """Ids of devices whose load exceeds what they, or the memory they share, have.

    Devices not listed are taken to fit: nothing is known of them.
    """
    known = {device.id: device for device in devices}
    pools: dict[str, int] = defaultdict(int)
    for load in loads:
        if load.device in known:
            pools[_pool(known[load.device])] += load.total_bytes
    return frozenset(
        load.device
        for load in loads
        if load.n_layers
        and load.device in known
        and (
            load.total_bytes > known[load.device].usable_bytes
            or pools[_pool(known[load.device])] > _pool_bytes(known[load.device], known)
        )
    )


def _pool(device: Device) -> str:
    return device.memory_pool or device.id


def _pool_bytes(device: Device, known: dict[str, Device]) -> int:
    """The most any device of the pool reports: each reports the same memory."""
    return max(d.free_bytes for d in known.values() if _pool(d) == _pool(device))


def balance(
    model: ModelInfo, devices: Sequence[Device], ctx_size: int, *, head_cpu: str | None
) -> Split:
    """Give each device layers in proportion to the memory it can offer.

    The head's CPU, when named, leads the split with no layers: it is for the user to
    fill. Bytes (weights and KV), not layer counts, follow the proportion.
    """
    workers = [device for device in devices if device.id != head_cpu]
    lead = [head_cpu] if head_cpu else []
    if not workers:
        return make_split(model.n_layer, lead, [model.n_layer + 1])
    shares = _proportional(model, [d.usable_bytes for d in workers], ctx_size)
    ids = [*lead, *(device.id for device in workers)]
    return make_split(model.n_layer, ids, [*(0 for _ in lead), *shares])


def _proportional(model: ModelInfo, room: Sequence[int], ctx_size: int) -> list[int]:
    """Counts whose cumulative bytes come nearest to the cumulative room."""
    total_room = sum(room)
    if not total_room:
        return list(even_counts(model.n_layer, len(room)))
    sizes = [
        weight + kv
        for weight, kv in zip(
            layer_bytes(model), kv_bytes(model, ctx_size), strict=True
        )
    ]
    total, edges, reached = sum(sizes) or 1, [0], 0.0
    for part in room[:-1]:
        reached += part / total_room * total
        edges.append(_nearest_edge(sizes, reached, edges[-1]))
    edges.append(len(sizes))
    return [high - low for low, high in pairwise(edges)]


def _nearest_edge(sizes: Sequence[int], target: float, start: int) -> int:
    """The edge at or after ``start`` whose bytes before it come nearest to a target."""
    before = sum(sizes[:start])
    best, best_gap = start, abs(before - target)
    for edge in range(start + 1, len(sizes) + 1):
        before += sizes[edge - 1]
        if abs(before - target) < best_gap:
            best, best_gap = edge, abs(before - target)
    return best
