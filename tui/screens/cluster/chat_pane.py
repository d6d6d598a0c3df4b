"""The chat: a transcript, a composer, and their state for the app."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
from textual import events, on
from textual.actions import SkipAction
from textual.app import ComposeResult
from textual.containers import Container, Horizontal
from textual.geometry import Region
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Static, TextArea

from backends.state import ChatState, Conversation, Sampling, Turn
from backends.units import format_count
from tui.actions import bindings
from tui.api.services import ChatSession
from tui.app.console import console_of
from tui.app.messages import Copyable, Raw
from tui.model.context_usage import ContextMeter, ContextUsage
from tui.screens.cluster.answer import AnswerVariants, speaker_of
from tui.screens.cluster.transcript import ChatTranscript, chat_lines, width_of
from tui.widgets.keys import with_keys
from tui.widgets.strips import resubtitle, retitle
from tui.widgets.text_search import TextLine, TextSearch


class PromptHistory:
    """Earlier prompts, walked with ↑ and ↓; what was being typed is kept."""

    def __init__(self) -> None:
        self._prompts: list[str] = []
        self._position = 0
        self._draft = ""

    @property
    def shown(self) -> str | None:
        """The prompt walked to; None at the draft."""
        return next(iter(self._prompts[self._position :]), None)

    def replace(self, prompts: Iterable[str]) -> None:
        self._prompts = [prompt for prompt in prompts if prompt.strip()]
        self._position = len(self._prompts)

    def add(self, prompt: str) -> None:
        if self._prompts[-1:] != [prompt]:
            self._prompts.append(prompt)
        self._position = len(self._prompts)
        self._draft = ""

    def older(self, draft: str) -> str | None:
        """Step back; None when there is nothing older."""
        if self._position == 0:
            return None
        if self.shown is None:
            self._draft = draft
        self._position -= 1
        return self.shown

    def newer(self) -> str | None:
        """Step forward, at last to the draft; None when already there."""
        if self.shown is None:
            return None
        self._position += 1
        return self._draft if self.shown is None else self.shown


READY_HINT = "Ask something · {composer.send} sends · {composer.newline:or}: new line"
ELSEWHERE_HINT = "Ask something: {cluster.ask}, or a click"
SHORT_HINT = "{composer.send} sends · {composer.newline:list}: new line"
STILL_COMING = "An answer is still coming: {chat.stop} stops it."
GOES_ON_HINT = " the answer goes on then"
BUSY_HINT = "{chat.stop} stops the answer"


class Composer(TextArea):
    """A text field that grows to six rows and remembers earlier questions."""

    HELP = """\
## Ask

- **{composer.send}** sends, **{composer.newline:or}** begins a new line
- the arrow **up** in an empty field brings back what you asked before, **down** the
  newer ones
- **{composer.page_up} {composer.page_down}** scroll the conversation while you type
- **{composer.find}** searches the chat
- **{chat.compose}** writes the question in your editor (`$VISUAL`, else `$EDITOR`):
  what is saved there comes back into the field
- **{chat.stop}** stops an answer; otherwise it leaves the field for the conversation,
  where `{chat.again}` asks again, `{chat.edit}` edits a question, `{chat.new}` starts
  anew, `{chat.reasoning}` shows the reasoning and `{chat.settings}` sets the system
  prompt and sampling
