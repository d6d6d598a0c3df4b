"""The split after a load, compared with the plan.

Relays see the weights that each worker gets. Without relays, llama-server's verbose log
names the device of each layer. The bytes per device are always those of that log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from backends.server_settings import moving
from backends.split.device_memory import layer_bytes
from backends.split.experts import misplaced, owners
from backends.split.flags import PlacedDevice, Placement, merge_layers, used_workers
from backends.split.layout import format_range, ranges, runs_of
from backends.state import (
    DeviceMemory,
    LayerRange,
    MeasuredSplit,
    MemorySource,
    ModelInfo,
    Plan,
)
from backends.state.links import DeviceWeights, WorkerWeights
from backends.units import format_bytes

NOT_IN_LOG = (
    "llama-server's log does not say which layer went where, so nothing was compared"
)
_RPC_BUFFER = re.compile(r"RPC(\d+)\[(.+)\]")


def measured_split(
    plan: Plan,
    placement: Placement,
    layer_devices: Mapping[int, str],
    device_endpoints: Mapping[str, str] | None = None,
    buffers: Mapping[tuple[str, str], int] | None = None,
) -> MeasuredSplit:
    """The split the log reports, in our device ids, with every difference named.

    ``layer_devices`` maps a layer's index (``n_layer`` is the output) to the device
    name that llama-server printed. ``device_endpoints`` maps such a name to its
    endpoint. ``buffers`` maps a buffer's name and kind (``model``, ``kv``,
    ``compute``) to bytes.
    An RPC device is known by its endpoint, never by its number alone.
    """
    endpoints = device_endpoints or {}
    if not layer_devices:
        return MeasuredSplit(layers=(), mismatches=(NOT_IN_LOG,))
    layers = merge_layers(
        [
            _layer_device(plan, placement, layer_devices.get(layer, "?"), endpoints)
            for layer in range(plan.split.n_layer + 1)
        ]
    )
    found = device_buffers(plan, placement, buffers or {})
    return MeasuredSplit(
        layers=layers,
        buffers=found,
        mismatches=(
            *_moved_endpoints(placement, endpoints),
            *mismatches(ranges(plan.split), layers, plan.split.n_layer),
            *_strays(plan, placement, found),
        ),
    )


def _layer_device(
    plan: Plan, placement: Placement, name: str, endpoints: Mapping[str, str]
) -> str:
    for device in placement.devices:
        if device.name == name and _is_there(device, endpoints):
            return device.id
    at = endpoints.get(name, "")
    if at in placement.rpc_endpoints:
        return f"{_worker_at(plan, placement, at)}/{name}"
    return f"{plan.head}/{name}"


def _is_there(device: PlacedDevice, endpoints: Mapping[str, str]) -> bool:
    return not device.endpoint or endpoints.get(device.name) in (None, device.endpoint)


def _moved_endpoints(
    placement: Placement, endpoints: Mapping[str, str]
) -> tuple[str, ...]:
    return tuple(
        f"llama-server's {device.name} is at {endpoints[device.name]}, "
        f"planned as {device.id} at {device.endpoint}"
        for device in placement.devices
        if not _is_there(device, endpoints)
    )


def _worker_at(plan: Plan, placement: Placement, endpoint: str) -> str:
    worker = used_workers(plan)[placement.rpc_endpoints.index(endpoint)]
    return worker.place or worker.name


def device_buffers(
    plan: Plan, placement: Placement, buffers: Mapping[tuple[str, str], int]
) -> tuple[DeviceMemory, ...]:
    """Bytes per device; buffers of no device (``CPU_Mapped``, …) are the head's CPU's.

    Both of two workers' buffers are called ``RPC0[host:port]``: the number counts
    within the endpoint.
    """
    by_device: dict[str, dict[str, int]] = {}
    for (buffer, kind), size in buffers.items():
        sizes = by_device.setdefault(_buffer_device(plan, placement, buffer), {})
        sizes[kind] = sizes.get(kind, 0) + size
    return tuple(
        DeviceMemory(
            device=device,
            model_bytes=sizes.get("model", 0),
            kv_bytes=sizes.get("kv", 0),
            compute_bytes=sizes.get("compute", 0),
            source=MemorySource.MEASURED,
        )
        for device, sizes in by_device.items()
    )


def _buffer_device(plan: Plan, placement: Placement, buffer: str) -> str:
    for device in placement.devices:
        if device.owns(buffer):
            return device.id
    rpc = _RPC_BUFFER.fullmatch(buffer)
    if rpc is None or rpc[2] not in placement.rpc_endpoints:
        return f"{plan.head}/CPU"
    worker = used_workers(plan)[placement.rpc_endpoints.index(rpc[2])]
    known = dict(enumerate(worker.device_ids))
    return known.get(int(rpc[1]), f"{worker.place or worker.name}/device {rpc[1]}")


def _strays(
    plan: Plan, placement: Placement, buffers: Sequence[DeviceMemory]
) -> tuple[str, ...]:
    if not buffers:
        return ()
    head = f"{plan.head}/"
    holding = {buffer.device for buffer in buffers if buffer.model_bytes}
    remote = {device for device in holding if not device.startswith(head)}
    planned = {device.id for device in placement.devices if device.endpoint}
    return (
        *(f"{d} got weights, planned none" for d in sorted(remote - planned)),
        *(f"{d} got no weights" for d in sorted(planned - remote)),
    )


def mismatches(
    planned: Sequence[LayerRange], measured: Sequence[LayerRange], n_layer: int
) -> tuple[str, ...]:
    """One sentence per device whose layers differ; empty when all agree."""
    wanted = {r.device: format_range(r, n_layer) for r in planned}
    found: dict[str, str] = {}
    for r in measured:
        text = format_range(r, n_layer)
        found[r.device] = f"{found[r.device]}, {text}" if r.device in found else text
    return tuple(
        f"{device} holds {found.get(device, 'nothing')}, "
        f"planned {wanted.get(device, 'nothing')}"
        for device in dict.fromkeys([*wanted, *found])
        if wanted.get(device) != found.get(device)
    )


_MAPPED = "_Mapped"


class ServerLog(NamedTuple):
    buffers: Mapping[tuple[str, str], int]
    """Bytes by a buffer's name and kind (``model``, ``kv``, ``compute``)."""
    offloaded: tuple[int, int] | None = None
    """Layers on devices, and all of them; None where the line is missing."""


