"""A few values in one row, one of them chosen; readable without colours."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar

from textual.message import Message
from textual.reactive import reactive

from tui.actions.keymap import bindings
from tui.widgets.strips import Part, StripWidget, line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual import events
    from textual.binding import BindingType
    from textual.strip import Strip


class OptionStrip(StripWidget, can_focus=True):
    """``f16 [q8_0] q4_0``; ←→ or a click choose."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("option")
    DEFAULT_CSS = """
    OptionStrip {
        width: 1fr;
        height: 1;
    }
    """

    value: reactive[str] = reactive("", init=False)
    """The one chosen; one that is not among the values is shown by none."""

    class Changed(Message):
        """Another one was chosen by the user."""

        def __init__(self, strip: OptionStrip, value: str) -> None:
            super().__init__()
            self.strip = strip
            self.value = value

        @property
        def control(self) -> OptionStrip:
            """The row it was chosen from."""
            return self.strip

    def __init__(
        self,
        values: Sequence[str],
        value: str,
        *,
        id: str | None = None,  # noqa: A002
    ) -> None:
        super().__init__(id=id)
        self._values = tuple(values)
        self.set_reactive(OptionStrip.value, value)

    def draw(self, width: int, height: int) -> list[Strip]:
        return [line([self._part(value) for value in self._values], width)]

    def watch_value(self) -> None:
        self.redraw()

    def watch_has_focus(self, has_focus: bool) -> None:
        super().watch_has_focus(has_focus)
        self.redraw()

    def action_pick(self, by: int) -> None:
        if self.value in self._values:
            at = self._values.index(self.value) + by
        else:
            at = 0 if by > 0 else len(self._values) - 1
        self._choose(min(max(at, 0), len(self._values) - 1))

    def on_click(self, event: events.Click) -> None:
        x = event.get_content_offset_capture(self).x
        ends = accumulate(len(value) + 2 for value in self._values)
        at = next((index for index, end in enumerate(ends) if x < end), None)
        if at is not None:
            self._choose(at)

    def _choose(self, at: int) -> None:
        if self.value != self._values[at]:
            self.value = self._values[at]
            self.post_message(self.Changed(self, self.value))

    def _part(self, value: str) -> Part:
        if value != self.value:
            return f" {value} ", self.palette.dim
        return f"[{value}]", self.palette.key if self.has_focus else self.palette.strong
