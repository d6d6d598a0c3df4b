"""A log: follows its end, filters, wraps, and lets its text be selected."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import work
from textual.cache import LRUCache
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip

from tui.actions import bindings
from tui.app.messages import Copyable
from tui.model.log_levels import LogLevel, level_of, prefix_length
from tui.screens.logs.lines import LogBuffer, LogFilter, LogRows
from tui.widgets.background_errors import report_worker
from tui.widgets.text_search import TextRow

LINES_AT_ONCE = 1000
"""Laid out before others have their turn: some milliseconds."""
GUTTER_CELLS = 1
"""Before each row, for the sign of the selected line."""
SIDE_STEP = 8
"""Cells a step sideways moves."""


class LogStanding(NamedTuple):
    lines: int
    matching: int
    """Lines shown: all, or those the filter keeps."""
    unseen: int
    """Lines that came since the user scrolled up."""
    following: bool


class LogView(ScrollView, can_focus=True):
    ALLOW_SELECT = True
    ALLOW_MAXIMIZE = True

    HELP = """\
## Log

The last 20 000 lines of one process, as it writes them.

- **{log.up} {log.down}** select a line, and new ones no longer move the text:
  **{app.copy}** then copies that line and **{log.whole:or}** shows all of it; the page
  keys look back
- **{log.follow:short}** goes to the newest line and follows again
- **{log.filter}** keeps only lines with a text; a text that begins with a slash is a
  pattern: `/load.*ms`
- **{log.level}** leaves out lines that are less serious: debugging, then what is no
  warning, then
  all but errors, then nothing again
- **{log.all}** shows all processes' logs as one, by time, and the one before again. A
  tilde marks a line that tells no time: it came about then. There `@worker1 text`
  keeps only that process's lines
- **{log.fold}** folds long lines, or cuts them; **{log.left}
  {log.right}** move sideways
