"""A model's reasoning before its answer: dim, and folded once the answer begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.containers import Vertical
from textual.content import Content
from textual.reactive import reactive
from textual.widgets import Static

from backends.units import format_count
from tui.screens.cluster.chat.answer_text import AnswerText

if TYPE_CHECKING:
    from textual import events
    from textual.app import ComposeResult

VIEW_ROWS = 4
"""Of a model that still thinks: twice as many rows of its end are shown."""


class ChatReasoning(Vertical):
    """A header that folds and unfolds the reasoning under it."""

    DEFAULT_CSS = """
    ChatReasoning {
        height: auto;
        display: none;
        &.-some { display: block; }
        & > .reasoning-head {
            width: auto;
            height: 1;
            color: $dim;
            pointer: pointer;
            &:hover { color: $foreground; text-style: underline; }
        }
        & > AnswerText {
            padding: 0 0 0 1;
            border-left: outer $pane-border;
            color: $dim;
        }
    }
    """

    HELP: ClassVar[str | None] = None

    unfolded: reactive[bool] = reactive(True)
    """The text is shown, not only its header."""
    thinking: reactive[bool] = reactive(True)
    """More is to come."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self._head = Static(classes="reasoning-head", markup=False)
        self._body = AnswerText(VIEW_ROWS)
        self._head_cells = 0

    def compose(self) -> ComposeResult:
        yield self._head

    def add(self, text: str) -> None:
        """Take in more reasoning."""
        if not self.text:
            self.add_class("-some")
            self.mount(self._body)
        self.text += text
        self._body.add(text if self._body.text else text.lstrip())
        self._show()

    def finish(self) -> None:
        """The answer begins: fold, unless the user is reading."""
        if self.thinking:
            self.thinking = False
            self.unfolded = False

    def watch_unfolded(self) -> None:
        self._show()

    def watch_thinking(self) -> None:
        if not self.thinking:
            self._body.follow(None)
        self._show()

    def _show(self) -> None:
        """Draw the header, and the text where it is open."""
        sign = "▾" if self.unfolded else "▸"
        words = format_count(len(self.text.split()), "word")
        title = "thinking" if self.thinking else "reasoning"
        head = Content(f"{sign} {title} · {words}")
        # One of the same length leaves everything where it is.
        self._head.update(head, layout=len(head) != self._head_cells)
        self._head_cells = len(head)
        self._body.display = self.unfolded

    def on_click(self, event: events.Click) -> None:
        if event.widget is self._head:
            event.stop()
            self.toggle()

    def toggle(self) -> None:
        """Fold or unfold."""
        self.unfolded = not self.unfolded
