"""The field for a question: Enter sends it, ctrl+j makes a new line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual.message import Message
from textual.reactive import reactive
from textual.widgets import TextArea

from tui.actions.keymap import bindings
from tui.model.prompts import PromptHistory
from tui.widgets.keys import with_keys

if TYPE_CHECKING:
    from textual import events
    from textual.binding import BindingType

READY_HINT = "Ask something · {composer.send} sends · {composer.newline:or}: new line"
SHORT_HINT = "{composer.send} sends · {composer.newline:list}: new line"
BUSY_HINT = "{chat.stop} stops the answer"


class Composer(TextArea):
    """A text field that grows to six rows and remembers earlier questions."""

    HELP: ClassVar[str | None] = """\
## Ask

- **{composer.send}** sends, **{composer.newline:or}** begins a new line
- the arrow **up** in an empty field brings back what you asked before, **down** the
  newer ones
- **{composer.page_up} {composer.page_down}** scroll the conversation while you type
- **{chat.stop}** stops an answer; otherwise it leaves the field for the conversation,
  where `{chat.again}` asks again, `{chat.edit}` edits a question, `{chat.new}` starts
  anew, `{chat.reasoning}` shows the reasoning and `{chat.settings}` sets the system
  prompt and sampling
"""

    BINDINGS: ClassVar[list[BindingType]] = bindings("composer")

    DEFAULT_CSS = """
    Composer {
        height: auto;
        min-height: 1;
        max-height: 6;
        padding: 0;
        border: none;
        background: transparent;
        scrollbar-size: 1 1;
        &:focus { border: none; }
        & > .text-area--cursor-line { background: transparent; }
        & > .text-area--placeholder { color: $dim; }
        &.-closed > .text-area--placeholder { color: $dim; }
    }
    """

    takes_digits: ClassVar[bool] = True
    """The key bar shows F1 for 1 while this has the focus."""

    ready: reactive[bool] = reactive(False)
    """A question can be answered."""
    busy: reactive[bool] = reactive(False)
    """An answer is coming."""
    reason: reactive[str] = reactive("")
    """Why no question can be answered."""

    @dataclass
    class Sent(Message):
        """The user sent a question."""

        composer: Composer
        question: str
        again: int | None = None
        """Index of the question that it takes the place of; None: it is new."""

    @dataclass
    class Refused(Message):
        """The user tried to send and could not."""

        composer: Composer
        reason: str

    @dataclass
    class Paged(Message):
        """The user wants to scroll the conversation."""

        composer: Composer
        direction: int
        """-1 up, 1 down."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(
            id=id, compact=True, highlight_cursor_line=False, tab_behavior="focus"
        )
        self.prompts = PromptHistory()
        self.again: int | None = None
        """Index of the question that the user edits."""
        self._draft = ""

    def on_mount(self) -> None:
        self._hint()

    def watch_ready(self, ready: bool) -> None:
        self.set_class(not ready, "-closed")
        self._hint()

    def watch_busy(self) -> None:
        self._hint()

    def watch_reason(self) -> None:
        self._hint()

    def _hint(self) -> None:
        """Choose the placeholder."""
        if not self.ready:
            self.placeholder = with_keys(self.app, self.reason, typing=self.has_focus)
        elif self.busy:
            self.placeholder = with_keys(self.app, BUSY_HINT)
        else:
            ready = with_keys(self.app, READY_HINT)
            wide = not self.size.width or self.size.width > len(ready)
            self.placeholder = ready if wide else with_keys(self.app, SHORT_HINT)

    def take_up(self, question: str, index: int) -> None:
        """Take a question up to ask it again; a draft is kept."""
        if self.again is None:
            self._draft = self.text
        self.again = index
        self.write(question)

    def let_go(self) -> None:
        """Leave the question that was taken up; the draft is back."""
        if self.again is not None:
            self.again = None
            self.write(self._draft)

    def write(self, text: str) -> None:
        """Put text in place of what is there, cursor at its end."""
        self.load_text(text)
        self.move_cursor(self.document.end)

    def action_send(self) -> None:
        question = self.text.strip()
        if not question:
            return
        if self.busy:
            self.post_message(
                self.Refused(self, "An answer is still coming: {chat.stop} stops it.")
            )
        elif not self.ready:
            self.post_message(self.Refused(self, self.reason))
        else:
            self.prompts.add(question)
            again, self.again = self.again, None
            self.load_text("" if again is None else self._draft)
            self.post_message(self.Sent(self, question, again))

    def action_newline(self) -> None:
        start, end = self.selection
        self._replace_via_keyboard("\n", start, end)

    def action_page(self, direction: int) -> None:
        self.post_message(self.Paged(self, direction))

    def action_cursor_up(self, select: bool = False) -> None:
        walking = not self.text or self.text == self.prompts.shown
        if select or not walking or not self.cursor_at_first_line:
            super().action_cursor_up(select)
        elif (older := self.prompts.older(self.text)) is not None:
            self.write(older)

    def action_cursor_down(self, select: bool = False) -> None:
        walking = self.text == self.prompts.shown
        if select or not walking or not self.cursor_at_last_line:
            super().action_cursor_down(select)
        elif (newer := self.prompts.newer()) is not None:
            self.write(newer)

    def on_key(self, event: events.Key) -> None:
        # Textual would break the line before any binding is looked at.
        bound = self.screen.active_bindings.get(event.key)
        if bound is not None and bound.node is self and event.key == "enter":
            event.prevent_default()

    def on_focus(self) -> None:
        self.call_later(self._hint)

    def on_blur(self) -> None:
        self.call_later(self._hint)

    def on_resize(self) -> None:
        self._hint()
