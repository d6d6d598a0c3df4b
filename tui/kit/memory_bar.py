"""A bar that says how full a memory is: what a plan takes, and what is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.style import Style

    from tui.kit.strips import Part

FULL = "▇"
EMPTY = "▁"


def bar_cells(part: float, whole: float, width: int) -> int:
    """Filled cells: something taken shows, and only a full memory looks full."""
    if part <= 0 or whole <= 0:
        return 0
    if part >= whole:
        return width
    return min(max(round(part / whole * width), 1), width - 1)


def memory_bar(
    part: float, whole: float, width: int, *, full: Style, empty: Style
) -> list[Part]:
    """The bar as parts of a line."""
    filled = bar_cells(part, whole, width)
    return [(FULL * filled, full), (EMPTY * (width - filled), empty)]