def held_split(
    plan: Plan,
    placement: Placement,
    model: ModelInfo,
    weights: Mapping[str, WorkerWeights | None],
    log: ServerLog,
) -> MeasuredSplit:
    """The split as it arrived, in our device ids, with every difference named.

    ``weights`` are what the workers got, by name; without a worker in use it is empty.
    """
    found = device_buffers(plan, placement, log.buffers)
    unseen = [
        worker.name
        for worker in used_workers(plan)
        if (held := weights.get(worker.name)) is None or not held.complete
    ]
    if unseen:
        sentences = tuple(map(_unseen, unseen))
        return MeasuredSplit(layers=(), buffers=found, mismatches=sentences)
    seen = _Seen(plan, model, weights)
    layers = merge_layers([seen.owner(layer) for layer in range(model.n_layer + 1)])
    return MeasuredSplit(
        layers=layers,
        in_part=seen.in_part(),
        buffers=found,
        mismatches=(
            *_not_offloaded(placement, log.offloaded),
            *mismatches(ranges(plan.split), layers, model.n_layer),
            *seen.strays(),
            *misplaced(plan, model, seen.holders),
            *_head_devices(plan, placement, model, log.buffers),
        ),
    )


def _unseen(worker: str) -> str:
    return (
        f"The relay of {worker} could not follow what it got, so its layers were not "
        "compared"
    )


def _is_overridden(plan: Plan) -> bool:
    return bool(plan.experts or moving(plan.extra_args))


