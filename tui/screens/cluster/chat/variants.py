"""All answers to one question, a line each: to compare them, and to go back to one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from tui.screens.cluster.chat.text import variant_texts
from tui.widgets.safe_text import safe_line

if TYPE_CHECKING:
    from textual import events
    from textual.app import ComposeResult

    from backends.state import Turn


class AnswerVariants(Vertical):
    """The settings of each answer; a click continues from that answer."""

    DEFAULT_CSS = """
    AnswerVariants {
        height: auto;
        & > Horizontal {
            height: auto;
            color: $dim;
            pointer: pointer;
            &:hover { color: $foreground; }
            &.-shown { color: $foreground; }
            & > .variant-number { width: 5; }
            & > .variant-facts { width: 1fr; height: auto; }
        }
    }
    """

    HELP: ClassVar[str | None] = None

    @dataclass
    class Picked(Message):
        """The user wants another answer to be gone on from."""

        shown: int
        """Its index."""

    def __init__(self, turn: Turn) -> None:
        super().__init__()
        self._turn = turn

    def compose(self) -> ComposeResult:
        for index, text in enumerate(variant_texts(self._turn)):
            shown = index == self._turn.shown
            number = Content(f"{'▸' if shown else ' '} {index + 1}")
            with Horizontal(classes="-shown" if shown else ""):
                yield Static(number, classes="variant-number")
                yield Static(Content(safe_line(text)), classes="variant-facts")

    def on_click(self, event: events.Click) -> None:
        event.stop()
        under = event.widget.ancestors_with_self if event.widget else ()
        for index, line in enumerate(self.children):
            if line in under:
                self.post_message(self.Picked(index))
