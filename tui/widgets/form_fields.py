"""Fields of a form, each of one row: numbers, names, switches, options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from textual import events
from textual.message import Message
from textual.strip import Strip

from tui.actions import bindings
from tui.widgets.inputs import LineInput
from tui.widgets.strips import Drawn, Part, StripWidget, line


class ChoosyInput(LineInput):
    """Leaves what it does not take to the keys of the dialog, such as ``?``."""

    def takes(self, character: str) -> bool:
        raise NotImplementedError

    def check_consume_key(self, key: str, character: str | None) -> bool:
        return bool(character and character.isprintable() and self.takes(character))

    async def _on_key(self, event: events.Key) -> None:
        consumed = self.check_consume_key(event.key, event.character)
        if event.is_printable and not consumed:
            event.prevent_default()
        else:
            await super()._on_key(event)


class NumberInput(ChoosyInput):
    def takes(self, character: str) -> bool:
        return character.isascii() and character.isdigit()


class NameInput(ChoosyInput):
    def takes(self, character: str) -> bool:
        return character != "?"


class TickBox(StripWidget, can_focus=True):
    """``[x] label``; space or a click changes it."""

    BINDINGS = bindings("tick")
    DEFAULT_CSS = "TickBox { width: 1fr; height: 1; padding: 0 1; }"

    value: Drawn[bool] = Drawn(False)

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
        self.post_message(self.Changed())

    def watch_disabled(self, disabled: bool) -> None:
        super().watch_disabled(disabled)
        self.redraw()

    def action_switch(self) -> None:
        self.value = not self.value

    def on_click(self) -> None:
        self.action_switch()


class OptionStrip(StripWidget, can_focus=True):
    """``f16 [q8_0] q4_0``; ←→ or a click choose."""

    BINDINGS = bindings("option")
    DEFAULT_CSS = "OptionStrip { width: 1fr; height: 1; }"

    value: Drawn[str] = Drawn("")
    """The one chosen; one that is not among the values is shown by none."""

    @dataclass
    class Changed(Message):
        """Another one was chosen by the user."""

        strip: OptionStrip

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
            self.post_message(self.Changed(self))

    def _part(self, value: str) -> Part:
        if value != self.value:
            return f" {value} ", self.palette.dim
        return f"[{value}]", self.palette.key if self.has_focus else self.palette.strong
