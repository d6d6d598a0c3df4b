"""Columns of a graph as signs: eighths of a cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.style import Style

    from tui.widgets.strips import Part

BLOCKS = " ▁▂▃▄▅▆▇█"


def block(value: float | None, top: float, row: int = 0, rows: int = 1) -> str:
    """One column's sign in a row of a graph that is ``rows`` high and ends at ``top``.

    Rows count from the bottom. Nothing known is blank; what is known shows, be it 0.
    """
    if value is None:
        return BLOCKS[0]
    eighths = round(value / top * rows * 8)
    if row == 0:
        eighths = max(eighths, 1)
    return BLOCKS[min(max(eighths - row * 8, 0), 8)]


def block_row(values: Sequence[float | None], top: float, cells: int) -> str:
    """The newest values in one row, as far as there are cells; newest at the right."""
    shown = values[-cells:] if cells > 0 else ()
    return "".join(block(value, top) for value in shown).rjust(max(cells, 0))


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
