"""The conversation so far: scrolls, follows its end, shows the newest turns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

from rich.cells import cell_len
from textual import events, on, work
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.geometry import Region
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget
from textual.widgets import Static

from backends.state import Answering, Conversation, Turn
from backends.units import format_count
from tui.model.names import model_name
from tui.screens.cluster.answer import ChatAnswer, ChatQuestion, speaker_of
from tui.widgets.background_errors import report_worker
from tui.widgets.keys import with_keys
from tui.widgets.safe_text import safe
from tui.widgets.text_search import TextLine

Key = tuple[str, int, int, float]


class ShownTurn(NamedTuple):
    """The widgets of a turn, and what they would have to be made anew for."""

    key: Key
    question: ChatQuestion
    answer: ChatAnswer


def turn_key(turn: Turn) -> Key:
    """Tells a turn from another, and one answer to it from the next."""
    return turn.asked, len(turn.replies), turn.shown, turn.reply.at


def speaker_in(turn: Turn, otherwise: str) -> str:
    model = turn.reply.model
    return speaker_of(model_name(model)) if model else otherwise


def width_of(turns: Sequence[Turn], otherwise: str) -> int:
    """Cells for names, the same in all turns."""
    speakers = {speaker_in(turn, otherwise) for turn in turns}
    return max(map(cell_len, speakers | {otherwise, "you"})) + 2


SHOWN_TURNS = 8
"""Turns laid out: each word of an answer costs the more the more there are."""


def chat_lines(turns: Iterable[Turn], otherwise: str) -> Iterator[TextLine]:
    """Questions and answers as lines to search, each message with its speaker."""
    for turn in turns:
        for speaker, text in (
            ("you", turn.asked),
            (speaker_in(turn, otherwise), turn.reply.text),
        ):
            first, *others = safe(text).split("\n")
            yield TextLine(first, speaker)
            yield from map(TextLine, others)
        yield TextLine("")


class TurnColumn(Vertical):
    """The turns, which say when they take more room."""

    DEFAULT_CSS = "TurnColumn { height: auto; min-height: 100%; padding: 0 1 0 0; }"

    class Grew(Message):
        """The column has another height."""

    def on_resize(self) -> None:
        self.post_message(self.Grew())


class ChatTranscript(VerticalScroll, can_focus=True):
    """Questions and answers, oldest first."""

    HELP = """\
## Conversation

- **{chat.write:or}** goes to the text field, **{app.back}** back to the screen
- **{chat.up} {chat.down}**, arrows and page keys look back: new words no longer move
  the text; **{chat.first}** goes to the top and shows earlier turns, **{chat.last}** to
  the newest and follows again
- **{chat.earlier_question:or}** chooses a question (a click does too), and
  **{chat.later_question:or}** the next; without one the last is meant
- **{chat.again}** asks it again, also on another split or with other settings,
  **{chat.edit}** in other words. All answers stay, each with what followed it:
  **{chat.earlier_answer} {chat.later_answer}** go from one to the other, and a chosen
  question lists them with their figures (a click goes on from one)
- **{chat.new}** begins another chat, **{chat.open}** opens an earlier one,
  **{chat.delete}** deletes this one; **{chat.undo}** takes back what you did last
- **{chat.find}** searches the whole chat: **{search.next} {search.previous}** go from
  match to match, **{search.leave}** comes back to where you were
