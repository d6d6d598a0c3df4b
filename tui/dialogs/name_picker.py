"""Names to pick from, under a field: the ones that contain the typed text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.message import Message
from textual.reactive import reactive

from tui.widgets.strips import WheelList, line

if TYPE_CHECKING:
    from textual import events
    from textual.strip import Strip

ROWS_MAX = 6


class NamePicker(WheelList):
    """Shows the names that fit, a few at a time; the field keeps the focus.

    The mouse picks one too.
    """

    DEFAULT_CSS = """
    NamePicker {
        height: auto;
    }
    """

    names: reactive[tuple[str, ...]] = reactive((), init=False, layout=True)
    """All there are."""
    typed: reactive[str] = reactive("", init=False, layout=True)
    """The text that a name must contain."""
    selected: reactive[int] = reactive(-1, init=False)
    """Index among the names that fit; -1 for none."""

    class Picked(Message):
        """The mouse went to a name."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def get_content_height(self, container: object, viewport: object, w: int) -> int:
        return min(len(self.fitting), ROWS_MAX)

    def draw(self, width: int, height: int) -> list[Strip]:
        names = self.fitting
        top = self._top(len(names))
        shown = names[top : top + ROWS_MAX]
        return [self._row(top + y, name, width) for y, name in enumerate(shown)]

    def _top(self, count: int) -> int:
        return min(max(self.selected - ROWS_MAX // 2, 0), max(count - ROWS_MAX, 0))

    @property
    def fitting(self) -> list[str]:
        """The names that contain the typed text."""
        wanted = self.typed.strip().lower()
        return [name for name in self.names if wanted in name.lower()]

    def pick(self, by: int) -> str:
        """Go to another name; empty if there is none."""
        names = self.fitting
        if not names:
            return ""
        self.selected = min(max(self.selected + by, 0), len(names) - 1)
        return names[self.selected]

    def move(self, by: int) -> None:
        """Go to another name by the wheel."""
        if name := self.pick(by):
            self.post_message(self.Picked(name))

    def on_click(self, event: events.Click) -> None:
        at = self._top(len(self.fitting)) + event.get_content_offset_capture(self).y
        self.move(at - self.selected)

    def watch_names(self) -> None:
        self.redraw()

    def watch_typed(self) -> None:
        self.selected = -1
        self.redraw()

    def watch_selected(self) -> None:
        self.redraw()

    def _row(self, index: int, name: str, width: int) -> Strip:
        palette = self.palette
        here = index == self.selected
        style = palette.strong if here else palette.dim
        return line([("▸ " if here else "  ", palette.key), (name, style)], width)
