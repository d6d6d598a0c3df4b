"""The chat: a transcript, a composer, and what the app needs to know of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual import on, work
from textual.actions import SkipAction
from textual.containers import Container, Horizontal
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Static

from backends.state import ChatDelta, ChatMessage, ChatRequest, Sampling
from tui.actions import bindings
from tui.messages import Copyable, Notice
from tui.widgets.chat_conversation import Conversation
from tui.widgets.chat_text import count_text
from tui.widgets.chat_transcript import ChatTranscript
from tui.widgets.chat_turn import speaker_of
from tui.widgets.composer import Composer
from tui.widgets.worker_reports import report_worker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual import events
    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.worker import Worker

    from tui.widgets.chat_answer import ChatAnswer

READY_HINT = "Nothing said yet. In here p sets a system prompt and sampling."


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
        request: ChatRequest

        @property
        def control(self) -> ChatPane:
            """The chat it was asked in."""
            return self.pane

    @dataclass
    class Stopped(Message):
        """The user wants no more of this answer."""

        pane: ChatPane

        @property
        def control(self) -> ChatPane:
            """The chat it was stopped in."""
            return self.pane

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        """Create a chat with nothing said.

        Args:
            id: The ID of the widget in the DOM.
            classes: Space separated list of class names.
        """
        super().__init__(id=id, classes=classes)
        self.border_title = "Chat"
        self._conversation = Conversation()
        self._before: Conversation | None = None
        self._sampling = Sampling()
        self._speaker = "model"
        self._ready = False
        self._reason = ""
        self._answer: ChatAnswer | None = None
        self._transcript = ChatTranscript(id="chat-transcript")
        self._unseen = Static(classes="chat-unseen", markup=False)
        self._composer = Composer(id="chat-composer")

    def compose(self) -> ComposeResult:
        """The words above, the text field below."""
        with Container(classes="chat-words"):
            yield self._transcript
            yield self._unseen
        with Horizontal(classes="chat-entry"):
            yield Static("›", classes="chat-sign", markup=False)
            yield self._composer

    # --- what the app calls and reads ---------------------------------------

    @property
    def conversation(self) -> tuple[ChatMessage, ...]:
        """Everything said, system prompt first."""
        return self._conversation.messages

    @property
    def sampling(self) -> Sampling:
        """How tokens are to be drawn."""
        return self._sampling

    @property
    def answering(self) -> bool:
        """An answer is coming."""
        return self._answer is not None

    def restore(self, conversation: Sequence[ChatMessage], sampling: Sampling) -> None:
        """Take up an earlier conversation."""
        self._sampling = sampling
        self._load(Conversation.of(conversation))

    def set_ready(self, ready: bool, reason: str) -> None:
        """Open the composer, or close it and say why."""
        self._ready, self._reason = ready, reason
        self._composer.reason = reason
        self._composer.ready = ready
        self._transcript.hint = READY_HINT if ready else ""
        self._subtitle()

    def set_model(self, name: str) -> None:
        """Name the speaker of answers to come."""
        self._speaker = speaker_of(name)

    def focus_default(self) -> None:
        """Focus the composer, or the transcript where nothing can be asked."""
        target = self._composer if self._composer.can_focus else self._transcript
        target.focus()

    def copyable(self) -> Copyable | None:
        """The selected text, else the last answer."""
        if selected := self.screen.get_selected_text():
            return Copyable(what="the selection", text=selected)
        answers = [turn.answer for turn in self._conversation.turns if turn.answer]
        return Copyable(what="the last answer", text=answers[-1]) if answers else None

    def show_delta(self, delta: ChatDelta) -> None:
        """Take in a piece of the answer."""
        if self._answer is None:
            return
        self._conversation.turns[-1].answer += delta.text
        self._answer.show_delta(delta)
        if delta.done:
            self._answer = None
            self._composer.busy = False
            self._subtitle()

    # --- asking -------------------------------------------------------------

    @on(Composer.Sent)
    def _question_sent(self, event: Composer.Sent) -> None:
        event.stop()
        self._ask(event.question)

    @on(Composer.Refused)
    def _question_refused(self, event: Composer.Refused) -> None:
        event.stop()
        self.post_message(Notice(event.reason, "warning"))

    @on(Composer.Paged)
    def _paged(self, event: Composer.Paged) -> None:
        event.stop()
        self.action_scroll_pages(event.direction)

    def _ask(self, question: str) -> None:
        """Begin a turn and hand it to the app."""
        self._conversation.ask(question)
        self._answer = self._transcript.ask(question, self._speaker)
        self._composer.busy = True
        self._subtitle()
        request = self._conversation.request(self._sampling)
        self.post_message(self.Asked(self, request))

    def _subtitle(self) -> None:
        """Name on the border the settings in force."""
        settings = []
        if self._conversation.system.strip():
            settings.append("system prompt")
        if self._sampling != Sampling():
            settings.append("own sampling")
        self.border_subtitle = " · ".join(settings)

    def _load(self, conversation: Conversation) -> None:
        """Show another conversation."""
        self._conversation = conversation
        prompts = [turn.question for turn in conversation.turns]
        self._composer.prompts.replace(prompts)
        self._subtitle()
        self._show_turns()

    @work(group="chat-history", exclusive=True, exit_on_error=False)
    async def _show_turns(self) -> None:
        """Draw the turns after the screen has been painted once."""
        await self._transcript.show(self._conversation.turns, self._speaker)

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Let the app report a worker that failed."""
        report_worker(self, event)

    # --- actions ------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer only what can be done now."""
        turns = bool(self._conversation.turns)
        match action:
            case "stop_answer":
                return self.answering
            case "leave":
                return self._composer.has_focus and turns and not self.answering
            case "write":
                return self._ready and not self._composer.has_focus
            case "regenerate":
                return self._ready and turns and not self.answering
            case "edit_last" | "new_conversation":
                return turns and not self.answering
            case "bring_back":
                return self._before is not None and not self.answering
        return True

    def action_stop_answer(self) -> None:
        """Stop the answer."""
        self.post_message(self.Stopped(self))

    def action_leave(self) -> None:
        """Go from the composer to the transcript."""
        self._transcript.focus()

    def action_write(self) -> None:
        """Go to the composer."""
        self._composer.focus()

    def action_regenerate(self) -> None:
        """Ask the last question again."""
        self._ask(self._take_back())

    def action_edit_last(self) -> None:
        """Take the last question back into the composer."""
        self._composer.write(self._take_back())
        self.focus_default()

    def _take_back(self) -> str:
        """Remove the last turn; return its question."""
        self._keep()
        self._transcript.take_back()
        return self._conversation.take_back()

    def _keep(self) -> None:
        """Keep the conversation as it is, to be brought back."""
        self._before = Conversation.of(self.conversation)

    def action_new_conversation(self) -> None:
        """Begin anew; the system prompt stays."""
        self._keep()
        said = count_text(len(self._conversation.turns), "question")
        anew = Conversation()
        anew.system = self._conversation.system
        self._load(anew)
        self.post_message(Notice(f"Began anew. u brings back {said}."))

    def action_bring_back(self) -> None:
        """Exchange the conversation with the one before."""
        before = self._before
        if before is None:
            raise SkipAction
        self._keep()
        self._load(before)

    def action_toggle_reasoning(self) -> None:
        """Fold or unfold what the model thought last."""
        thought = [turn for turn in self._transcript.answers if turn.reasoning.text]
        if not thought:
            raise SkipAction
        thought[-1].reasoning.toggle()

    @work(group="chat-settings", exclusive=True, exit_on_error=False)
    async def action_settings(self) -> None:
        """Set the system prompt and sampling."""
        from tui.widgets.sampling_dialog import SamplingDialog
        from tui.widgets.sampling_fields import ChatSettings

        now = ChatSettings(self._conversation.system, self._sampling)
        chosen = await self.app.push_screen_wait(SamplingDialog(now))
        if chosen is not None:
            self._conversation.system, self._sampling = chosen
            self._subtitle()

    def action_scroll_lines(self, lines: int) -> None:
        """Scroll the transcript by lines."""
        self._transcript.scroll_relative(y=lines, animate=False)

    def action_scroll_pages(self, pages: int) -> None:
        """Scroll the transcript by pages."""
        height = max(1, self._transcript.size.height - 1)
        self._transcript.scroll_relative(y=pages * height, animate=False)

    def action_scroll_first(self) -> None:
        """Go to the oldest turn."""
        self._transcript.action_scroll_home()

    def action_scroll_last(self) -> None:
        """Go to the newest words."""
        self._transcript.follow()

    @on(ChatTranscript.Unseen)
    def _unseen_changed(self, event: ChatTranscript.Unseen) -> None:
        event.stop()
        self._unseen.display = event.rows > 0
        self._unseen.update(f"↓ {count_text(event.rows, 'new line')}")

    def on_click(self, event: events.Click) -> None:
        """The badge leads to the newest words."""
        if event.widget is self._unseen:
            self._transcript.follow()