"""

    BINDINGS = bindings("composer")

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
    }
    """

    takes_digits = True
    """The key bar shows F1 for 1 while this has the focus."""

    ready = False
    busy = False
    returning = False
    """True if questions can be sent soon again, and answers go on."""
    reason = ""
    _styled = False

    @dataclass
    class Sent(Message):
        question: str
        again: int | None = None
        """Index of the question that it takes the place of; None: it is new."""

    @dataclass
    class Paged(Message):
        """The user wants to scroll the conversation."""

        pages: int
        """Below 0: up."""

    class Finding(Message):
        """The user wants to search the conversation."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(
            id=id, compact=True, highlight_cursor_line=False, tab_behavior="focus"
        )
        self.prompts = PromptHistory()
        self.again: int | None = None
        """Index of the question that the user edits."""
        self._draft = ""

    def notify_style_update(self) -> None:
        self._styled = False
        super().notify_style_update()

    def render_lines(self, crop: Region) -> list[Strip]:
        """Draw; Textual looks all styles up again whenever the cursor blinks."""
        if self._styled:
            return ScrollView.render_lines(self, crop)
        self._styled = True
        return super().render_lines(crop)

    def hint(self) -> None:
        if not self.ready:
            said = with_keys(self.app, self.reason, typing=self.has_focus)
            said += GOES_ON_HINT if self.busy and self.returning else ""
        elif self.busy:
            said = with_keys(self.app, BUSY_HINT)
        elif not self.has_focus:
            said = with_keys(self.app, ELSEWHERE_HINT)
        else:
            said = with_keys(self.app, READY_HINT)
            if 0 < self.size.width <= len(said):
                said = with_keys(self.app, SHORT_HINT)
        self.placeholder = said

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
        self.load_text(text)
        self.move_cursor(self.document.end)

    def action_send(self) -> None:
        question = self.text.strip()
        if not question:
            return
        if self.busy:
            console_of(self).tell(STILL_COMING, "warning")
        elif not self.ready:
            console_of(self).tell(self.reason, "warning")
        else:
            self.prompts.add(question)
            again, self.again = self.again, None
            self.load_text("" if again is None else self._draft)
            self.post_message(self.Sent(question, again))

    def action_newline(self) -> None:
        start, end = self.selection
        self._replace_via_keyboard("\n", start, end)

    def action_find(self) -> None:
        self.post_message(self.Finding())

    def action_page(self, direction: int) -> None:
        self.post_message(self.Paged(direction))

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
        self.call_later(self.hint)

    def on_blur(self) -> None:
        self.call_later(self.hint)

    def on_resize(self) -> None:
        self.hint()


COUNT_AFTER_S = 0.4
"""Without a key: then the model's tokenizer is asked."""
AGAIN = "editing question %d · {chat.leave} cancels"
NO_TEMPLATE = "no chat template: in ChatML"
EMPTY_HINT = "No messages yet. {chat.settings}: system prompt, sampling."


