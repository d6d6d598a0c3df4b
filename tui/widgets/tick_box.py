"""Something to switch on or off, on one line; readable without colours."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.message import Message
from textual.reactive import reactive

from tui.actions.keymap import bindings
from tui.widgets.strips import StripWidget, line

if TYPE_CHECKING:
    from textual.binding import BindingType
    from textual.strip import Strip


class TickBox(StripWidget, can_focus=True):
    """``[x] label``; space or a click changes it."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("tick")
    DEFAULT_CSS = """
    TickBox {
        width: 1fr;
        height: 1;
        padding: 0 1;
    }
    """

    value: reactive[bool] = reactive(False, init=False)

    class Changed(Message):
        """The user has switched it."""

    def __init__(self, label: str) -> None:
        super().__init__()
        self._label = label

    def draw(self, width: int, height: int) -> list[Strip]:
        palette = self.palette
        box = palette.key if self.has_focus else palette.text
        label = palette.strong if self.has_focus else palette.text
        tick = "x" if self.value else " "
        return [line([(f"[{tick}] ", box), (self._label, label)], width)]

    def watch_value(self) -> None:
        self.redraw()
        self.post_message(self.Changed())

    def watch_has_focus(self, has_focus: bool) -> None:
        super().watch_has_focus(has_focus)
        self.redraw()

    def watch_disabled(self, disabled: bool) -> None:
        super().watch_disabled(disabled)
        self.redraw()

    def action_switch(self) -> None:
        self.value = not self.value

    def on_click(self) -> None:
        self.action_switch()