- **{chat.rename}** names the chat, **{chat.export}** writes it to a file
- **{chat.reasoning}** shows or folds what the model thought
- **{chat.settings}** sets the system prompt and how tokens are drawn
- **{app.copy}** copies the selection, else the answer; drag selects
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
    chosen: reactive[int | None] = reactive(None, init=False, repaint=False)
    """Index of the question that asking again and editing are about; None: the last."""
    hint: reactive[str] = reactive("")
    unseen: reactive[int] = reactive(0, repaint=False)
    """Rows that came below what the user looks at."""

    class Chose(Message):
        """Another question is chosen, or none."""

    class Edited(Message):
        """The chosen question was clicked on once more: to be edited."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._seen_height = 0
        self._all: tuple[Turn, ...] = ()
        self._shown: list[ShownTurn] = []
        self._first = 0
        self._told_earlier = 0
        self._shown_of = ("", 0)
        self._speaker = "model"
        self._turns = TurnColumn()
        self._hint = Static(classes="transcript-hint", markup=False)
        self._more = Static(classes="transcript-earlier", markup=False)

    def compose(self) -> ComposeResult:
        with self._turns:
            yield self._more
            yield self._hint

    def on_mount(self) -> None:
        self.anchor()

    on_worker_state_changed = report_worker

    @property
    def answers(self) -> list[ChatAnswer]:
        return [shown.answer for shown in self._shown]

    # --- turns ----------------------------------------------------------------

    def show(self, conversation: Conversation, answering: Answering | None) -> None:
        turns = conversation.turns
        self._hint.display = not turns
        width = width_of(turns, self._speaker)
        if (conversation.id, width) != self._shown_of:
            if conversation.id != self._shown_of[0]:
                self.chosen = None
            self._shown_of = conversation.id, width
            self._drop(0)
            self._first = max(0, len(turns) - SHOWN_TURNS)
        self._first = min(self._first, max(0, len(turns) - 1))
        pairs = zip(self._shown, turns[self._first :], strict=False)
        same = takewhile(lambda pair: pair[0].key == turn_key(pair[1]), pairs)
        kept = sum(1 for _ in same)
        self._drop(kept)
        new = [self._made(turn) for turn in turns[self._first + kept :]]
        self._shown += new
        if new:
            self._turns.mount_all(_widgets(new))
            surplus = max(0, len(self._shown) - SHOWN_TURNS)
            self._drop(0, surplus)
            self._first += surplus
        self._all = turns
        self._count_earlier()
        if turns:
            self._follow_answer()
            self._shown[-1].answer.show(turns[-1], answering)
        if new and not self._keeps_chosen():
            self.follow()

    def _keeps_chosen(self) -> bool:
        chosen, last = self.chosen, len(self._all) - 1
        if chosen is not None and chosen > last:
            self.chosen = chosen = None
        self._mark()
        if chosen is None or chosen == last:
            return False
        self.call_after_refresh(self._show_chosen)
        return True

    def set_speaker(self, speaker: str) -> None:
        self._speaker = speaker

    @property
    def speaker(self) -> str:
        """The name of who answers, where an answer has none."""
        return self._speaker

    def _drop(self, first: int, end: int | None = None) -> None:
        for widget in _widgets(self._shown[first:end]):
            widget.remove()
        del self._shown[first:end]

    def _made(self, turn: Turn) -> ShownTurn:
        width = self._shown_of[1]
        question = ChatQuestion(turn.asked, names_width=width)
        answer = ChatAnswer(speaker_in(turn, self._speaker), names_width=width)
        answer.show(turn, None)
        return ShownTurn(turn_key(turn), question, answer)

    def _count_earlier(self) -> None:
        if self._first != self._told_earlier:
            self._told_earlier = self._first
            self._more.display = self._first > 0
            count = format_count(self._first, "earlier question")
            shows = with_keys(self.app, "{chat.first} shows")
            self._more.update(f"▲ {count} · {shows}")

    @work(group="earlier", exclusive=True, exit_on_error=False)
    async def show_earlier(self) -> None:
        """Show more turns on top; what is looked at stays where it is."""
        first = max(0, self._first - SHOWN_TURNS)
        if first == self._first:
            return
        self.release_anchor()
        self.following = False
        height, at = self._turns.size.height, self.scroll_y
        made = [self._made(turn) for turn in self._all[first : self._first]]
        self._shown[:0] = made
        self._first = first
        await self._turns.mount_all(_widgets(made), after=self._hint)
        for one in made:
            await one.answer.drawn_whole.wait()
        self._count_earlier()
        self._mark()
        if self.chosen is not None and self.chosen < first + SHOWN_TURNS:
            self.call_after_refresh(self._show_chosen)
            return

        def stay() -> None:
            grown = self._turns.size.height - height
            self.scroll_to(y=at + grown, animate=False)

        self.call_after_refresh(stay)

    # --- choosing ---------------------------------------------------------------

    def choose(self, by: int) -> None:
        """Choose the question before or the next; beyond the last, none."""
        last = len(self._all) - 1
        chosen = max(0, (last + 1 if self.chosen is None else self.chosen) + by)
        self.chosen = chosen if chosen <= last else None

    def watch_chosen(self, chosen: int | None) -> None:
        self._mark()
        if chosen is None:
            self.follow()
        elif chosen < self._first:
            self.show_earlier()
        self._show_chosen()
        self.post_message(self.Chose())

    def _mark(self) -> None:
        for index, shown in enumerate(self._shown, start=self._first):
            shown.question.chosen = shown.answer.compared = index == self.chosen

    def _show_chosen(self) -> None:
        index = -1 if self.chosen is None else self.chosen - self._first
        if 0 <= index < len(self._shown):
            self.release_anchor()
            question = self._shown[index].question
            self.scroll_to_widget(question, top=True, animate=False)

    @on(ChatQuestion.Clicked)
    def _question_clicked(self, event: ChatQuestion.Clicked) -> None:
        for index, shown in enumerate(self._shown, start=self._first):
            if shown.question is event.question:
                if index == self.chosen:
                    self.post_message(self.Edited())
                self.chosen = index

    def region_of(self, turn: int) -> Region | None:
        """The question of a turn on the screen, if it is laid out."""
        at = turn - self._first
        shown = self._shown[at].question if 0 <= at < len(self._shown) else None
        return shown.region.intersection(self.region) if shown else None

    # --- scrolling --------------------------------------------------------------

    def action_scroll_home(self) -> None:
        if self.scroll_y == 0:
            self.show_earlier()
        self.scroll_home(animate=False)

    def follow(self) -> None:
        self.following = True
        self.scroll_end(animate=False)

    def watch_following(self) -> None:
        self._seen_height = self._turns.size.height
        self._count_unseen()
        grown = self._follow_answer()
        if grown and not self.following:
            self._seen_height += grown
            self.call_after_refresh(self._stay, grown)

    def on_resize(self) -> None:
        self._follow_answer()

    def _follow_answer(self) -> int:
        if not self._shown:
            return 0
        view_rows = max(1, self.size.height) if self.following else None
        return self._shown[-1].answer.follow(view_rows)

    def _stay(self, grown: int) -> None:
        if self.scroll_y > 0:
            self.scroll_to(y=self.scroll_y + grown, animate=False)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self.following = round(new_value) >= self.max_scroll_y

    def watch_hint(self, hint: str) -> None:
        self._hint.update(Content(safe(hint)))

    @on(TurnColumn.Grew)
    def _count_unseen(self) -> None:
        grown = max(0, self._turns.size.height - self._seen_height)
        self.unseen = 0 if self.following else grown

    def on_click(self, event: events.Click) -> None:
        if event.widget is self._more:
            self.show_earlier()


def _widgets(turns: Iterable[ShownTurn]) -> list[Widget]:
    return [widget for turn in turns for widget in (turn.question, turn.answer)]
