"""The layers and the memory of a device, as the split pane writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.split.layout import format_range
from backends.state import LayerRange
from tui.work.quantities import common_unit, in_unit, part_of

if TYPE_CHECKING:
    from backends.split.loads import DeviceLoad
    from tui.work.draft import Draft


def layer_span(load: DeviceLoad, n_layer: int) -> str:
    """``0–38``, ``39–46 + output``, or ``—`` for none."""
    if not load.n_layers:
        return "—"
    return format_range(LayerRange(load.device, load.first, load.last), n_layer)


def short_span(load: DeviceLoad, n_layer: int) -> str:
    """Like ``layer_span``, the output as ``+o``: for narrow places."""
    return layer_span(load, n_layer).replace(" + output", "+o").replace("output", "o")


def span_width(n_layer: int, *, short: bool = False) -> int:
    """Columns the longest span of a model takes."""
    digits = len(str(n_layer - 1))
    return 2 * digits + 1 + (2 if short else len(" + output"))


def total_of_available(draft: Draft, load: DeviceLoad) -> str:
    """``15.0 of 55.0 GiB``; only the total where the device is unknown."""
    available = draft.available.get(load.device)
    if available is None:
        unit = common_unit(load.total_bytes)
        return f"{in_unit(load.total_bytes, unit)} {unit}"
    return part_of(load.total_bytes, available)
