"""The sign of a figure's source: one rule for every screen and dialog.

``~`` before it and faint: predicted by our own arithmetic. A tick beside it: of a
plan, what the engine says of it (plain), or what was measured of what runs (strong).
Without a sign a figure is measured, counted, or was asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from backends.state import MemorySource

# Commands say figures, too, and start without what draws.
if TYPE_CHECKING:
    from rich.style import Style

    from backends.split.device_memory import DeviceLoad
    from tui.widgets.palette import Palette

PREDICTED = "~"
CHECKED = "✓"
TIGHT = "!"
"""Next to nothing is left of a device's memory."""
OVER = "✗"
"""A device has less memory than its share takes."""
LEGEND = """
**Figures.** `~12.3`, faint, is predicted by our own arithmetic. With a `✓` a plain
figure is the engine's own word on this plan, and a **strong** one was measured of what
runs. Without a sign it is measured or counted as it happens, or was asked for; `—` or
a blank is not known.
"""


def predicted(text: str) -> str:
    """``~12.3``: a figure of our own arithmetic; the sign takes from the padding."""
    bare = text.lstrip()
    return f"{PREDICTED}{bare}".rjust(len(text))


def told(text: str, source: MemorySource | None) -> str:
    return predicted(text) if source is MemorySource.PREDICTED else text


def style_of(source: MemorySource | None, palette: Palette) -> Style:
    """Faint, plain or strong; plain where it is of no plan."""
    return {
        None: palette.text,
        MemorySource.PREDICTED: palette.dim,
        MemorySource.ENGINE: palette.text,
        MemorySource.MEASURED: palette.strong,
    }[source]


def tick_of(source: MemorySource) -> str:
    """``✓`` for what was checked; ``~`` for a prediction, where it stands alone."""
    return PREDICTED if source is MemorySource.PREDICTED else CHECKED


def least_of(loads: Iterable[DeviceLoad]) -> MemorySource:
    """The least reliable source among several figures: their sum is no better."""
    return min((load.source for load in loads), key=list(MemorySource).index)
