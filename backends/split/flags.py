"""A split as llama.cpp's own arguments, and llama.cpp's rule for reading them back.

llama.cpp offloads from the end. ``-ngl N`` puts the last N of ``n_layer + 1`` layers
on the devices of ``--device``, by ``-ts``; the output is one. Integer ``-ts`` counts
that sum to N give exactly those counts (``llama-model.cpp``, ``load_tensors``).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Mapping, Sequence

from backends.errors import PlanError
from backends.split.experts import CPU_BUFFER, override_tensor
from backends.split.layout import is_head_cpu, ranges
from backends.state import LayerRange, Plan, Share, Value, WorkerSpec

DEVICES_MAX = 15
"""llama_max_devices() is 16, and every build so far refuses ``-ts`` with so many."""


class PlacedDevice(Value, frozen=True, kw_only=True):
    """One device of a split as llama-server knows it."""

    id: str
    """Ours, as the split names it."""
    name: str
    """llama-server's: ``RPC1``, ``CUDA0``."""
    layers: int
    endpoint: str = ""
    """``host:port`` of its rpc-server; empty for a device of the head's own."""
    index: int = 0
    """Its number within that rpc-server."""

    @property
    def buffer(self) -> str:
        return f"RPC{self.index}[{self.endpoint}]" if self.endpoint else self.name

    def owns(self, buffer: str) -> bool:
        """True if a buffer of that name is its; Metal also has ``MTL0_Mapped``."""
        return buffer == self.buffer or buffer.startswith(f"{self.buffer}_")


class Placement(Value, frozen=True, kw_only=True):
    """The arguments that place layers, in the order llama-server needs them.

    ``--rpc`` comes before ``--device``: handlers run in the order of the arguments, and
    the RPC devices do not exist before theirs has run.
    """

    rpc_endpoints: tuple[str, ...]
    """``host:port`` per worker in use."""
    devices: tuple[PlacedDevice, ...]
    """In order of their layers, as ``--device`` wants them; empty: CPU only."""
    n_gpu_layers: int
    overrides: tuple[str, ...] = ()
    """The arguments for experts on other devices than their layers."""

    @property
    def device_names(self) -> tuple[str, ...]:
        return tuple(device.name for device in self.devices)

    @property
    def device_ids(self) -> tuple[str, ...]:
        return tuple(device.id for device in self.devices)

    @property
    def tensor_split(self) -> tuple[int, ...]:
        """Whole layers per device; they sum to ``n_gpu_layers``."""
        return tuple(device.layers for device in self.devices)


def used_workers(plan: Plan) -> tuple[WorkerSpec, ...]:
    used = {share.device for share in plan.split.shares if share.layers}
    return tuple(w for w in plan.workers if used.intersection(w.device_ids))


def is_relayed(plan: Plan) -> bool:
    """True if relays see everything that goes to a worker; so too without workers."""
    return plan.relay or not used_workers(plan)


def compile_split(plan: Plan, endpoints: Mapping[str, str]) -> Placement:
    """The arguments that make llama-server do what the plan's split says.

    Devices without layers are left out, and so are workers without such a device.
    ``endpoints`` maps worker names to where the head's llama-server reaches them; one
    that is not there is reached at its own.
    """
    used = [share for share in plan.split.shares if share.layers]
    head_layers = _head_cpu_layers(plan)
    offloaded = [s for s in used if not is_head_cpu(s.device, plan.head)]
    if len(offloaded) > DEVICES_MAX:
        raise PlanError(
            f"The split uses {len(offloaded)} devices; llama.cpp takes {DEVICES_MAX}",
            "Give some devices no layers, or let --best choose.",
        )
    reached = [(w, endpoints.get(w.name, w.endpoint)) for w in used_workers(plan)]
    remote = _rpc_devices(reached)
    placed = tuple(_placed(plan, share, remote) for share in offloaded)
    return Placement(
        rpc_endpoints=tuple(endpoint for _, endpoint in reached),
        devices=placed,
        n_gpu_layers=plan.split.n_layer + 1 - head_layers,
        overrides=override_tensor(
            plan.experts,
            {f"{plan.head}/CPU": CPU_BUFFER} | {one.id: one.buffer for one in placed},
        ),
    )


def _rpc_devices(
    reached: Sequence[tuple[WorkerSpec, str]],
) -> dict[str, tuple[str, str, int]]:
    """Our device ids to llama-server's name, the endpoint, and the number there.

    llama-server counts all devices of every endpoint, in the order of ``--rpc``. It
    counts the ones that it does not use, too.
    """
    found = [
        (device_id, endpoint, index)
        for worker, endpoint in reached
        for index, device_id in enumerate(worker.device_ids)
    ]
    return {
        device_id: (f"RPC{number}", endpoint, index)
        for number, (device_id, endpoint, index) in enumerate(found)
    }


def _placed(
    plan: Plan, share: Share, remote: Mapping[str, tuple[str, str, int]]
) -> PlacedDevice:
    machine, _, own_name = share.device.partition("/")
    if share.device in remote:
        name, endpoint, index = remote[share.device]
        return PlacedDevice(
            id=share.device,
            name=name,
            layers=share.layers,
            endpoint=endpoint,
            index=index,
        )
    if machine != plan.head:
        raise PlanError(
            f"The split gives layers to {share.device}, which no worker of the plan "
            "has",
            f"Known devices: {', '.join(plan.worker_of) or 'none'}.",
        )
    return PlacedDevice(id=share.device, name=own_name, layers=share.layers)


def _head_cpu_layers(plan: Plan) -> int:
    for index, share in enumerate(plan.split.shares):
        if is_head_cpu(share.device, plan.head):
            if index and share.layers:
                raise PlanError(
                    f"{share.device} is not first in the split",
                    "llama.cpp fills the head's CPU with the first layers: move it.",
                )
            return share.layers
    return 0


def _float32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def split_points(tensor_split: Sequence[float]) -> list[float]:
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
    merged: list[LayerRange] = []
    for layer, device in enumerate(device_of_layer):
        if merged and merged[-1].device == device:
            merged[-1] = LayerRange(device, merged[-1].first, layer)
        else:
            merged.append(LayerRange(device, layer, layer))
    return tuple(merged)


def check_exact(plan: Plan, placement: Placement) -> None:
    """Refuse a placement that llama.cpp would read differently from the split."""
    if engine_ranges(plan, placement) != ranges(plan.split):
        raise PlanError(
            "llama.cpp would not follow this split exactly",
            "Move a boundary by one layer and try again.",
        )


def parse_split(text: str) -> tuple[int, ...] | dict[str, int]:
    """``6,7`` as whole layers per device, ``studio/MTL0=38,mini/MTL0=10`` by name."""
    parts = [part.strip() for part in text.split(",")]
    if not any("=" in part for part in parts):
        return tuple(_count(part, text) for part in parts)
    named: dict[str, int] = {}
    for part in parts:
        name, _, count = (piece.strip() for piece in part.partition("="))
        if not name or name in named:
            raise _not_a_split(text)
        named[name] = _count(count, text)
    return named


def _count(part: str, text: str) -> int:
    # int() also takes 1_0 and digits of other scripts.
    if not (part.isascii() and part.isdigit()):
        raise _not_a_split(text)
    return int(part)


def _not_a_split(text: str) -> PlanError:
    return PlanError(
        f"{text!r} is not a split",
        "Give whole layers per device, such as 6,7, or by name: mini/MTL0=6,local/CPU=7"
        " (the output counts as one).",
    )
