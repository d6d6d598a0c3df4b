"""The conversation so far: scrolls, follows its end, shows the newest turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual import on
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.widgets import Static

from tui.widgets.chat_answer import ChatAnswer
from tui.widgets.chat_turn import ChatQuestion, ChatTurn, names_width

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult

    from tui.widgets.chat_conversation import Turn

SHOWN_TURNS = 30
"""Turns drawn; older ones are remembered but no longer laid out on every word."""


class TurnColumn(Vertical):
    """The turns, which say when they take more room."""

    DEFAULT_CSS = """
    TurnColumn { height: auto; min-height: 100%; }
    """

    class Grew(Message):
        """The column has another height."""

    def on_resize(self) -> None:
        """Tell."""
        self.post_message(self.Grew())


class ChatTranscript(VerticalScroll, can_focus=True):
    """Questions and answers, oldest first."""

    HELP = """\
## Conversation

- **Enter** or **i** goes to the text field, **Esc** back to the screen
- **↑ ↓ j k PgUp PgDn Home** look back: new words no longer move the text;
  **End** goes to the newest and follows again
- **r** asks the last question again, **E** edits it, **n** begins anew,
  **u** brings back what these three took away
- **v** shows or folds what the model thought
- **p** sets the system prompt and how tokens are drawn
- **y** copies the selection, else the last answer; drag selects
"""

    DEFAULT_CSS = """
    ChatTranscript {
        height: 1fr;
        scrollbar-size: 1 1;
        & .transcript-hint { color: $dim; }
    }
    """

    following: reactive[bool] = reactive(True, repaint=False)
    """New words scroll into view."""
    hint: reactive[str] = reactive("")
    """Shown while nothing has been said."""

    @dataclass
    class Unseen(Message):
        """Rows came below what the user looks at; 0 when they are seen."""

        transcript: ChatTranscript
        rows: int

        @property
        def control(self) -> ChatTranscript:
            """The transcript that grew."""
            return self.transcript

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        """Create an empty transcript."""
        super().__init__(id=id)
        self._seen_height = 0
        self._turns = TurnColumn()
        self._hint = Static(classes="transcript-hint", markup=False)

    def compose(self) -> ComposeResult:
        """The column of turns, at first only a hint."""
        with self._turns:
            yield self._hint

    def on_mount(self) -> None:
        """Stay at the end."""
        self.anchor()

    @property
    def answers(self) -> list[ChatAnswer]:
        """The answers shown, oldest first."""
        return [turn for turn in self._turns.children if isinstance(turn, ChatAnswer)]

    @property
    def turns(self) -> list[ChatTurn]:
        """Questions and answers shown, oldest first."""
        return [turn for turn in self._turns.children if isinstance(turn, ChatTurn)]

    def ask(self, question: str, speaker: str) -> ChatAnswer:
        """Show a question and the beginning of its answer, scrolled into view."""
        answer = ChatAnswer(speaker)
        self._hint.display = False
        asked = ChatQuestion(question, names_width=names_width(speaker))
        self._turns.mount(asked, answer)
        self._drop_oldest()
        self.follow()
        return answer

    def take_back(self) -> None:
        """Remove the last question and its answer."""
        for turn in self.turns[-2:]:
            turn.remove()
        self._hint.display = len(self.turns) <= 2

    async def show(self, turns: Sequence[Turn], speaker: str) -> None:
        """Show other turns instead of these."""
        await self._turns.remove_children(ChatTurn)
        self._hint.display = not turns
        shown: list[ChatTurn] = []
        for turn in turns[-SHOWN_TURNS:]:
            shown.append(ChatQuestion(turn.question, names_width=names_width(speaker)))
            shown.append(ChatAnswer(speaker, turn.answer, done=True))
        await self._turns.mount_all(shown)
        self.follow()

    def _drop_oldest(self) -> None:
        """Remove turns over the limit."""
        for turn in self.turns[: -SHOWN_TURNS * 2]:
            turn.remove()

    def follow(self) -> None:
        """Go to the newest words and stay there."""
        self.following = True
        self.scroll_end(animate=False)

    @on(TurnColumn.Grew)
    def _column_grew(self, event: TurnColumn.Grew) -> None:
        event.stop()
        self._count_unseen()

    def _count_unseen(self) -> None:
        """Say how many rows came since the user looked away."""
        grown = max(0, self._turns.size.height - self._seen_height)
        self.post_message(self.Unseen(self, 0 if self.following else grown))

    def watch_hint(self, hint: str) -> None:
        """Show another hint."""
        self._hint.update(Content(hint))

    def watch_following(self) -> None:
        """Remember what was seen when the user turns away from the end."""
        self._seen_height = self._turns.size.height
        self._count_unseen()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Scrolling up stops following; reaching the end resumes it."""
        super().watch_scroll_y(old_value, new_value)
        self.following = round(new_value) >= self.max_scroll_y
