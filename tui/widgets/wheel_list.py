"""Base of the lists that show a window of lines around a cursor."""

from __future__ import annotations

from tui.widgets.strips import StripWidget

WHEEL_ROWS = 3


class WheelList(StripWidget):
    """The wheel moves the cursor, and what is seen with it."""

    def move(self, by: int) -> None:
        """Move the cursor by lines, as far as there are any."""
        raise NotImplementedError

    def on_mouse_scroll_down(self) -> None:
        self.move(WHEEL_ROWS)

    def on_mouse_scroll_up(self) -> None:
        self.move(-WHEEL_ROWS)
