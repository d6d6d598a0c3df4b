"""One answer while it streams in, and after."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from textual import work
from textual.content import Content
from textual.reactive import reactive
from textual.widgets import Static

from tui.screens.cluster.chat.answer_text import AnswerText
from tui.screens.cluster.chat.reasoning import ChatReasoning
from tui.screens.cluster.chat.text import coming_text, ended_text
from tui.screens.cluster.chat.turn import ChatTurn
from tui.screens.cluster.chat.variants import AnswerVariants
from tui.widgets.safe_text import SafeStream, safe
from tui.widgets.worker_reports import report_worker

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.worker import Worker

    from backends.state import Answering, Turn

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
        """No more will come."""
        self.drawn_whole = asyncio.Event()
        """Nor is anything of it still to be drawn."""
        self._variants: AnswerVariants | None = None

    def compose_said(self) -> ComposeResult:
        """The reasoning and the figures; the words come between."""
        yield self.reasoning
        yield self._figures

    def on_mount(self) -> None:
        self._take_pieces()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        report_worker(self, event)

    def show(self, turn: Turn, answering: Answering | None) -> None:
        """Show how far it is; only the newest is drawn, as fast as drawing goes."""
        if (turn, answering) != (self._turn, self._answering):
            self._turn, self._answering = turn, answering
            self._fresh.set()

    @work(group="answer", exit_on_error=False)
    async def _take_pieces(self) -> None:
        """Draw whatever is new until nothing more comes."""
        while not self._ended:
            await self._fresh.wait()
            self._fresh.clear()
            turn, answering = self._turn, self._answering
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
        text = self._safe_text.feed(text)
        if reply.done:
            await self._end(turn, text)
            return
        if text:
            self._add(text)
        self._say(coming_text(reply, answering))
        self.call_after_refresh(self._painted, began)

    def _painted(self, began: float) -> None:
        self._drawing_s = time.thread_time() - began

    def _add(self, text: str) -> None:
        if self._text is None:
            self._text = AnswerText(self._view_rows)
            self.body.mount(self._text, before=self._figures)
        self._text.add(text)

    async def _end(self, turn: Turn, text: str) -> None:
        """Draw the rest, in rows for all of it, and what the answer was made with."""
        if text:
            self._add(text)
        self._ended = True
        self.follow(None)
        self._figures.set_class(turn.reply.failure is not None, "-failed")
        self._say_end(turn)
        if self._text is not None:
            await self._text.drawn.wait()
        self.drawn_whole.set()

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
        """Say what the answer was made with, or what each of several was."""
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