- drag selects text, **{app.copy}** copies it (the whole log when nothing is selected)
- **{log.save}** saves the whole log to a file
"""

    BINDINGS = bindings("log")

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "log--prefix",
        "log--warning",
        "log--error",
        "log--debug",
        "log--match",
        "log--mark",
        "log--cursor",
    }

    DEFAULT_CSS = """
    LogView {
        background: $background;
        color: $foreground;
        overflow: auto scroll;
        scrollbar-size: 0 1;
        & > .log--prefix { color: $dim; }
        & > .log--warning { color: $warn; }
        & > .log--error { color: $bad; }
        & > .log--debug { color: $dim; }
        & > .log--match { color: $primary; text-style: bold underline; }
        & > .log--cursor { color: $primary; text-style: bold; }
        & > .log--mark { color: $dim; text-style: italic; }
    }
    """

    following: reactive[bool] = reactive(True, repaint=False)
    folded: reactive[bool] = reactive(False)

    @dataclass
    class Changed(Message):
        """Lines came, or how they are shown changed."""

        view: LogView
        standing: LogStanding

        def can_replace(self, message: Message) -> bool:
            return isinstance(message, LogView.Changed) and message.view is self.view

    def __init__(self, title: str, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self.title = title
        self._buffer = LogBuffer()
        self._rows = LogRows(self._buffer)
        self._next: LogRows | None = None
        """Rows being laid out for another filter or width."""
        self._seen_end = 0
        self._cursor: int | None = None
        """The number of the selected line; it holds the log where it is."""
        self._marks: set[int] = set()
        self._strips: LRUCache[TextRow, Strip] = LRUCache(512)

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(self._buffer)

    @property
    def standing(self) -> LogStanding:
        unseen = 0 if self.following else self._buffer.end - self._seen_end
        return LogStanding(
            len(self._buffer), self._rows.matching, unseen, self.following
        )

    @property
    def filter(self) -> LogFilter | None:
        return self._rows.filter

    @property
    def level(self) -> LogLevel:
        return self._rows.level

    @property
    def subject(self) -> str:
        return f"{'Log' if self.pointed is None else 'Line'} of {self.title}"

    @property
    def subject_region(self) -> Region:
        """The selected line, on the screen; else the whole log."""
        if not (rows := self._pointed_rows):
            return self.region
        y = self.region.y + rows.start - self.scroll_offset.y
        return Region(self.region.x, y, self.region.width, len(rows))

    @property
    def pointed(self) -> str | None:
        """The selected line."""
        rows = self._pointed_rows
        return self._buffer[self._rows[rows.start].line] if rows else None

    def copyable(self) -> Copyable:
        if selected := self.screen.get_selected_text():
            return Copyable(what="the selection", text=selected)
        if self.pointed is not None:
            return Copyable(what=f"a line of the {self.title} log", text=self.pointed)
        shown = "\n".join(self._buffer[number] for number in self._rows.line_numbers())
        return Copyable(what=f"the {self.title} log", text=shown)

    def feed(self, text: str) -> None:
        if text:
            self._take_in(self._buffer.feed(text))

    def clear(self) -> None:
        """Forget every line; filter, level and width stay."""
        self.leave_line()
        before = self._next or self._rows
        self._buffer = LogBuffer()
        self._rows, self._next = LogRows(self._buffer), None
        self._rows.filter, self._rows.level = before.filter, before.level
        self._rows.width = before.width
        self._seen_end = 0
        self._marks.clear()
        self._strips.clear()
        self._settle()

    def mark(self, remark: str) -> None:
        self._buffer.close_line()
        number = self._buffer.feed(f"── {remark} ──\n")
        self._marks.add(number)
        self._take_in(number)

    def set_filter(
        self, wanted: LogFilter | None, level: LogLevel = LogLevel.DEBUG
    ) -> None:
        rows = self._next or self._rows
        if (wanted, level) != (rows.filter, rows.level):
            self._relay_out(wanted, level)

    # --- layout -----------------------------------------------------------

    def _take_in(self, changed: int) -> None:
        dropped = self._rows.extend(changed)
        if self._next is not None:
            self._next.cut(changed)
        kept = range(self._buffer.first, changed)
        for row in list(self._strips.keys()):
            if row.line not in kept:
                self._strips.discard(row)
        if dropped and not self.following:
            self._settle()
            self.scroll_to(y=max(0, self.scroll_offset.y - dropped), animate=False)
        self._settle()

    def _relay_out(self, wanted: LogFilter | None, level: LogLevel) -> None:
        self._next = LogRows(self._buffer)
        self._next.filter, self._next.level = wanted, level
        self._next.width = self._fold_width
        self._lay_out(self._next)

    @work(group="rows", exclusive=True, exit_on_error=False)
    async def _lay_out(self, rows: LogRows) -> None:
        goes_on = True
        while goes_on:
            goes_on = rows.lay_out(LINES_AT_ONCE)
            await asyncio.sleep(0)
        self._rows, self._next = rows, None
        self._strips.clear()
        self._settle()

    on_worker_state_changed = report_worker

    @property
    def _fold_width(self) -> int | None:
        width = self.scrollable_content_region.width - GUTTER_CELLS
        return max(width, 8) if self.folded and width > 0 else None

    def _settle(self) -> None:
        width = 0 if self.folded else self._rows.widest + GUTTER_CELLS
        self.virtual_size = Size(width, len(self._rows))
        if self.following:
            self._scroll_to_end()
        self.refresh()
        self.post_message(self.Changed(self, self.standing))

    def render_line(self, y: int) -> Strip:
        scroll_x, scroll_y = self.scroll_offset
        width = self.scrollable_content_region.width - GUTTER_CELLS
        index = scroll_y + y
        if index >= len(self._rows):
            return Strip.blank(width + GUTTER_CELLS, self.rich_style)
        row = self._rows[index]
        # Nothing is kept of a selection, which changes with each move of the mouse.
        selecting = self.text_selection is not None
        whole = None if selecting else self._strips.get(row)
        if whole is None:
            text = self._coloured(row.line)
            if row.start or row.end < len(text):
                text = text[row.start : row.end]
            segments = [
                segment for segment in text.render(self.app.console) if segment.text
            ]
            whole = Strip(segments, cell_len(text.plain))
            if not selecting:
                self._strips[row] = whole
        strip = whole.crop_extend(scroll_x, scroll_x + width, self.rich_style)
        strip = strip.apply_offsets(scroll_x + row.start, row.line)
        strip = self._mark_cuts(strip, scroll_x, whole.cell_length)
        return self._mark_cursor(strip, row)

    def _mark_cursor(self, strip: Strip, row: TextRow) -> Strip:
        gutter = Segment(" ", self.rich_style)
        if row.line == self._cursor:
            bold = Segment.apply_style(strip, post_style=Style(bold=True))
            strip = Strip(bold, strip.cell_length)
            if row.start == 0:
                gutter = Segment("▸", self.rich_style + self._partial("cursor"))
        return Strip.join([Strip([gutter], GUTTER_CELLS), strip])

    def _mark_cuts(self, strip: Strip, scroll_x: int, length: int) -> Strip:
        width = strip.cell_length
        sign = Strip([Segment("…", self.rich_style + self._partial("prefix"))], 1)
        if scroll_x + width < length:
            strip = Strip.join([strip.crop(0, width - 1), sign])
        if 0 < scroll_x < length:
            strip = Strip.join([sign, strip.crop(1, width)])
        return strip

    def _coloured(self, number: int) -> Text:
        line = self._buffer[number]
        text = Text(line, no_wrap=True, end="")
        text.stylize(self.rich_style)
        level, prefix = level_of(line), prefix_length(line)
        if number in self._marks:
            text.stylize(self._partial("mark"))
        else:
            if level is not LogLevel.INFO:
                text.stylize(self._partial(level.value), prefix)
            if prefix:
                text.stylize(self._partial("prefix"), 0, prefix)
        for start, end in self.filter.spans(line) if self.filter else ():
            text.stylize(self._partial("match"), start, end)
        selection = self.text_selection
        if selection is not None and (span := selection.get_span(number)) is not None:
            start, end = span
            style = self.screen.get_component_rich_style("screen--selection")
            text.stylize(style, start, len(text) if end == -1 else end)
        return text

    def _partial(self, part: str) -> Style:
        return self.get_component_rich_style(f"log--{part}", partial=True)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        parts: list[str] = []
        for number in self._rows.line_numbers():
            if (span := selection.get_span(number)) is not None:
                start, end = span
                line = self._buffer[number]
                parts.append(line[start:] if end == -1 else line[start:end])
        return "\n".join(parts), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        self._strips.clear()
        self.refresh()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._strips.clear()

    # --- a selected line --------------------------------------------------

    @property
    def _pointed_rows(self) -> range:
        # None where a filter leaves the line out.
        if self._cursor is None:
            return range(0)
        first = bisect_left(self._rows, self._cursor, key=lambda row: row.line)
        end = bisect_right(self._rows, self._cursor, first, key=lambda row: row.line)
        return range(first, end)

    def action_select(self, by: int) -> None:
        """Select the line above or below; below the newest follow the log again."""
        if by > 0 and self.following:
            return
        top, height = self.scroll_offset.y, self.scrollable_content_region.height
        seen = range(top, min(top + height, len(self._rows)))
        pointed = self._pointed_rows
        if pointed and (pointed.start in seen or pointed.stop - 1 in seen):
            at = pointed.stop if by > 0 else pointed.start - 1
        else:  # There is none, or it is out of sight.
            at = seen.start if by > 0 else seen.stop - 1
        if at >= len(self._rows):
            self.action_follow()
        elif at >= 0:
            self._cursor = self._rows[at].line
            self.following = False
            rows = self._pointed_rows
            y = min(max(top, rows.stop - height), rows.start)
            self.scroll_to(y=y, animate=False, immediate=True, force=True)
            self.refresh_bindings()
            self.refresh()

    def leave_line(self) -> bool:
        """Have no line selected any more; False if none was."""
        if self._cursor is None:
            return False
        self._cursor = None
        self.following = self.scroll_offset.y >= self.max_scroll_y
        self.refresh_bindings()
        self.refresh()
        return True

    def action_whole_line(self) -> None:
        # Imported when needed, like all dialogs.
        from tui.dialogs.help_and_events import WholeLineDialog

        if self.pointed is not None:
            self.app.push_screen(WholeLineDialog(self.title, self.pointed))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "whole_line" or self.pointed is not None

    # --- scrolling --------------------------------------------------------

    def watch_folded(self) -> None:
        if self.is_mounted:
            self.scroll_to(x=0, animate=False)
            rows = self._next or self._rows
            self._relay_out(rows.filter, rows.level)

    def watch_following(self, following: bool) -> None:
        self._seen_end = self._buffer.end
        self.post_message(self.Changed(self, self.standing))

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self.following = self._cursor is None and round(new_value) >= self.max_scroll_y

    def on_resize(self) -> None:
        rows = self._next or self._rows
        if self.folded and rows.width != self._fold_width:
            self._relay_out(rows.filter, rows.level)
        elif self.following:
            self._scroll_to_end()

    def _scroll_to_end(self) -> None:
        self.scroll_end(animate=False, immediate=True, x_axis=False, force=True)

    def action_sideways(self, direction: int) -> None:
        self.scroll_relative(x=direction * SIDE_STEP, animate=False, force=True)

    def action_follow(self) -> None:
        self.leave_line()
        self.following = True
        self._settle()

    def action_fold(self) -> None:
        self.folded = not self.folded
