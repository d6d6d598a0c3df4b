"""The text of a model's answer, drawn often as it grows and laid out seldom."""

from __future__ import annotations

import asyncio
import importlib
import sys
from typing import TYPE_CHECKING, ClassVar

from rich.style import Style
from textual import events, work
from textual.geometry import Region
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

from tui.app.console import console_of
from tui.widgets.background_errors import report_worker
from tui.widgets.strips import line, selectable, wrapped

if TYPE_CHECKING:
    from tui.widgets.markdown_rows import MarkdownRows


STEPS = 4
"""Of a view's height: so many rows are added at once, since that is a layout."""
VIEWS = 2
"""Rows kept while the end is followed: what is seen, and a page to look back."""
PLAIN_ROWS = 24
MARKDOWN = "tui.widgets.markdown_rows"
PIECE_CHARS = 1_000
"""Drawn at once; then others have their turn."""


class AnswerText(Widget):
    """Markdown whose end is shown in a height that seldom changes.

    While the end is followed the text scrolls in here. It takes no more rows than a
    view and a page before it. Else there are rows for all of it, to look back.

    Args:
        view_rows: Rows of the view that follows the end; None if no view does.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "answer--heading",
        "answer--code",
        "answer--fence",
        "answer--sign",
        "answer--link",
        "answer--quiet",
    }

    DEFAULT_CSS = """
    AnswerText {
        width: 1fr;
        height: 1;
        & > .answer--heading { color: $primary; text-style: bold; }
        & > .answer--code { background: $warning 10%; color: $text-warning 95%; }
        &:light > .answer--code { background: $error 5%; color: $text-error 95%; }
        & > .answer--fence { background: $surface; }
        & > .answer--sign { color: $text-primary; }
        & > .answer--link { text-style: underline; }
        & > .answer--quiet { color: $dim; }
    }
    """

    def __init__(self, view_rows: int | None) -> None:
        super().__init__()
        self.text = ""
        self.drawn = asyncio.Event()
        """All that came is drawn."""
        self._view_rows = view_rows
        self._made: MarkdownRows | None = None
        self._rows: list[Strip] = []
        self._ground = Style()
        """Of all rows that are painted together: finding it takes longer than a row."""

    def add(self, text: str) -> None:
        self.text += text
        if len(text) > PIECE_CHARS:
            self._draw_anew()
        elif self._made is not None:
            self._made.add(text)
            self._show()

    def follow(self, view_rows: int | None) -> int:
        if view_rows == self._view_rows:
            return 0
        before, self._view_rows = self._height, view_rows
        self._settle_height()
        self.refresh()
        return self._height - before

    def on_resize(self, event: events.Resize) -> None:
        if self._made is None or event.size.width != self._made.width:
            self._draw_anew()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        if self._made is not None and self._looks() != self._made.looks:
            self._draw_anew()

    on_worker_state_changed = report_worker

    def on_click(self, event: events.Click) -> None:
        from tui.widgets.markdown_rows import LINK

        if address := event.style.meta.get(LINK):
            event.stop()
            self.app.copy_to_clipboard(address)
            console_of(self).tell(f"Copied {address}")

    @work(group="rows", exclusive=True, exit_on_error=False)
    async def _draw_anew(self) -> None:
        """Draw all of it; before the first layout there is no width to do so."""
        self._made = None
        self.drawn.clear()
        if not self.size.width:
            return
        if MARKDOWN not in sys.modules:
            width, n_rows = self.size.width, self._view_rows or PLAIN_ROWS
            lines = wrapped(self.text[-width * n_rows :], width, n_rows)
            self._rows = [line([(text, Style())], width) for text in lines]
            self._settle_height()
            self.refresh()
            # Where little is cached it takes seconds.
            await asyncio.to_thread(importlib.import_module, MARKDOWN)
        from tui.widgets.markdown_rows import MarkdownRows

        made, at = MarkdownRows(self.size.width, self._looks()), 0
        while piece := self.text[at : at + PIECE_CHARS]:
            made.add(piece)
            at += len(piece)
            await asyncio.sleep(0)
        self._made = made
        self._show()
        self.drawn.set()

    def _looks(self) -> dict[str, Style]:
        heading, sign, link, quiet = (
            self.get_component_rich_style(f"answer--{part}", partial=True)
            for part in ("heading", "sign", "link", "quiet")
        )
        # These have a ground, which is mixed with what is under it.
        code, fence = (
            self.get_component_rich_style(f"answer--{part}")
            for part in ("code", "fence")
        )
        return {
            **{f"markdown.h{level}": heading for level in range(1, 7)},
            "markdown.code": code,
            "markdown.code_block": fence,
            "markdown.item.bullet": sign,
            "markdown.item.number": sign,
            "markdown.link_url": link,
            "markdown.table.header": heading,
            "markdown.table.border": quiet,
            "markdown.block_quote": quiet,
            "markdown.hr": quiet,
        }

    def _show(self) -> None:
        assert self._made is not None
        before = self._seen()
        self._rows = self._made.rows
        self._settle_height()
        both = zip(before, self._seen(), strict=True)
        if changed := [y for y, (old, new) in enumerate(both) if old != new]:
            n_rows = changed[-1] - changed[0] + 1
            self.refresh(Region(0, changed[0], self.size.width, n_rows))

    def _settle_height(self) -> None:
        rows = max(1, len(self._rows))
        if self._view_rows is not None:
            step = max(1, self._view_rows // STEPS)
            stepped = -(-rows // step) * step
            rows = min(max(stepped, self._height), VIEWS * self._view_rows)
        if rows != self._height:
            self.styles.height = rows

    @property
    def _height(self) -> int:
        height = self.styles.height
        return int(height.value) if height is not None else 1

    @property
    def _above(self) -> int:
        return max(0, len(self._rows) - self.size.height)

    def _seen(self) -> list[Strip | None]:
        seen = self._rows[self._above :]
        return [*seen, *[None] * (self.size.height - len(seen))]

    def render_lines(self, crop: Region) -> list[Strip]:
        self._ground = self.rich_style
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        index = self._above + y
        if index >= len(self._rows):
            return Strip.blank(self.size.width, self._ground)
        return selectable(self, self._rows[index].apply_style(self._ground), index)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        from tui.widgets.markdown_rows import text_of

        return text_of(self._rows, selection), "\n"
