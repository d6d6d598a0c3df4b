"""A split as llama.cpp's own arguments, and llama.cpp's rule for reading them back.

llama.cpp offloads from the end: with ``-ngl N`` the last N of ``n_layer + 1`` layers
(the output is one) go to the devices of ``--device``, in proportion to ``-ts``. Integer
``-ts`` counts that sum to N give exactly those counts
(``llama-model.cpp``, ``load_tensors``).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import TYPE_CHECKING

from backends.errors import PlanError
from backends.split.layout import is_head_cpu, ranges
from backends.state import LayerRange, Plan, Value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# llama_max_devices() of every build so far.
DEVICES_MAX = 16


class Placement(Value, frozen=True, kw_only=True):
    """The arguments that place layers, in the order llama-server needs them.

    ``--rpc`` comes before ``--device``: handlers run in the order of the arguments, and
    the RPC devices do not exist before theirs has run.
    """

    rpc_endpoints: tuple[str, ...]
    """``host:port`` per worker in use; the n-th is device ``RPCn``."""
    device_names: tuple[str, ...]
    """Devices in order of their layers, as ``--device`` wants them; empty: CPU only."""
    n_gpu_layers: int
    tensor_split: tuple[int, ...]
    """Whole layers per device name; sums to ``n_gpu_layers``."""
    device_ids: tuple[str, ...]
    """Our ids of the same devices, to read the log back."""


def compile_split(plan: Plan, ports: Mapping[str, int]) -> Placement:
    """The arguments that make llama-server do what the plan's split says.

    Devices without layers are left out, and so are workers without such a device.
    ``ports`` maps worker names to the head's loopback ports; one without is reached at
    its own endpoint.

    Raises:
        PlanError: the head's CPU is not first, a device belongs to no worker, or there
            are more devices than llama.cpp takes.
    """
    used = [share for share in plan.split.shares if share.layers]
    head_layers = _head_cpu_layers(plan)
    offloaded = [s for s in used if not is_head_cpu(s.device, plan.head)]
    if len(offloaded) > DEVICES_MAX:
        raise PlanError(
            f"The split uses {len(offloaded)} devices; llama.cpp takes {DEVICES_MAX}",
            "Give some devices no layers.",
        )
    names = _engine_names(plan, [share.device for share in offloaded])
    workers = [w for w in plan.workers if f"{w.name}/{w.device}" in names]
    return Placement(
        rpc_endpoints=tuple(
            f"127.0.0.1:{ports[w.name]}" if w.name in ports else w.endpoint
            for w in workers
        ),
        device_names=tuple(names.values()),
        n_gpu_layers=plan.split.n_layer + 1 - head_layers,
        tensor_split=tuple(share.layers for share in offloaded),
        device_ids=tuple(names),
    )


def _head_cpu_layers(plan: Plan) -> int:
    """Layers left on the head's CPU, which must be the first ones."""
    for index, share in enumerate(plan.split.shares):
        if is_head_cpu(share.device, plan.head):
            if index and share.layers:
                raise PlanError(
                    f"{share.device} is not first in the split",
                    "llama.cpp fills the head's CPU with the first layers: move it.",
                )
            return share.layers
    return 0


def _engine_names(plan: Plan, device_ids: Sequence[str]) -> dict[str, str]:
    """Our device ids to llama-server's names, in the order of the split.

    RPC devices are numbered in the order of ``--rpc``, which is that of the plan's
    workers, counting only those in use.
    """
    worker_ids = [f"{worker.name}/{worker.device}" for worker in plan.workers]
    used_workers = [device for device in worker_ids if device in device_ids]
    rpc = {device: f"RPC{index}" for index, device in enumerate(used_workers)}
    local = {
        device: device.removeprefix(f"{plan.head}/")
        for device in device_ids
        if device.startswith(f"{plan.head}/")
    }
    unknown = [d for d in device_ids if d not in rpc and d not in local]
    if unknown:
        raise PlanError(
            f"The split gives layers to {unknown[0]}, which no worker of the plan has",
            f"Known devices: {', '.join(worker_ids) or 'none'}.",
        )
    return {device: rpc.get(device) or local[device] for device in device_ids}


def _float32(value: float) -> float:
    """Round to the nearest float32, as a C ``float`` would hold it."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def split_points(tensor_split: Sequence[float]) -> list[float]:
    """llama.cpp's normalised cumulative split points, each step rounded to float32."""
    sums: list[float] = []
    total = 0.0
    for share in tensor_split:
        total = _float32(total + _float32(share))
        sums.append(total)
    return [_float32(value / total) for value in sums]


def engine_devices(
    n_layer: int, n_gpu_layers: int, tensor_split: Sequence[float]
) -> list[int]:
    """Device index of each layer and the output by llama.cpp's own rule; −1 is the CPU.

    Source: ``llama_model_base::load_tensors`` (``get_layer_buft_list``).
    """
    start = max(n_layer + 1 - n_gpu_layers, 0)
    active = min(n_gpu_layers, n_layer + 1) if tensor_split else 0
    points = split_points(tensor_split) if tensor_split else []
    return [
        bisect_right(points, _float32((layer - start) / active))
        if active and layer >= start
        else -1
        for layer in range(n_layer + 1)
    ]


def engine_ranges(plan: Plan, placement: Placement) -> tuple[LayerRange, ...]:
    """The split llama.cpp will make of a placement, in our device ids."""
    indices = engine_devices(
        plan.split.n_layer, placement.n_gpu_layers, placement.tensor_split
    )
    cpu = f"{plan.head}/CPU"
    return merge_layers([cpu if i < 0 else placement.device_ids[i] for i in indices])


def merge_layers(device_of_layer: Sequence[str]) -> tuple[LayerRange, ...]:
    """Neighbouring layers on one device as one range, in layer order."""
    merged: list[LayerRange] = []
    for layer, device in enumerate(device_of_layer):
        if merged and merged[-1].device == device:
            merged[-1] = LayerRange(device, merged[-1].first, layer)
        else:
            merged.append(LayerRange(device, layer, layer))
    return tuple(merged)


def check_exact(plan: Plan, placement: Placement) -> None:
    """Refuse a placement that llama.cpp would read differently from the split.

    Raises:
        PlanError: rounding or order would put a layer elsewhere.
    """
    if engine_ranges(plan, placement) != ranges(plan.split):
        raise PlanError(
            "llama.cpp would not follow this split exactly",
            "Move a boundary by one layer and try again.",
        )


def parse_counts(text: str) -> tuple[int, ...]:
    """``6,7`` as whole layers per device.

    Raises:
        PlanError: a part is not a whole number.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise PlanError(
            f"{text!r} is not a split",
            "Give whole layers per worker, such as 6,7 (the output counts as one).",
        ) from None
