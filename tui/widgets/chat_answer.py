"""One answer while it streams in, and after."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from textual import work
from textual.content import Content
from textual.widgets import Static

from tui.messages import Notice
from tui.widgets.chat_reasoning import ChatReasoning
from tui.widgets.chat_text import failure_text, figures_text, waiting_text
from tui.widgets.chat_turn import ChatTurn, names_width
from tui.widgets.log_text import clean_text
from tui.widgets.worker_reports import report_worker

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from textual.app import ComposeResult
    from textual.widgets import Markdown
    from textual.widgets.markdown import MarkdownStream
    from textual.worker import Worker

    from backends.state import ChatDelta


def _parser() -> MarkdownIt:
    """Markdown in which HTML stays visible as text, since none is drawn."""
    from markdown_it import MarkdownIt

    return MarkdownIt("gfm-like", {"html": False})


def new_markdown(text: str | None = None) -> Markdown:
    """A Markdown widget; imported here because it costs 40 ms at start-up."""
    from textual.widgets import Markdown

    return Markdown(text, parser_factory=_parser, open_links=False)


class ChatAnswer(ChatTurn):
    """Reasoning, the answer as Markdown, and a line of figures."""

    DEFAULT_CSS = """
    ChatAnswer {
        margin: 0 0 1 0;
        &:last-child { margin: 0; }
        & .answer-figures {
            height: auto;
            color: $dim;
            &.-failed { color: $bad; }
        }
        & Markdown {
            padding: 0;
            margin: 0;
            & > MarkdownBlock:last-child { margin-bottom: 0; }
        }
        & MarkdownH1, & MarkdownH2, & MarkdownH3 {
            content-align: left middle;
            color: $primary;
            background: transparent;
            margin: 1 0 0 0;
            text-style: bold;
            &:first-child { margin-top: 0; }
        }
        & MarkdownFence {
            margin: 1 0;
            &:first-child { margin-top: 0; }
            background: $surface;
            & > #code-content { padding: 0 1; }
        }
    }
    """

    def __init__(self, speaker: str, text: str = "", *, done: bool = False) -> None:
        """Create an answer.

        Args:
            speaker: Name of the model.
            text: The whole answer, where it is an earlier one.
            done: It is an earlier one, no more will come.
        """
        super().__init__(speaker, names_width=names_width(speaker), classes="-model")
        self.text = text
        self.done = done
        self.reasoning = ChatReasoning()
        self._figures = Static(classes="answer-figures", markup=False)
        self._deltas: asyncio.Queue[ChatDelta] = asyncio.Queue()
        self._stream: MarkdownStream | None = None

    def compose_said(self) -> ComposeResult:
        """The reasoning, an earlier answer's text, and the figures."""
        yield self.reasoning
        if self.text:
            yield new_markdown(clean_text(self.text))
        yield self._figures

    def on_mount(self) -> None:
        """Wait for the first words."""
        if self.done:
            self._say("" if self.text else "No answer came.")
        else:
            self._say(waiting_text(None))
            self._take_deltas()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """Let the app report a worker that failed."""
        report_worker(self, event)

    def on_markdown_link_clicked(self, event: Markdown.LinkClicked) -> None:
        """Copy a link: the browser may be on another machine than the console."""
        event.stop()
        self.app.copy_to_clipboard(event.href)
        self.post_message(Notice(f"Copied {event.href}"))

    def show_delta(self, delta: ChatDelta) -> None:
        """Take in a piece; it is drawn in order, as fast as drawing goes."""
        self.text += delta.text
        self.done = self.done or delta.done
        self._deltas.put_nowait(delta)

    @work(group="answer", exit_on_error=False)
    async def _take_deltas(self) -> None:
        """Draw pieces until the last one."""
        try:
            drawn = False
            while not drawn:
                delta = await self._deltas.get()
                await self._draw(delta)
                drawn = delta.done
        finally:
            await self._end_stream()

    async def _draw(self, delta: ChatDelta) -> None:
        """Draw one piece."""
        if delta.reasoning:
            self.reasoning.add(clean_text(delta.reasoning))
            self._say("")
        if delta.text:
            await self._write(clean_text(delta.text))
        if delta.done:
            await self._finish(delta)
        elif self._stream is None and not self.reasoning.text:
            self._say(waiting_text(delta))

    async def _write(self, text: str) -> None:
        """Add to the answer's Markdown."""
        if self._stream is None:
            self.reasoning.finish()
            self._say("")
            markdown = new_markdown()
            await self.body.mount(markdown, before=self._figures)
            self._stream = markdown.get_stream(markdown)
        await self._stream.write(text)

    async def _end_stream(self) -> None:
        """Let the Markdown take its last words."""
        if self._stream is not None:
            stream, self._stream = self._stream, None
            await stream.stop()

    async def _finish(self, delta: ChatDelta) -> None:
        """Show the figures, or what went wrong under what came so far."""
        self.reasoning.finish()
        await self._end_stream()
        figures = figures_text(delta.timings, delta.finish_reason)
        if delta.failure is not None:
            figures = failure_text(delta.failure)
            self._figures.add_class("-failed")
        elif not self.text and not figures:
            figures = "The model said nothing."
        self._say(figures)

    def _say(self, line: str) -> None:
        """Show a line under the answer; an empty one takes no room."""
        self._figures.display = bool(line)
        self._figures.update(Content(clean_text(line)))
