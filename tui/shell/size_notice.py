"""What the console says instead of itself when the terminal is too small."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tui.kit.strips import StripWidget, line

if TYPE_CHECKING:
    from textual.strip import Strip

MIN_WIDTH = 60
MIN_HEIGHT = 18


class SizeNotice(StripWidget):
    """Covers the screen below the smallest size, and names both sizes."""

    DEFAULT_CSS = """
    SizeNotice {
        display: none;
        overlay: screen;
        width: 100vw;
        height: 100vh;
        background: $background;
        layer: notice;
    }
    """

    def draw(self, width: int, height: int) -> list[Strip]:
        texts = [
            ("Make this terminal larger", self.palette.strong),
            (f"it needs {MIN_WIDTH}×{MIN_HEIGHT}", self.palette.text),
            (f"it is    {width}×{height}", self.palette.warn),
        ][-height:]
        blank = line([], width)
        lines = [
            line(
                [(" " * max((width - len(text)) // 2, 0), style), (text, style)], width
            )
            for text, style in texts
        ]
        return [blank] * ((height - len(lines)) // 2) + lines
