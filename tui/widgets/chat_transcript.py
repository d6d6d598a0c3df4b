"""The conversation so far: scrolls, follows its end, shows the newest turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual import on, work
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.widgets import Static

from tui.widgets.chat_answer import ChatAnswer
from tui.widgets.chat_conversation import Turn
from tui.widgets.chat_text import count_text
from tui.widgets.chat_turn import ChatQuestion, ChatTurn, names_width
from tui.widgets.worker_reports import report_worker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual import events
    from textual.app import ComposeResult
    from textual.worker import Worker

SHOWN_TURNS = 8
"""Turns laid out: each word of an answer costs the more the more there are."""


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

    HELP: ClassVar[str | None] = """\
## Conversation

- **Enter** or **i** goes to the text field, **Esc** back to the screen
- **↑ ↓ j k PgUp PgDn** look back: new words no longer move the text; **Home** goes
  to the top and shows earlier turns, **End** to the newest and follows again
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
        & .transcript-earlier {
            display: none;
            color: $dim;
            pointer: pointer;
            &:hover { color: $foreground; }
        }
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
        self._earlier: list[Turn] = []
        self._speaker = ""
        self._turns = TurnColumn()
        self._hint = Static(classes="transcript-hint", markup=False)
        self._more = Static(classes="transcript-earlier", markup=False)

    def compose(self) -> ComposeResult:
        """The column of turns, at first only a hint."""
        with self._turns:
            yield self._more
            yield self._hint

    def on_mount(self) -> None:
        """Stay at the end."""
        self.anchor()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Let the app report a worker that failed."""
        report_worker(self, event)

    @property
    def turns(self) -> list[ChatTurn]:
        """Questions and answers shown, oldest first."""
        return [turn for turn in self._turns.children if isinstance(turn, ChatTurn)]

    @property
    def answers(self) -> list[ChatAnswer]:
        """The answers shown, oldest first."""
        return [turn for turn in self.turns if isinstance(turn, ChatAnswer)]

    # --- turns ----------------------------------------------------------------

    def ask(self, question: str, speaker: str) -> ChatAnswer:
        """Show a question and the beginning of its answer, scrolled into view."""
        self._speaker = speaker
        asked = ChatQuestion(question, names_width=names_width(speaker))
        answer = ChatAnswer(speaker)
        self._turns.mount(asked, answer)
        self._drop_oldest()
        self._hint.display = False
        self.follow()
        return answer

    def take_back(self) -> None:
        """Remove the last question and its answer."""
        turns = self.turns
        for turn in turns[-2:]:
            turn.remove()
        self._hint.display = len(turns) <= 2

    async def show(self, turns: Sequence[Turn], speaker: str) -> None:
        """Show other turns instead of these."""
        self._speaker = speaker
        self._earlier = list(turns)
        self._hint.display = not turns
        await self._turns.remove_children(ChatTurn)
        await self._mount_earlier()
        self.follow()

    async def _mount_earlier(self) -> None:
        """Show some more of the turns before those shown."""
        wanted = self._earlier[-SHOWN_TURNS:]
        del self._earlier[-SHOWN_TURNS:]
        width = names_width(self._speaker)
        shown: list[ChatTurn] = []
        for turn in wanted:
            shown.append(ChatQuestion(turn.question, names_width=width))
            shown.append(ChatAnswer(self._speaker, turn.answer, done=True))
        await self._turns.mount_all(shown, after=self._hint)
        self._count_earlier()

    def _drop_oldest(self) -> None:
        """Stop showing turns over the limit; they can be shown again."""
        surplus = self.turns[: -2 * SHOWN_TURNS]
        for turn in surplus:
            if isinstance(turn, ChatQuestion):
                self._earlier.append(Turn(turn.question))
            elif isinstance(turn, ChatAnswer) and self._earlier:
                self._earlier[-1].answer = turn.text
            turn.remove()
        self._count_earlier()

    def _count_earlier(self) -> None:
        """Say how many turns are not shown."""
        count = len(self._earlier)
        self._more.display = count > 0
        self._more.update(f"↑ {count_text(count, 'earlier question')} · Home shows")

    @work(group="earlier", exclusive=True, exit_on_error=False)
    async def show_earlier(self) -> None:
        """Show more turns on top; what is looked at stays where it is."""
        if not self._earlier:
            return
        self.release_anchor()
        self.following = False
        height, at = self._turns.size.height, self.scroll_y
        await self._mount_earlier()

        def stay() -> None:
            grown = self._turns.size.height - height
            self.scroll_to(y=at + grown, animate=False)

        self.call_after_refresh(stay)

    # --- scrolling --------------------------------------------------------------

    def action_scroll_home(self) -> None:
        """Go to the top; from there, to what was before."""
        if self.scroll_y == 0:
            self.show_earlier()
        self.scroll_home(animate=False)

    def follow(self) -> None:
        """Go to the newest words and stay there."""
        self.following = True
        self.scroll_end(animate=False)

    def watch_following(self) -> None:
        """Remember what was seen when the user turns away from the end."""
        self._seen_height = self._turns.size.height
        self._count_unseen()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Scrolling up stops following; reaching the end resumes it."""
        super().watch_scroll_y(old_value, new_value)
        self.following = round(new_value) >= self.max_scroll_y

    def watch_hint(self, hint: str) -> None:
        """Show another hint."""
        self._hint.update(Content(hint))

    @on(TurnColumn.Grew)
    def _column_grew(self, event: TurnColumn.Grew) -> None:
        event.stop()
        self._count_unseen()

    def _count_unseen(self) -> None:
        """Say how many rows came since the user looked away."""
        grown = max(0, self._turns.size.height - self._seen_height)
        self.post_message(self.Unseen(self, 0 if self.following else grown))

    def on_click(self, event: events.Click) -> None:
        """The line on top shows earlier turns."""
        if event.widget is self._more:
            self.show_earlier()
