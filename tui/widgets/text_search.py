"""A long text to read and search: its matches are marked, counted and gone through."""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from rich.cells import get_character_cell_size, set_cell_size
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip

from tui.actions import bindings
from tui.widgets.background_errors import report_worker
from tui.widgets.inputs import FilterBar
from tui.widgets.safe_text import safe_line

CHARS_AT_ONCE = 16_384
"""Taken in, folded and searched before others have their turn: some milliseconds."""
LINE_COST = 40
"""Of a line, in characters, beside those it has."""
LINE_CHARS = 8_192
WIDTH_MIN = 8


class TextLine(NamedTuple):
    text: str
    label: str = ""
    """Stands before its first row, in a column of its own."""


class TextRow(NamedTuple):
    """A piece of a line that stands on one row."""

    line: int
    start: int
    end: int


class Match(NamedTuple):
    line: int
    start: int
    end: int


def word_rows(text: str, width: int) -> Iterator[tuple[int, int]]:
    """Character ranges of a line's rows, folded between words where that can be."""
    start = 0
    while (end := fitting_end(text, start, width)) < len(text):
        blank = text.rfind(" ", start, end + 1)
        end = blank + 1 if text[start : max(blank, start)].strip() else end
        yield start, end
        start = end
    if start < len(text) or not text:
        yield start, len(text)


def fitting_end(text: str, start: int, width: int) -> int:
    """The end of the characters from ``start`` on that fit into a row."""
    if text.isascii():
        return min(start + width, len(text))
    used = 0
    for index in range(start, len(text)):
        used += get_character_cell_size(text[index])
        if used > width:
            return max(index, start + 1)
    return len(text)


class FoldedText:
    """Lines that are taken in, folded and searched piece by piece.

    The ``matches`` of what is searched for are in the order of the text, whatever the
    case of their letters.
    """

    def __init__(self, lines: Iterable[TextLine]) -> None:
        self._source: Iterator[TextLine] | None = iter(lines)
        self._width = 0
        self._pattern: re.Pattern[str] | None = None
        self._searched = 0
        """Lines searched so far."""
        self._first_rows: list[int] = []
        """The first row of each line folded so far."""
        self.lines: list[TextLine] = []
        self.rows: list[TextRow] = []
        self.matches: list[Match] = []

    def fold(self, width: int) -> None:
        if width != self._width:
            self._width = width
            self.rows, self._first_rows = [], []

    def search(self, wanted: str) -> None:
        self._pattern = re.compile(re.escape(wanted), re.I) if wanted else None
        self.matches, self._searched = [], 0

    def go_on(self, chars: int = CHARS_AT_ONCE) -> bool:
        """Take in, fold and search so many characters more; False once all is done."""
        left = chars
        while left > 0:
            if self._source is not None:
                left -= self._take_in(next(self._source, None))
            elif self._width and len(self._first_rows) < len(self.lines):
                left -= self._fold_next()
            elif self._pattern is not None and self._searched < len(self.lines):
                left -= self._search_next(self._pattern)
            else:
                return False
        return True

    def row_of(self, match: Match) -> int:
        """Return the row on which a match begins; of a line that is folded."""
        first = self._first_rows[match.line]
        last = bisect_left(self.rows, (match.line, match.start + 1), lo=first)
        return max(first, last - 1)

    def matches_in(self, line: int) -> list[Match]:
        first = bisect_left(self.matches, (line,))
        return self.matches[first : bisect_left(self.matches, (line + 1,))]

    def is_folded(self, line: int) -> bool:
        return line < len(self._first_rows)

    def _take_in(self, line: TextLine | None) -> int:
        if line is None:
            self._source = None
            return 0
        text, label = safe_line(line.text), line.label
        # A line without an end is several, so that none takes long.
        for start in range(0, max(len(text), 1), LINE_CHARS):
            self.lines.append(TextLine(text[start : start + LINE_CHARS], label))
            label = ""
        return LINE_COST + len(line.text)

    def _fold_next(self) -> int:
        number = len(self._first_rows)
        text = self.lines[number].text
        self._first_rows.append(len(self.rows))
        ranges = word_rows(text, self._width)
        self.rows += [TextRow(number, start, end) for start, end in ranges]
        return LINE_COST + len(text)

    def _search_next(self, pattern: re.Pattern[str]) -> int:
        number = self._searched
        self._searched += 1
        text = self.lines[number].text
        self.matches += [Match(number, *m.span()) for m in pattern.finditer(text)]
        return LINE_COST + len(text)