class ChatPane(Widget):
    HELP = ChatTranscript.HELP

    BINDINGS = bindings("chat")

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
        & .chat-search {
            layer: badge;
            dock: bottom;
            height: 100%;
            background: $background;
        }
        & > .chat-entry {
            height: auto;
            max-height: 6;
            padding: 0 0 0 1;
            & > .chat-context {
                display: none;
                width: auto;
                height: 1;
                padding: 0 1;
                color: $dim;
                &.-warn { color: $warn; }
                &.-bad { color: $bad; text-style: bold; }
            }
            & > .chat-sign { width: 2; height: 1; color: $dim; }
            &:focus-within > .chat-sign { color: $primary; text-style: bold; }
        }
    }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, classes=classes)
        self.border_title = "Chat"
        self.session: ChatSession
        self._state: ChatState | None = None
        self._asked_at: int | None = None
        self.can_undo = False
        """Something was done that ``u`` takes back."""
        self._ready = self._returning = False
        self._has_template = True
        self._ends = ""
        self._transcript = ChatTranscript(id="chat-transcript")
        self._unseen = Static(classes="chat-unseen", markup=False)
        self._meter = ContextMeter()
        self._used = Static(classes="chat-context", markup=False)
        self._counting: Timer | None = None
        self._words = Container(classes="chat-words")
        self._search: TextSearch | None = None
        self._search_from: Widget | None = None
        """Focused before the search."""
        self._composer = Composer(id="chat-composer")

    def compose(self) -> ComposeResult:
        with self._words:
            yield self._transcript
            yield self._unseen
        with Horizontal(classes="chat-entry"):
            yield Static("›", classes="chat-sign", markup=False)
            yield self._composer
            yield self._used

    def on_mount(self) -> None:
        self.watch(self._transcript, "unseen", self._count_unseen)

    @property
    def conversation(self) -> Conversation | None:
        """The conversation shown; None before the controller has sent one."""
        return self._state.conversation if self._state else None

    @property
    def answering(self) -> bool:
        coming = self._state is not None and self._state.answering is not None
        return coming or self._asked_at is not None

    def show(self, state: ChatState) -> None:
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
            self._measure()
            if self._search is not None:
                self._search.text.load(*self._searched, ends=False)

    def sent_back(self, question: str, again: int | None = None) -> None:
        self._asked_at = None
        if question and again is not None:
            self._composer.take_up(question, again)
        elif question and not self._composer.text:
            self._composer.write(question)
        self._settle()

    def set_ready(self, ready: bool, reason: str, *, returning: bool = False) -> None:
        """Let questions be sent, or say why not; ``returning``: they soon can be."""
        self._ready, self._returning = ready, returning
        self._composer.ready, self._composer.reason = ready, reason
        self._composer.returning = returning
        self._transcript.hint = with_keys(self.app, EMPTY_HINT) if ready else ""
        self._settle()

    def set_model(self, name: str) -> None:
        self._transcript.set_speaker(speaker_of(name))

    def set_template(self, has_template: bool) -> None:
        if has_template != self._has_template:
            self._has_template = has_template
            self._settle()

    def set_context(self, ctx_size: int) -> None:
        """Measure against a slot's context; 0 while nothing serves."""
        if ctx_size != self._meter.ctx_size:
            self._meter.ctx_size = ctx_size
            self._meter.forget()
            self._measure()

    @property
    def draft(self) -> str:
        return self._composer.text

    @draft.setter
    def draft(self, text: str) -> None:
        self._composer.write(text)
        self.screen.set_focus(self._composer)

    def focus_default(self) -> None:
        if self._search is not None:
            self._search.text.focus()
            return
        writes = self._ready or self._returning or self._composer.text
        target = self._composer if writes else self._transcript
        self.screen.set_focus(target)

    def focus_words(self) -> None:
        self.screen.set_focus(self._transcript)

    @property
    def subject(self) -> str:
        if not self._turns:
            return "Chat"
        return f"Question {self._meant + 1}"

    @property
    def subject_region(self) -> Region | None:
        return self._transcript.region_of(self._meant) if self._turns else None

    def copyable(self) -> Copyable | None:
        if selected := self.screen.get_selected_text():
            return Copyable(what="the selection", text=selected)
        if self._search is not None:
            found = self._search.text.found_message
            return Copyable(what="the message", text=found) if found else None
        if (chosen := self._transcript.chosen) is not None:
            text = self._turns[chosen].reply.text
            return Copyable(what=f"answer {chosen + 1}", text=text) if text else None
        answers = [turn.reply.text for turn in self._turns if turn.reply.text]
        return Copyable(what="the last answer", text=answers[-1]) if answers else None

    def raw(self) -> Raw | None:
        if not self._turns:
            chat = self.conversation
            return Raw("the chat", chat) if chat else None
        return Raw(f"question {self._meant + 1}", self._turns[self._meant])

    @property
    def _turns(self) -> tuple[Turn, ...]:
        return self.conversation.turns if self.conversation else ()

    # --- context used ---------------------------------------------------------

    @on(Composer.Changed)
    def _measure(self) -> None:
        self._show_context()
        if self._counting is not None:
            self._counting.stop()
        self._counting = self.set_timer(COUNT_AFTER_S, self._begin_counting)

    def _begin_counting(self) -> None:
        usage = self._context_usage
        if usage is not None and not usage.counted:
            console_of(self).attempt(self._count(), group="chat count")

    async def _count(self) -> None:
        chat, draft = self._prompt, self._composer.text
        count = await self.session.count(draft, self._composer.again)
        if chat is not None and count is not None:
            self._meter.take(chat, draft, count)
            self._show_context()

    @property
    def _prompt(self) -> Conversation | None:
        chat, again = self.conversation, self._composer.again
        if chat is None or again is None:
            return chat
        return msgspec.structs.replace(chat, turns=chat.turns[:again])

    @property
    def _context_usage(self) -> ContextUsage | None:
        chat = self._prompt
        # An answer under way grows: Live tells the context then.
        if chat is None or self.answering:
            return None
        return self._meter.usage(chat, self._composer.text)

    def _show_context(self) -> None:
        usage = self._context_usage
        tone = usage.tone if usage else ""
        self._used.display = usage is not None
        self._used.set_class(tone == "warn", "-warn")
        self._used.set_class(tone == "bad", "-bad")
        self._used.update(usage.text if usage else "")
        if (ends := usage.sentence if usage else "") != self._ends:
            self._ends = ends
            self._settle()

    # --- searching ------------------------------------------------------------

    @on(Composer.Finding)
    async def action_find(self) -> None:
        if self._search is None:
            lines, label_cells = self._searched
            self._search_from = self.screen.focused
            self._search = TextSearch(
                lines, label_cells=label_cells, leaves=True, classes="chat-search"
            )
            # The keys after this one are for the field.
            await self._words.mount(self._search)
            self.refresh_bindings()
        self._search.action_find()

    @property
    def _searched(self) -> tuple[Iterable[TextLine], int]:
        speaker = self._transcript.speaker
        return chat_lines(self._turns, speaker), width_of(self._turns, speaker)

    @on(TextSearch.Left)
    def _search_left(self, event: TextSearch.Left | None = None) -> None:
        if self._search is not None:
            self._search.remove()
            self._search = None
            self.screen.set_focus(self._search_from)
            self.refresh_bindings()

    # --- asking -------------------------------------------------------------

    @on(Composer.Sent)
    def _question_sent(self, event: Composer.Sent) -> None:
        self._search_left()
        if event.again is None:
            self._transcript.chosen = None
        self._begin_asking()
        work = self.session.ask(event.question, event.again)
        console_of(self).attempt(work, group="chat asked")

    def _begin_asking(self) -> None:
        self._asked_at = self._state.seq if self._state else 0
        self._settle()

    @on(Composer.Paged)
    def _paged(self, event: Composer.Paged) -> None:
        self.action_scroll_pages(event.pages)

    def _settle(self) -> None:
        self._composer.busy = self.answering
        self._composer.hint()
        conversation = self.conversation
        if conversation is None:
            return
        retitle(self, f"Chat · {conversation.name}".rstrip(" ·"))
        settings = [with_keys(self.app, self._ends)] if self._ends else []
        if (again := self._composer.again) is not None:
            settings.append(with_keys(self.app, AGAIN % (again + 1)))
        if not self._has_template:
            settings.append(NO_TEMPLATE)
        if conversation.system.strip():
            settings.append("system prompt")
        if conversation.sampling != Sampling():
            settings.append("own sampling")
        resubtitle(self, " · ".join(settings))
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        turns, idle = bool(self._turns), not self.answering
        writes = self._composer.has_focus
        if self._search is not None and not writes:
            return action == "find"
        match str(parameters[0]) if action == "want" else action:
            case "stop_answer":
                return not idle
            case "leave":
                return idle and (self._transcript.chosen is not None or writes)
            case "write":
                return not writes
            case "choose":
                return turns and not writes
            case "find":
                return turns
            case "again" | "edit":
                return turns and idle and self._ready
            case "variant":
                return turns and idle and len(self._turns[self._meant].replies) > 1
            case "rename" | "export":
                return turns
            case "settings" | "open" | "compose":
                return self.conversation is not None
            case "undo":
                return idle and self.can_undo
            case "new" | "delete":
                return turns and idle
        return True

    def action_stop_answer(self) -> None:
        self._do("stop", self.session.stop())

    def action_leave(self) -> None:
        if not self._composer.has_focus:
            self._transcript.chosen = None
        self._composer.let_go()
        self._settle()
        search = self._search
        self.screen.set_focus(search.text if search else self._transcript)

    def action_write(self) -> None:
        self.screen.set_focus(self._composer)

    def action_again(self) -> None:
        self._begin_asking()
        self._do("again", self.session.ask(None, self._meant))

    def action_want(self, verb: str) -> None:
        self._do(verb, getattr(self.session, verb)())

    def _do(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        console_of(self).open(work, group=f"chat {name}", exclusive=False)

    def action_choose(self, by: int) -> None:
        self._transcript.choose(by)

    @on(ChatTranscript.Chose)
    def _chose(self) -> None:
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
        if self.check_action("variant", ()):
            self._go_on_from(event.shown)

    def _go_on_from(self, shown: int) -> None:
        self._do("choose", self.session.choose(self._meant, shown))

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

    def _count_unseen(self, rows: int) -> None:
        self._unseen.display = rows > 0
        self._unseen.update(f"↓ {format_count(rows, 'new line')}", layout=False)

    def on_click(self, event: events.Click) -> None:
        if event.widget is self._unseen:
            self._transcript.follow()


def _looks(state: ChatState) -> tuple[object, ...]:
    now = state.conversation
    turns = tuple((len(turn.replies), turn.shown) for turn in now.turns)
    return now.id, now.name, now.system, now.sampling, turns, state.answering is None
