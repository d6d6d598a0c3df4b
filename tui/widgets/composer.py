"""Where a question is written: Enter sends it, ctrl+j makes a new line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual.message import Message
from textual.reactive import reactive
from textual.widgets import TextArea

from tui.actions import bindings
from tui.widgets.chat_conversation import PromptHistory

if TYPE_CHECKING:
    from textual import events
    from textual.binding import BindingType

READY_HINT = "Ask something · Enter sends · ctrl+j or shift+enter: new line"
SHORT_HINT = "Enter sends · ctrl+j, shift+enter: new line"
BUSY_HINT = "Esc stops the answer"


class Composer(TextArea):
    """A text field that grows to six rows and remembers what was asked."""

    HELP: ClassVar[str | None] = """\
## Ask

- **Enter** sends, **ctrl+j** or **shift+enter** begins a new line
- **↑** in an empty field brings back what you asked before, **↓** the newer ones
- **PgUp PgDn** scroll the conversation while you type
- **Esc** stops an answer; otherwise it leaves the field for the conversation,
  where `r` asks again, `E` edits the last question, `n` starts anew, `v` shows the
  reasoning and `p` sets the system prompt and sampling
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

    TAKES_DIGITS: ClassVar[bool] = True
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

        @property
        def control(self) -> Composer:
            """The composer it was written in."""
            return self.composer

    @dataclass
    class Refused(Message):
        """The user tried to send and could not."""

        composer: Composer
        reason: str

        @property
        def control(self) -> Composer:
            """The composer that refused."""
            return self.composer

    @dataclass
    class Paged(Message):
        """The user wants to scroll the conversation."""

        composer: Composer
        direction: int
        """-1 up, 1 down."""

        @property
        def control(self) -> Composer:
            """The composer it was asked in."""
            return self.composer

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        """Create an empty composer that cannot send yet."""
        super().__init__(
            id=id, compact=True, highlight_cursor_line=False, tab_behavior="focus"
        )
        self.prompts = PromptHistory()
        self.can_focus = False

    def on_mount(self) -> None:
        """Say what can be done."""
        self._hint()

    def watch_ready(self, ready: bool) -> None:
        """Open or close; an unsent draft is never taken from under the cursor."""
        self.set_class(not ready, "-closed")
        if ready or not (self.has_focus and self.text):
            self.can_focus = ready
        if not self.can_focus and self.has_focus:
            self.screen.set_focus(None)
        self._hint()

    def watch_busy(self) -> None:
        """Say that Esc stops."""
        self._hint()

    def watch_reason(self) -> None:
        """Say why it is closed."""
        self._hint()

    def _hint(self) -> None:
        """Choose the placeholder."""
        if not self.ready:
            self.placeholder = self.reason
        elif self.busy:
            self.placeholder = BUSY_HINT
        else:
            wide = not self.size.width or self.size.width > len(READY_HINT)
            self.placeholder = READY_HINT if wide else SHORT_HINT

    def write(self, text: str) -> None:
        """Put text in place of what is there, cursor at its end."""
        self.load_text(text)
        self.move_cursor(self.document.end)

    def action_send(self) -> None:
        """Send what is written."""
        question = self.text.strip()
        if not question:
            return
        if self.busy:
            self.post_message(
                self.Refused(self, "An answer is still coming: Esc stops it.")
            )
        elif not self.ready:
            self.post_message(self.Refused(self, self.reason))
        else:
            self.prompts.add(question)
            self.load_text("")
            self.post_message(self.Sent(self, question))

    def action_newline(self) -> None:
        """Begin a new line."""
        start, end = self.selection
        self._replace_via_keyboard("\n", start, end)

    def action_page(self, direction: int) -> None:
        """Scroll the conversation a page."""
        self.post_message(self.Paged(self, direction))

    def action_cursor_up(self, select: bool = False) -> None:
        """Bring back an older prompt, where there is no text to move in."""
        walking = not self.text or self.text == self.prompts.shown
        if select or not walking or not self.cursor_at_first_line:
            super().action_cursor_up(select)
        elif (older := self.prompts.older(self.text)) is not None:
            self.write(older)

    def action_cursor_down(self, select: bool = False) -> None:
        """Bring back a newer prompt, at last the draft."""
        walking = self.text == self.prompts.shown
        if select or not walking or not self.cursor_at_last_line:
            super().action_cursor_down(select)
        elif (newer := self.prompts.newer()) is not None:
            self.write(newer)

    def on_key(self, event: events.Key) -> None:
        """Send and break lines at once.

        A binding would run after the keys typed behind it, because they are taken here
        while the binding waits for the app: "a", ctrl+j, "b" typed fast would be "ab".
        """
        bound = self._bindings.key_to_bindings.get(event.key, [])
        actions = {binding.action for binding in bound}
        if "send" in actions:
            self.action_send()
        elif "newline" in actions:
            self.action_newline()
        if event.key == "enter" or actions & {"send", "newline"}:
            event.stop()
            event.prevent_default()

    def on_blur(self) -> None:
        """Close for good once the draft is left."""
        self.can_focus = self.ready

    def on_resize(self, event: events.Resize) -> None:
        """Say less where there is less room."""
        self._hint()
