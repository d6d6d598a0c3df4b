"""The chat: a transcript, a composer, and what the app needs to know of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from textual import on
from textual.actions import SkipAction
from textual.containers import Container, Horizontal
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Static

from backends.state import Sampling
from backends.units import format_count
from tui.actions.keymap import bindings
from tui.app.messages import Copyable, Notice
from tui.screens.cluster.chat.composer import Composer
from tui.screens.cluster.chat.transcript import ChatTranscript
from tui.screens.cluster.chat.turn import speaker_of
from tui.screens.cluster.chat.variants import AnswerVariants
from tui.widgets.keys import with_keys
from tui.widgets.strips import resubtitle, retitle

if TYPE_CHECKING:
    from textual import events
    from textual.app import ComposeResult
    from textual.binding import BindingType

    from backends.state import ChatState, Conversation, Turn

Verb = Literal[
    "stop",
    "again",
    "new",
    "undo",
    "open",
    "rename",
    "delete",
    "export",
    "settings",
    "choose",
]
"""Requests about a chat to the app."""

AGAIN = "editing question %d · {chat.leave} cancels"
READY_HINT = "No messages yet. {chat.settings}: system prompt, sampling."


class ChatPane(Widget):
    """A conversation with the model that is running."""

    HELP: ClassVar[str | None] = ChatTranscript.HELP

    BINDINGS: ClassVar[list[BindingType]] = bindings("chat")

    DEFAULT_CSS = """
    ChatPane {
        layout: vertical;
        layers: words badge;
        & > .chat-words { height: 1fr; layers: words badge; padding: 0 0 0 1; }
        & .chat-unseen {
            layer: badge;
            dock: bottom;
            width: 100%;
            height: 1;
            display: none;
            text-align: right;
            padding: 0 2 0 0;
            background: transparent;
            color: $primary;
            text-style: bold;
            pointer: pointer;
        }
        & > .chat-entry {
            height: auto;
            max-height: 6;
            padding: 0 0 0 1;
            & > .chat-sign { width: 2; height: 1; color: $dim; }
            &:focus-within > .chat-sign { color: $primary; text-style: bold; }
        }
    }
    """

    @dataclass
    class Asked(Message):
        """The user wants an answer."""

        pane: ChatPane
        question: str
        again: int | None = None
        """Index of the question that it takes the place of; None: it is new."""

    @dataclass
    class Wanted(Message):
        """The user wants something done with the chat."""

        pane: ChatPane
        verb: Verb
        turn: int = 0
        """Index of the question it is about."""
        shown: int = 0
        """Index of the answer it is about."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, classes=classes)
        self.border_title = "Chat"
        self._state: ChatState | None = None
        self._asked_at: int | None = None
        self.can_undo = False
        """Something was done that ``u`` takes back."""
        self._ready = self._returning = False
        self._transcript = ChatTranscript(id="chat-transcript")
        self._unseen = Static(classes="chat-unseen", markup=False)
        self._composer = Composer(id="chat-composer")

    def compose(self) -> ComposeResult:
        with Container(classes="chat-words"):
            yield self._transcript
            yield self._unseen
        with Horizontal(classes="chat-entry"):
            yield Static("›", classes="chat-sign", markup=False)
            yield self._composer

    # --- what the app calls and reads ---------------------------------------

    @property
    def conversation(self) -> Conversation | None:
        """The conversation shown; None before the controller has sent one."""
        return self._state.conversation if self._state else None

    @property
    def answering(self) -> bool:
        """True if an answer comes, or was just requested."""
        coming = self._state is not None and self._state.answering is not None
        return coming or self._asked_at is not None

    def show(self, state: ChatState) -> None:
        """Show a conversation as it is now."""
        before, self._state = self._state, state
        now = state.conversation
        taken = self._asked_at is not None and state.seq > self._asked_at
        if before is None or before.conversation.id != now.id:
            taken = True
        if taken or not before or not before.conversation.turns:
            self._composer.prompts.replace(turn.asked for turn in now.turns)
        self._transcript.show(now, state.answering)
        self._asked_at = None if taken else self._asked_at
        if taken or before is None or _looks(before) != _looks(state):
            self._settle()

    def sent_back(self, question: str, again: int | None = None) -> None:
        """Keep the text of a question that could not be sent."""
        self._asked_at = None
        if question and again is not None:
            self._composer.take_up(question, again)
        elif question and not self._composer.text:
            self._composer.write(question)
        self._settle()

    def set_ready(self, ready: bool, reason: str, *, returning: bool = False) -> None:
        """Let questions be sent, or say why not; ``returning``: they soon can be."""
        self._ready, self._returning = ready, returning
        self._composer.reason = reason
        self._composer.ready = ready
        self._transcript.hint = with_keys(self.app, READY_HINT) if ready else ""
        self._settle()

    def set_model(self, name: str) -> None:
        """Name the speaker of answers to come."""
        self._transcript.set_speaker(speaker_of(name))

    def focus_default(self) -> None:
        """Focus the composer, or the transcript if it takes no question."""
        writes = self._ready or self._returning or self._composer.text
        target = self._composer if writes else self._transcript
        self.screen.set_focus(target)

    def copyable(self) -> Copyable | None:
        """The selected text, else the chosen answer, else the last."""
        if selected := self.screen.get_selected_text():
            return Copyable(what="the selection", text=selected)
        if (chosen := self._transcript.chosen) is not None:
            text = self._turns[chosen].reply.text
            return Copyable(what=f"answer {chosen + 1}", text=text) if text else None
        answers = [turn.reply.text for turn in self._turns if turn.reply.text]
        return Copyable(what="the last answer", text=answers[-1]) if answers else None

    @property
    def _turns(self) -> tuple[Turn, ...]:
        return self.conversation.turns if self.conversation else ()

    # --- asking -------------------------------------------------------------

    @on(Composer.Sent)
    def _question_sent(self, event: Composer.Sent) -> None:
        event.stop()
        self._asked_at = self._state.seq if self._state else 0
        if event.again is None:
            self._transcript.chosen = None
        self._settle()
        self.post_message(self.Asked(self, event.question, event.again))

    @on(Composer.Refused)
    def _question_refused(self, event: Composer.Refused) -> None:
        event.stop()
        self.post_message(Notice(event.reason, "warning"))

    @on(Composer.Paged)
    def _paged(self, event: Composer.Paged) -> None:
        event.stop()
        self.action_scroll_pages(event.direction)

    def _settle(self) -> None:
        """Follow what is going on: field, border, keys."""
        self._composer.busy = self.answering
        conversation = self.conversation
        if conversation is None:
            return
        retitle(self, f"Chat · {conversation.name}".rstrip(" ·"))
        settings = []
        if (again := self._composer.again) is not None:
            settings.append(with_keys(self.app, AGAIN % (again + 1)))
        if conversation.system.strip():
            settings.append("system prompt")
        if conversation.sampling != Sampling():
            settings.append("own sampling")
        resubtitle(self, " · ".join(settings))
        self.refresh_bindings()

    # --- actions ------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        turns, idle = bool(self._turns), not self.answering
        match action:
            case "stop_answer":
                return not idle
            case "leave":
                chosen = self._transcript.chosen is not None
                return idle and (chosen or self._composer.has_focus)
            case "write":
                return not self._composer.has_focus
            case "want":
                return self._may(str(parameters[0]))
            case "choose":
                return turns and not self._composer.has_focus
            case "edit":
                return turns and idle and self._ready
            case "variant":
                return turns and idle and len(self._turns[self._meant].replies) > 1
        return True

    def _may(self, verb: str) -> bool:
        """True if the verb makes sense now."""
        now, turns = self.conversation, bool(self._turns)
        if now is None:
            return False
        if verb in {"rename", "export"}:
            return turns
        if verb in {"settings", "open"}:
            return True
        if self.answering:
            return False
        if verb == "undo":
            return self.can_undo
        return turns and (verb != "again" or self._ready)

    def action_stop_answer(self) -> None:
        self.post_message(self.Wanted(self, "stop"))

    def action_leave(self) -> None:
        if not self._composer.has_focus:
            self._transcript.chosen = None
        self._composer.let_go()
        self._settle()
        self.screen.set_focus(self._transcript)

    def action_write(self) -> None:
        self.screen.set_focus(self._composer)

    def action_want(self, verb: Verb) -> None:
        if verb == "again":
            self._asked_at = self._state.seq if self._state else 0
            self._settle()
        self.post_message(self.Wanted(self, verb, self._meant))

    def action_choose(self, by: int) -> None:
        self._transcript.choose(by)

    @on(ChatTranscript.Chose)
    def _chose(self, event: ChatTranscript.Chose) -> None:
        event.stop()
        self.refresh_bindings()

    @on(ChatTranscript.Edited)
    def action_edit(self) -> None:
        if self.check_action("edit", ()):
            turn = self._meant
            self._composer.take_up(self._turns[turn].asked, turn)
            self._settle()
            self.focus_default()

    def action_variant(self, by: int) -> None:
        turn = self._turns[self._meant]
        self._go_on_from((turn.shown + by) % len(turn.replies))

    @on(AnswerVariants.Picked)
    def _variant_picked(self, event: AnswerVariants.Picked) -> None:
        event.stop()
        if self.check_action("variant", ()):
            self._go_on_from(event.shown)

    def _go_on_from(self, shown: int) -> None:
        self.post_message(self.Wanted(self, "choose", self._meant, shown))

    @property
    def _meant(self) -> int:
        chosen = self._transcript.chosen
        return len(self._turns) - 1 if chosen is None else chosen

    def action_toggle_reasoning(self) -> None:
        answers = self._transcript.answers
        chosen = [answer for answer in answers if answer.compared]
        thought = [answer for answer in chosen or answers if answer.reasoning.text]
        if not thought:
            raise SkipAction
        thought[-1].reasoning.toggle()

    def action_scroll_lines(self, lines: int) -> None:
        self._transcript.scroll_relative(y=lines, animate=False)

    def action_scroll_pages(self, pages: int) -> None:
        height = max(1, self._transcript.size.height - 1)
        self._transcript.scroll_relative(y=pages * height, animate=False)

    def action_scroll_first(self) -> None:
        self._transcript.action_scroll_home()

    def action_scroll_last(self) -> None:
        self._transcript.follow()

    @on(ChatTranscript.Unseen)
    def _unseen_changed(self, event: ChatTranscript.Unseen) -> None:
        event.stop()
        self._unseen.display = event.rows > 0
        words = f"↓ {format_count(event.rows, 'new line')}"
        self._unseen.update(words, layout=False)

    def on_click(self, event: events.Click) -> None:
        if event.widget is self._unseen:
            self._transcript.follow()


def _looks(state: ChatState) -> tuple[object, ...]:
    now = state.conversation
    turns = tuple(len(turn.replies) for turn in now.turns)
    return now.id, now.name, now.system, now.sampling, turns, state.answering is None
