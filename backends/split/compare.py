"""What llama-server's log says it did, held against the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.split.flags import merge_layers
from backends.split.layout import format_range, ranges
from backends.state import DeviceBuffers, LayerRange, MeasuredSplit, Plan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from backends.split.flags import Placement


NOT_IN_LOG = (
    "llama-server's log does not say which layer went where, so nothing was compared"
)


def measured_split(
    plan: Plan,
    placement: Placement,
    layer_devices: Mapping[int, str],
    buffers: Sequence[DeviceBuffers] = (),
) -> MeasuredSplit:
    """The split the log reports, in our device ids, with every difference named.

    ``layer_devices`` maps layer index (``n_layer`` is the output) to the device name
    llama-server printed; ``buffers`` carry those names too.
    """
    names = dict(zip(placement.device_names, placement.device_ids, strict=True))

    def device_id(name: str) -> str:
        return names.get(name, f"{plan.head}/{name}")

    if not layer_devices:
        return MeasuredSplit(layers=(), mismatches=(NOT_IN_LOG,))
    layers = merge_layers(
        [
            device_id(layer_devices.get(layer, "?"))
            for layer in range(plan.split.n_layer + 1)
        ]
    )
    renamed = (
        DeviceBuffers(
            device=device_id(buffer.device),
            model_bytes=buffer.model_bytes,
            kv_bytes=buffer.kv_bytes,
            compute_bytes=buffer.compute_bytes,
        )
        for buffer in buffers
    )
    return MeasuredSplit(
        layers=layers,
        buffers=tuple(renamed),
        mismatches=mismatches(ranges(plan.split), layers, plan.split.n_layer),
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
