"""The split in llama-server's verbose log, compared with the plan.

It is read where no relay sees what the workers get.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from backends.split.flags import merge_layers, used_workers
from backends.split.layout import format_range, ranges
from backends.state import DeviceMemory, LayerRange, MeasuredSplit, MemorySource, Plan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from backends.split.flags import PlacedDevice, Placement


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
    """Our id of a device that llama-server named; its endpoint has the last word."""
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
    """Workers' devices whose memory says otherwise than the layers of the log."""
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