class _Seen:
    def __init__(
        self, plan: Plan, model: ModelInfo, weights: Mapping[str, WorkerWeights | None]
    ) -> None:
        self._n_layer = model.n_layer
        self._nextn = _nextn_layers(model)
        self._whole = layer_bytes(model)
        self._overridden = _is_overridden(plan)
        self._head = plan.head
        self._planned = owners(plan.split)
        self.holders: list[dict[str, int]] = [{} for _ in self._whole]
        """Per layer, the output last: bytes by device."""
        for worker in used_workers(plan):
            held = weights[worker.name]
            known = dict(enumerate(worker.device_ids))
            for device in held.devices if held else ():
                place = worker.place or worker.name
                name = known.get(device.device, f"{place}/device {device.device}")
                self._take(name, device, tied=model.tied_output)

    def _take(self, name: str, device: DeviceWeights, *, tied: bool) -> None:
        for run in device.layers:
            for layer in range(run.first, min(run.last + 1, self._n_layer)):
                self.holders[layer][name] = run.bytes
        output = device.output.bytes + (device.embedding.bytes if tied else 0)
        if output:
            self.holders[self._n_layer][name] = output

    def owner(self, layer: int) -> str:
        """The planned device if it holds any of a layer, else who holds the most.

        What went to no worker is the head's.
        """
        planned, holders = self._planned[layer], self.holders[layer]
        is_heads = planned.startswith(f"{self._head}/")
        heads_bytes = self._whole[layer] - sum(holders.values())
        if planned in holders or (is_heads and heads_bytes > 0):
            return planned
        if (
            layer in self._nextn
            and not holders
            and any(planned in one for one in self.holders)
        ):
            return planned
        heads = {planned if is_heads else f"{self._head}/CPU": heads_bytes}
        return max(everyone := holders | heads, key=everyone.__getitem__)

    def in_part(self) -> tuple[LayerRange, ...]:
        """Layers of which a device holds only some tensors, device by device."""
        names = dict.fromkeys(name for holders in self.holders for name in holders)
        return tuple(
            run
            for name in names
            for run in runs_of(
                name,
                [
                    layer
                    for layer in range(self._n_layer)
                    if 0 < self.holders[layer].get(name, 0) < self._loaded_bytes(layer)
                ],
            )
        )

    def _loaded_bytes(self, layer: int) -> int:
        if layer in self._nextn:
            return sum(self.holders[layer].values())
        return self._whole[layer]

    def strays(self) -> tuple[str, ...]:
        """Devices that got tensors of another's layers although nobody asked for it."""
        if self._overridden:
            return ()
        strays: dict[str, list[int]] = {}
        for layer, holders in enumerate(self.holders):
            for name in set(holders) - {self.owner(layer)}:
                strays.setdefault(name, []).append(layer)
        return tuple(
            f"{name} got tensors of {format_range(run, self._n_layer)} too"
            for name, layers in sorted(strays.items())
            for run in runs_of(name, layers)
        )


def _nextn_layers(model: ModelInfo) -> range:
    return range(model.n_layer - model.n_layer_nextn, model.n_layer)


def _not_offloaded(
    placement: Placement, offloaded: tuple[int, int] | None
) -> tuple[str, ...]:
    if offloaded is None or offloaded[0] in (placement.n_gpu_layers, offloaded[1]):
        return ()
    done, of = offloaded
    wanted = placement.n_gpu_layers
    return (f"llama-server offloaded {done} of {of} layers, planned {wanted}",)


def _head_devices(
    plan: Plan,
    placement: Placement,
    model: ModelInfo,
    buffers: Mapping[tuple[str, str], int],
) -> tuple[str, ...]:
    own = [device for device in placement.devices if not device.endpoint]
    if _is_overridden(plan):
        return ()
    planned = {r.device: r for r in ranges(plan.split)}
    sentences = (_wrong_bytes(d, planned[d.id], model, buffers) for d in own)
    return tuple(sentence for sentence in sentences if sentence)


def _wrong_bytes(
    device: PlacedDevice,
    planned: LayerRange,
    model: ModelInfo,
    buffers: Mapping[tuple[str, str], int],
) -> str:
    """True if a device holds a layer more or less; one mapped from a file holds more.

    Rows and tensors are padded, so that half a layer is what counts.
    """
    layers = range(planned.first, planned.last + 1)
    sizes = layer_bytes(model)
    wanted = sum(sizes[layer] for layer in layers)
    nextn = _nextn_layers(model)
    surely = [sizes[layer] for layer in layers if layer not in nextn]
    allowed = min(surely, default=0) // 2
    mine = _model_buffers(device, buffers)
    found = sum(mine.values())
    is_mapped = any(name.endswith(_MAPPED) for name in mine)
    too_much = found > wanted + allowed and not is_mapped
    if found < sum(surely) - allowed or too_much:
        got, plan = format_bytes(found), format_bytes(wanted)
        return f"{device.id} holds {got} of weights, planned {plan}"
    return ""


def _model_buffers(
    device: PlacedDevice, buffers: Mapping[tuple[str, str], int]
) -> dict[str, int]:
    return {
        name: size
        for (name, kind), size in buffers.items()
        if kind == "model" and device.owns(name)
    }


def format_in_part(in_part: Sequence[LayerRange], n_layer: int) -> str:
    """``worker1/CPU holds 2, 4–6 in part``, for people; empty when nobody does."""
    by_device: dict[str, list[str]] = {}
    for run in in_part:
        by_device.setdefault(run.device, []).append(format_range(run, n_layer))
    return " · ".join(
        f"{device} holds {', '.join(runs)} in part"
        for device, runs in by_device.items()
    )
