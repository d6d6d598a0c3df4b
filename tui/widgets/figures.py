"""Numbers of the split pane, in a common unit and in columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.split.layout import format_range
from backends.state import LayerRange

if TYPE_CHECKING:
    from backends.split.memory import DeviceLoad
    from tui.widgets.draft import Draft

_UNITS = (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024))


def common_unit(largest_bytes: int) -> str:
    """The unit in which the largest of some figures has a digit before the point."""
    return next((name for name, size in _UNITS if largest_bytes >= size / 2), "KiB")


def in_unit(n_bytes: float, unit: str) -> str:
    """``13.9``: one decimal below a thousand, none above."""
    value = n_bytes / dict(_UNITS)[unit]
    return f"{value:.1f}" if value < 999.95 else f"{value:.0f}"


def layer_span(load: DeviceLoad, n_layer: int) -> str:
    """``0–38``, ``39–46 + output``, or ``—`` for none."""
    if not load.n_layers:
        return "—"
    return format_range(LayerRange(load.device, load.first, load.last), n_layer)


def short_span(load: DeviceLoad, n_layer: int) -> str:
    """Like ``layer_span``, the output as ``+o``: for narrow places."""
    return layer_span(load, n_layer).replace(" + output", "+o").replace("output", "o")


def total_of_available(draft: Draft, load: DeviceLoad) -> str:
    """``15.0 of 55.0 GiB``; only the total where the device is unknown."""
    available = draft.available.get(load.device)
    unit = common_unit(max(load.total_bytes, available or 0))
    total = in_unit(load.total_bytes, unit)
    if available is None:
        return f"{total} {unit}"
    return f"{total} of {in_unit(available, unit)} {unit}"
