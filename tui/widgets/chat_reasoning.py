"""What a model thought before it answered: dim, and folded once the answer begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.containers import Vertical
from textual.content import Content
from textual.reactive import reactive
from textual.widgets import Static

from tui.widgets.chat_text import count_text

if TYPE_CHECKING:
    from textual import events
    from textual.app import ComposeResult

TAIL_CHARACTERS = 1_000
"""Shown while the model still thinks, so that each update costs the same."""


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
        & > .reasoning-text {
            display: none;
            height: auto;
            padding: 0 0 0 1;
            border-left: outer $pane-border;
            color: $dim;
        }
        &.-unfolded > .reasoning-text { display: block; }
    }
    """

    HELP: ClassVar[str | None] = None

    unfolded: reactive[bool] = reactive(True, toggle_class="-unfolded")
    """The text is shown, not only its header."""
    thinking: reactive[bool] = reactive(True)
    """More is to come."""

    def __init__(self) -> None:
        """Create an empty, hidden block."""
        super().__init__()
        self.text = ""
        self._head = Static(classes="reasoning-head", markup=False)
        self._body = Static(classes="reasoning-text", markup=False)

    def compose(self) -> ComposeResult:
        """The header and the text."""
        yield self._head
        yield self._body

    def add(self, text: str) -> None:
        """Take in more reasoning."""
        self.text += text
        self.add_class("-some")
        self._show()

    def finish(self) -> None:
        """The answer begins: fold, unless the user is reading."""
        if self.thinking:
            self.thinking = False
            self.unfolded = False

    def watch_unfolded(self) -> None:
        """Show or hide the text."""
        self._show()

    def watch_thinking(self) -> None:
        """Say whether it is over."""
        self._show()

    def _show(self) -> None:
        """Draw the header, and the text where it is open."""
        sign = "▾" if self.unfolded else "▸"
        words = count_text(len(self.text.split()), "word")
        title = "thinking" if self.thinking else "reasoning"
        self._head.update(Content(f"{sign} {title} · {words}"))
        if self.unfolded:
            self._body.update(Content(self._visible_text()))

    def _visible_text(self) -> str:
        """All of it, or while it grows its end from a word on."""
        text = self.text.strip()
        if not self.thinking or len(text) <= TAIL_CHARACTERS:
            return text
        tail = text[-TAIL_CHARACTERS:]
        return "… " + tail.partition(" ")[2]

    def on_click(self, event: events.Click) -> None:
        """Fold or unfold by its header."""
        if event.widget is self._head:
            event.stop()
            self.toggle()

    def toggle(self) -> None:
        """Fold or unfold."""
        self.unfolded = not self.unfolded
