"""One answer while it streams in, and after."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from textual import events, work
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget
from textual.widgets import Static

from backends.state import Answering, Turn
from backends.units import format_count
from tui.screens.cluster.answer_text import AnswerText
from tui.screens.cluster.chat_text import coming_text, ended_text, variant_texts
from tui.widgets.background_errors import report_worker
from tui.widgets.safe_text import SafeStream, safe, safe_line

SPEAKER_CELLS = 8
_MAKERS = frozenset({"meta", "ibm", "nvidia", "mistralai", "microsoft", "google"})


def speaker_of(model_name: str) -> str:
    """A short name for a model: ``GLM-4.7-Flash-Q4_K_M`` speaks as ``glm``."""
    words = re.split(r"[^\w]+|_", model_name.lower())
    # Some letters take no cell of their own.
    telling = (word for word in words if word not in _MAKERS and cell_len(word))
    name = next(telling, "model")
    if cell_len(name) > SPEAKER_CELLS:
        name = set_cell_size(name, SPEAKER_CELLS - 1).rstrip() + "…"
    return name


class ChatTurn(Horizontal):
    """A speaker and a column for what is said."""

    DEFAULT_CSS = """
    ChatTurn {
        height: auto;
        & > .turn-speaker { width: auto; height: 1; color: $dim; text-style: bold; }
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
        raise NotImplementedError

    @property
    def body(self) -> Widget:
        return self.children[1]


class ChatQuestion(ChatTurn):
    DEFAULT_CSS = """
    ChatQuestion {
        pointer: pointer;
        &.-chosen { background: $panel; }
    }
    """

    chosen: reactive[bool] = reactive(False, init=False, toggle_class="-chosen")
    """Asking again and editing are about this one."""

    @dataclass
    class Clicked(Message):
        question: ChatQuestion

    def __init__(self, question: str, *, names_width: int) -> None:
        super().__init__("you", names_width=names_width, classes="-you")
        self.question = question

    def watch_chosen(self, chosen: bool) -> None:
        self._label.update("▸you" if chosen else "you")

    def on_click(self) -> None:
        self.post_message(self.Clicked(self))

    def compose_said(self) -> ComposeResult:
        yield Static(Content(safe(self.question)), classes="turn-question")


VIEW_ROWS = 4
"""Of a model that still thinks: twice as many rows of its end are shown."""


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
        & > AnswerText {
            padding: 0 0 0 1;
            border-left: outer $pane-border;
            color: $dim;
        }
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self.unfolded = True
        self.thinking = True
        self._head = Static(classes="reasoning-head", markup=False)
        self._body = AnswerText(VIEW_ROWS)
        self._head_cells = 0

    def compose(self) -> ComposeResult:
        yield self._head

    def add(self, text: str) -> None:
        if not self.text:
            self.add_class("-some")
            self.mount(self._body)
        self.text += text
        self._body.add(text if self._body.text else text.lstrip())
        self._show()

    def finish(self) -> None:
        """The answer begins: fold, unless the user is reading."""
        if self.thinking:
            self.thinking = self.unfolded = False
            self._body.follow(None)
            self._show()

    def _show(self) -> None:
        sign = "▾" if self.unfolded else "▸"
        words = format_count(len(self.text.split()), "word")
        title = "thinking" if self.thinking else "reasoning"
        head = Content(f"{sign} {title} · {words}")
        # One of the same length leaves everything where it is.
        self._head.update(head, layout=len(head) != self._head_cells)
        self._head_cells = len(head)
        self._body.display = self.unfolded

    def on_click(self, event: events.Click) -> None:
        if event.widget is self._head:
            event.stop()
            self.toggle()

    def toggle(self) -> None:
        self.unfolded = not self.unfolded
        self._show()


class AnswerVariants(Vertical):
    """The settings of each answer; a click continues from that answer."""

    DEFAULT_CSS = """
    AnswerVariants {
        height: auto;
        & > Horizontal {
            height: auto;
            color: $dim;
            pointer: pointer;
            &:hover { color: $foreground; }
            &.-shown { color: $foreground; }
            & > .variant-number { width: 5; }
            & > .variant-facts { width: 1fr; height: auto; }
        }
    }
    """

    @dataclass
    class Picked(Message):
        """The user wants to go on from the answer of this index."""

        shown: int

    def __init__(self, turn: Turn) -> None:
        super().__init__()
        self._turn = turn

    def compose(self) -> ComposeResult:
        for index, text in enumerate(variant_texts(self._turn)):
            shown = index == self._turn.shown
            number = Content(f"{'▸' if shown else ' '} {index + 1}")
            with Horizontal(classes="-shown" if shown else ""):
                yield Static(number, classes="variant-number")
                yield Static(Content(safe_line(text)), classes="variant-facts")

    def on_click(self, event: events.Click) -> None:
        event.stop()
        for index, line in enumerate(self.children):
            if event.widget and line in event.widget.ancestors_with_self:
                self.post_message(self.Picked(index))


DRAW_MIN_S = 0.1
DRAW_MAX_S = 1.0
"""Least and most time between two drawings while an answer comes."""
CPU_SHARE = 0.045
"""Of a core, for drawing and painting: the model may need this one."""


class ChatAnswer(ChatTurn):
    """Reasoning, the answer and a line of figures."""

    DEFAULT_CSS = """
    ChatAnswer {
        margin: 0 0 1 0;
        &:last-child { margin: 0; }
        & .answer-figures {
            height: auto;
            color: $dim;
            &.-failed { color: $bad; }
        }
    }
    """

    compared: reactive[bool] = reactive(False, init=False)
    """All answers to the question are listed, in place of this one's figures."""

    def __init__(self, speaker: str, *, names_width: int) -> None:
        super().__init__(speaker, names_width=names_width, classes="-model")
        self.reasoning = ChatReasoning()
        self._figures = Static(classes="answer-figures", markup=False)
        self._turn: Turn | None = None
        self._answering: Answering | None = None
        self._fresh = asyncio.Event()
        self._text: AnswerText | None = None
        self._view_rows: int | None = None
        self._drawing_s = 0.0
        self._drawn = 0
        self._thought = 0
        self._safe_text = SafeStream()
        self._safe_reasoning = SafeStream()
        self._ended = False
        self.drawn_whole = asyncio.Event()
        """Nor is anything of it still to be drawn."""
        self._variants: AnswerVariants | None = None

    def compose_said(self) -> ComposeResult:
        yield self.reasoning
        yield self._figures

    def on_mount(self) -> None:
        self._take_pieces()

    on_worker_state_changed = report_worker

    def show(self, turn: Turn, answering: Answering | None) -> None:
        if (turn, answering) != (self._turn, self._answering):
            self._turn, self._answering = turn, answering
            self._fresh.set()

    @work(group="answer", exit_on_error=False)
    async def _take_pieces(self) -> None:
        while not self._ended:
            await self._fresh.wait()
            self._fresh.clear()
            turn, answering = self._turn, self._answering
            if not self.children:  # It is being removed.
                return
            if turn is not None:
                await self._draw(turn, answering)
                if not self._ended:
                    await self._pause()

    async def _pause(self) -> None:
        """Let more come: what a drawing took tells how often there can be one.

        Where its end is not followed all of it is laid out, which takes longest.
        """
        wanted_s = self._drawing_s / CPU_SHARE if self._view_rows else DRAW_MAX_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(max(wanted_s, DRAW_MIN_S), DRAW_MAX_S)):
                while self._turn is None or not self._turn.reply.done:
                    self._fresh.clear()
                    await self._fresh.wait()
        self._fresh.set()

    async def _draw(self, turn: Turn, answering: Answering | None) -> None:
        """Draw what came since the last time, and the line under it."""
        began = time.thread_time()
        reply = turn.reply
        thought, self._thought = reply.reasoning[self._thought :], len(reply.reasoning)
        if thought := self._safe_reasoning.feed(thought):
            self.reasoning.add(thought)
        text, self._drawn = reply.text[self._drawn :], len(reply.text)
        if reply.text or reply.done:
            self.reasoning.finish()
        if text := self._safe_text.feed(text):
            if self._text is None:
                self._text = AnswerText(self._view_rows)
                self.body.mount(self._text, before=self._figures)
            self._text.add(text)
        if reply.done:
            self._ended = True
            self.follow(None)
            self._figures.set_class(turn.reply.failure is not None, "-failed")
            self._say_end(turn)
            if self._text is not None:
                await self._text.drawn.wait()
            self.drawn_whole.set()
            return
        self._say(coming_text(reply, answering))
        self.call_after_refresh(self._painted, began)

    def _painted(self, began: float) -> None:
        self._drawing_s = time.thread_time() - began

    def follow(self, view_rows: int | None) -> int:
        """Show its end in a view of so many rows while it comes, None: all of it.

        Returns the rows it grows by.
        """
        self._view_rows = None if self._ended else view_rows
        return self._text.follow(self._view_rows) if self._text else 0

    def watch_compared(self) -> None:
        if self._ended and self._turn is not None:
            self._say_end(self._turn)

    def _say_end(self, turn: Turn) -> None:
        if self._variants is not None:
            self._variants.remove()
            self._variants = None
        compared = self.compared and len(turn.replies) > 1
        self._say("" if compared else ended_text(turn))
        if compared:
            self._variants = AnswerVariants(turn)
            self.body.mount(self._variants, after=self._figures)

    def _say(self, line: str) -> None:
        # While it comes, a line in place of a line leaves everything where it is.
        stays = self._figures.display is bool(line) and not self._ended
        self._figures.display = bool(line)
        self._figures.update(Content(safe(line)), layout=not stays)
