"""A short list of answers to a question; the first one is meant by default."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

from textual.message import Message
from textual.reactive import reactive

from tui.actions.keymap import bindings
from tui.widgets.strips import StripWidget, clip, line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual import events
    from textual.binding import BindingType
    from textual.strip import Strip

LABEL_WIDTH = 24


class Choice(NamedTuple):
    """One answer."""

    id: str
    label: str
    key: str
    """The letter that picks it at once; empty for none."""
    detail: str = ""


class ChoiceList(StripWidget, can_focus=True):
    """Answers under each other; arrows and Enter, or their letters, or a click."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("choice")
    DEFAULT_CSS = """
    ChoiceList {
        height: auto;
    }
    """

    selected: reactive[int] = reactive(0, init=False)
    """Index of the answer Enter gives."""

    class Chosen(Message):
        """The user has decided."""

        def __init__(self, choice_list: ChoiceList, choice: Choice) -> None:
            super().__init__()
            self.choice_list = choice_list
            self.choice = choice

    def __init__(self, choices: Sequence[Choice]) -> None:
        super().__init__()
        self.choices = tuple(choices)

    def get_content_height(self, container: object, viewport: object, w: int) -> int:
        return len(self.choices)

    def draw(self, width: int, height: int) -> list[Strip]:
        return [self._row(index, width) for index in range(len(self.choices))]

    def validate_selected(self, selected: int) -> int:
        return selected % len(self.choices)

    def watch_selected(self) -> None:
        self.redraw()

    def action_select(self, by: int) -> None:
        self.selected += by

    def action_choose(self) -> None:
        self.post_message(self.Chosen(self, self.choices[self.selected]))

    def on_key(self, event: events.Key) -> None:
        for choice in self.choices:
            if choice.key and event.character == choice.key:
                event.stop()
                self.post_message(self.Chosen(self, choice))

    def on_click(self, event: events.Click) -> None:
        y = event.get_content_offset_capture(self).y
        if 0 <= y < len(self.choices):
            self.post_message(self.Chosen(self, self.choices[y]))

    def _row(self, index: int, width: int) -> Strip:
        choice = self.choices[index]
        here = index == self.selected
        palette = self.palette
        return line(
            [
                ("▸ " if here else "  ", palette.key),
                (clip(choice.key, 2), palette.key),
                (
                    clip(choice.label, LABEL_WIDTH),
                    palette.strong if here else palette.text,
                ),
                (choice.detail, palette.dim),
            ],
            width,
        )