class SearchedText(ScrollView, can_focus=True):
    """The text itself; ``label_cells`` are left before it for the lines' labels."""

    ALLOW_SELECT = True
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "searched--label",
        "searched--match",
        "searched--current",
    }
    DEFAULT_CSS = """
    SearchedText {
        height: 1fr;
        background: $background;
        scrollbar-size: 1 1;
        overflow: hidden auto;
        & > .searched--label { color: $primary; }
        & > .searched--match { color: $primary; text-style: bold underline; }
        & > .searched--current { text-style: bold reverse; }
    }
    """

    @dataclass
    class Counted(Message):
        """Another match is the current one, or their number is another."""

        place: int
        """From 1 on; 0 without any."""
        total: int

    def __init__(self, *, labels: re.Pattern[str] | None = None) -> None:
        super().__init__()
        self._labels = labels
        self._label_cells = 0
        self._folded = FoldedText(())
        self._wanted = ""
        self._from = (0, 0)
        """Line and character from which the next match is looked for."""
        self._current: int | None = None
        self._ends = False
        """The end is to be shown once all is folded."""

    @property
    def current(self) -> Match | None:
        """The match gone to; None without any."""
        return None if self._current is None else self._folded.matches[self._current]

    @property
    def found_message(self) -> str:
        """The labelled lines that hold the match gone to; empty without any."""
        if (match := self.current) is None:
            return ""
        lines, first, end = self._folded.lines, match.line, match.line + 1
        while first > 0 and not lines[first].label:
            first -= 1
        while end < len(lines) and not lines[end].label:
            end += 1
        return "\n".join(line.text for line in lines[first:end]).rstrip()

    def load(self, lines: Iterable[TextLine], label_cells: int, *, ends: bool) -> None:
        """Show these lines, from their end if it ``ends``; the search stays."""
        here = self.current
        self._from = here[:2] if here else self._from
        self._label_cells, self._ends = label_cells, ends
        self._folded = FoldedText(lines)
        self._folded.search(self._wanted)
        self._current = None
        self._begin()

    def search(self, wanted: str) -> None:
        if not self._wanted:
            rows, top = self._folded.rows, self.scroll_offset.y
            self._from = rows[top][:2] if top < len(rows) else (0, 0)
        self._wanted, self._current = wanted, None
        self._folded.search(wanted)
        self._begin()

    def step(self, by: int) -> None:
        """Go to another match, round the ends."""
        total = len(self._folded.matches)
        if self._current is not None and total:
            self._go_to((self._current + by) % total)

    def _begin(self) -> None:
        width = self.scrollable_content_region.width - self._label_cells
        if self.is_mounted and width > 0:
            self._folded.fold(max(width, WIDTH_MIN))
            self._go_on()

    @work(group="lines", exclusive=True, exit_on_error=False)
    async def _go_on(self) -> None:
        goes_on = True
        while goes_on:
            goes_on = self._folded.go_on()
            if self._current is None:
                self._choose(is_all=not goes_on)
            await asyncio.sleep(0)
        self._settle()
        if self._ends and not self._wanted:
            self._ends = False
            self.scroll_end(animate=False, immediate=True, force=True)
        if self._current is not None:
            self._go_to(self._current)
        else:
            self.post_message(self.Counted(0, 0))

    on_worker_state_changed = report_worker

    def _choose(self, *, is_all: bool) -> None:
        matches = self._folded.matches
        at = bisect_left(matches, self._from)
        if at < len(matches) or (is_all and matches):
            self._current = min(at, len(matches) - 1)

    def _go_to(self, at: int) -> None:
        self._current, match = at, self._folded.matches[at]
        self._from = match[:2]
        if self._folded.is_folded(match.line):
            row, height = self._folded.row_of(match), self.size.height
            if not self.scroll_offset.y <= row < self.scroll_offset.y + height:
                y = max(0, row - height // 2)
                self.scroll_to(y=y, animate=False, immediate=True, force=True)
        self.post_message(self.Counted(at + 1, len(self._folded.matches)))
        self.refresh()

    def _settle(self) -> None:
        self.virtual_size = Size(0, len(self._folded.rows))
        self.refresh()

    def on_resize(self) -> None:
        self._begin()

    def render_line(self, y: int) -> Strip:
        width, ground = self.size.width, self.rich_style
        index = self.scroll_offset.y + y
        if index >= len(self._folded.rows):
            return Strip.blank(width, ground)
        row = self._folded.rows[index]
        line = self._folded.lines[row.line]
        label = line.label if row.start == 0 else ""
        before = Segment(
            set_cell_size(label, self._label_cells), ground + self._look("label")
        )
        text = self._drawn(row, line.text)
        parts = [part for part in text.render(self.app.console) if part.text]
        strip = Strip(parts).apply_offsets(row.start, row.line)
        return Strip.join([Strip([before]), strip]).crop_extend(0, width, ground)

    def _drawn(self, row: TextRow, line: str) -> Text:
        text = Text(line, no_wrap=True, end="")
        text.stylize(self.rich_style)
        if self._labels is not None and (name := self._labels.match(line)):
            text.stylize(self._look("label"), *name.span())
        for match in self._folded.matches_in(row.line):
            look = "current" if match == self.current else "match"
            text.stylize(self._look(look), match.start, match.end)
        selection = self.text_selection
        if selection is not None and (span := selection.get_span(row.line)):
            end = len(line) if span[1] == -1 else span[1]
            style = self.screen.get_component_rich_style("screen--selection")
            text.stylize(style, span[0], end)
        return text[row.start : row.end]

    def _look(self, part: str) -> Style:
        return self.get_component_rich_style(f"searched--{part}", partial=True)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        texts = [line.text for line in self._folded.lines]
        return selection.extract("\n".join(texts)), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        self.refresh()


class TextSearch(Vertical):
    """A text and a field to search it.

    Args:
        labels: Finds the part of a line that is drawn like a label.
        leaves: Esc in the field leaves all, not the field alone.
    """

    BINDINGS = bindings("search")
    DEFAULT_CSS = "TextSearch { height: 1fr; }"

    class Left(Message):
        """The user is done with all of it."""

    def __init__(
        self,
        lines: Iterable[TextLine],
        *,
        label_cells: int = 0,
        labels: re.Pattern[str] | None = None,
        leaves: bool = False,
        classes: str | None = None,
    ) -> None:
        super().__init__(classes=classes)
        self.text = SearchedText(labels=labels)
        self.text.load(lines, label_cells, ends=leaves)
        self._leaves = leaves
        self._bar = FilterBar("words to find")

    def compose(self) -> ComposeResult:
        yield self.text
        yield self._bar

    def action_find(self) -> None:
        self._bar.open()

    def action_step(self, by: int) -> None:
        self.text.step(by)

    def action_leave(self) -> None:
        self.post_message(self.Left())

    def action_scroll_lines(self, lines: int) -> None:
        self.text.scroll_relative(y=lines, animate=False)

    def action_scroll_to(self, end: int) -> None:
        (self.text.scroll_end if end else self.text.scroll_home)(animate=False)

    @on(FilterBar.Changed)
    def _changed(self, event: FilterBar.Changed) -> None:
        event.stop()
        self.text.search(event.text)

    @on(FilterBar.Left)
    def _left(self, event: FilterBar.Left) -> None:
        event.stop()
        if self._leaves and not event.submitted:
            self.post_message(self.Left())
            return
        if event.submitted:
            self.text.step(1)
        self.text.focus()

    @on(SearchedText.Counted)
    def _counted(self, event: SearchedText.Counted) -> None:
        event.stop()
        found = f"{event.place}/{event.total}" if event.total else "not found"
        self._bar.note = found if self._bar.text else ""
