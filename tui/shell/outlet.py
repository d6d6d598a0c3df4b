"""Where everything drawn leaves for the terminal: nothing in it drives one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import set_cell_size
from rich.segment import Segment
from textual.filter import LineFilter

from tui.kit.safe_text import safe_line

if TYPE_CHECKING:
    from textual.color import Color


class SafeLines(LineFilter):
    """Makes every line safe, whichever widget drew it: labels, titles, fields, toasts.

    Text is better made safe where it is laid out, so that nothing of a sequence takes
    room; what was overlooked there, or comes from an entity in Markdown, ends here.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The same segments, each as wide as before."""
        return [_safe(segment) for segment in segments]


def _safe(segment: Segment) -> Segment:
    text, style, control = segment
    clean = safe_line(text)
    if clean is text or control:
        return segment
    return Segment(set_cell_size(clean, segment.cell_length), style)
