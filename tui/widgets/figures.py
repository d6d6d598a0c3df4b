"""Numbers of the split pane, in a common unit and in columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.split.layout import format_range
from backends.state import LayerRange

if TYPE_CHECKING:
    from backends.split.memory import DeviceLoad
    from tui.widgets.draft import Draft

_UNITS = (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024))


def common_unit(largest_bytes: float) -> str:
    """The unit in which the largest of some figures has a digit before the point."""
    return next((name for name, size in _UNITS if largest_bytes >= size / 2), "KiB")


def in_unit(n_bytes: float, unit: str) -> str:
    """``13.9``: one decimal below a hundred, none above."""
    value = n_bytes / dict(_UNITS)[unit]
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def rounded(n_bytes: float) -> tuple[str, str]:
    """``("31", "MiB")``: two figures and the unit, for narrow places."""
    unit = common_unit(n_bytes)
    value = n_bytes / dict(_UNITS)[unit]
    return (f"{value:.1f}" if value < 9.95 else f"{value:.0f}"), unit


def short_part_of(part: float, whole: float) -> str:
    """``9.7/55 GiB``, ``31 MiB/11 GiB``."""
    (some, unit), (every, whole_unit) = rounded(part), rounded(whole)
    if not part:
        return f"0/{every} {whole_unit}"
    own = "" if unit == whole_unit else f" {unit}"
    return f"{some}{own}/{every} {whole_unit}"


def part_of(part: float, whole: float) -> str:
    """``15.0 of 55.0 GiB``, or ``36.1 MiB of 11.0 GiB`` where the units differ."""
    whole_unit = common_unit(whole)
    unit = common_unit(part) if part else whole_unit
    own = "" if unit == whole_unit else f" {unit}"
    return f"{in_unit(part, unit)}{own} of {in_unit(whole, whole_unit)} {whole_unit}"


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
