"""One speaker's part of a conversation: a name on the left, words on the right."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.widgets import Static

from tui.widgets.safe_text import safe, safe_line

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.widget import Widget

SPEAKER_CELLS = 8
"""Cells a speaker's name may take."""
_MAKERS = frozenset({"meta", "ibm", "nvidia", "mistralai", "microsoft", "google"})


def speaker_of(model_name: str) -> str:
    """A short name for a model: ``GLM-4.7-Flash-Q4_K_M`` speaks as ``glm``."""
    words = [word for word in re.split(r"[^\w]+|_", model_name.lower()) if word]
    # Some letters take no cell of their own.
    telling = (word for word in words if word not in _MAKERS and cell_len(word))
    name = next(telling, "model")
    if cell_len(name) > SPEAKER_CELLS:
        name = set_cell_size(name, SPEAKER_CELLS - 1).rstrip() + "…"
    return name


def names_width(speaker: str) -> int:
    """Cells the column of names takes beside this model."""
    return max(cell_len("you"), cell_len(speaker)) + 2


class ChatTurn(Horizontal):
    """A speaker and a column for what is said."""

    DEFAULT_CSS = """
    ChatTurn {
        height: auto;
        & > .turn-speaker {
            width: auto;
            height: 1;
            color: $dim;
            text-style: bold;
        }
        & > .turn-body { width: 1fr; max-width: 112; height: auto; }
        &.-you > .turn-speaker { color: $primary; }
        &.-model > .turn-speaker { color: $secondary; }
    }
    """

    def __init__(self, speaker: str, *, names_width: int, classes: str) -> None:
        super().__init__(classes=classes)
        self._label = Static(Content(safe_line(speaker)), classes="turn-speaker")
        self._label.styles.width = names_width

    def compose(self) -> ComposeResult:
        yield self._label
        with Vertical(classes="turn-body"):
            yield from self.compose_said()

    def compose_said(self) -> ComposeResult:
        """Yield the widgets of the column; the base has none."""
        yield from ()

    @property
    def body(self) -> Widget:
        """The column."""
        return self.children[1]


class ChatQuestion(ChatTurn):
    """The user's question."""

    DEFAULT_CSS = """
    ChatQuestion {
        pointer: pointer;
        &.-chosen { background: $panel; }
    }
    """

    chosen: reactive[bool] = reactive(False, init=False, toggle_class="-chosen")
    """Asking again and editing are about this one."""

    class Clicked(Message):
        """The user clicked on a question."""

        def __init__(self, question: ChatQuestion) -> None:
            super().__init__()
            self.question = question

    def __init__(self, question: str, *, names_width: int) -> None:
        super().__init__("you", names_width=names_width, classes="-you")
        self.question = question

    def watch_chosen(self, chosen: bool) -> None:
        self._label.update("▸you" if chosen else "you")

    def on_click(self) -> None:
        self.post_message(self.Clicked(self))

    def compose_said(self) -> ComposeResult:
        """The words as they were typed."""
        yield Static(Content(safe(self.question)), classes="turn-question")
