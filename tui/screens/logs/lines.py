"""The last lines of a log, filtered and folded into rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rich.cells import cell_len

from tui.model.log_levels import LogLevel
from tui.widgets.safe_text import safe_line
from tui.widgets.text_search import TextRow, fitting_end

LINE_LIMIT = 20_000
"""Lines kept; older ones are dropped."""
CHARS_LIMIT = 8_000_000
"""Characters kept; older lines are dropped, though there may be few."""
LINE_CHARS = 8_192
"""Characters kept of one line; the rest of it becomes ``…``."""


class LogBuffer:
    """Lines numbered from 0 since the start, of which the newest are kept."""

    def __init__(
        self, limit: int = LINE_LIMIT, *, chars_limit: int = CHARS_LIMIT
    ) -> None:
        self.limit = limit
        self.chars_limit = chars_limit
        self._chars = 0
        self.first = 0
        self._lines: list[str] = []
        self._open = ""
        """Raw text of the last line while its newline has not come."""

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, number: int) -> str:
        return self._lines[number - self.first]

    @property
    def end(self) -> int:
        return self.first + len(self._lines)

    def numbers(self) -> range:
        return range(self.first, self.end)

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def feed(self, text: str) -> int:
        """Add raw text; return the number of the first line that changed."""
        if not text:
            return self.end
        changed = self.end
        if self._open:
            changed -= 1
            self._chars -= len(self._lines.pop())
        *whole, self._open = (self._open + text).split("\n")
        for line in whole:
            self._append(_fit(line))
        if self._open:
            self._open = self._open[-LINE_CHARS * 4 :]
            self._append(_fit(self._open))
        return changed

    def _append(self, line: str) -> None:
        self._lines.append(line)
        self._chars += len(line)

    def close_line(self) -> None:
        """End the unfinished last line, so that what follows starts a new one."""
        self._open = ""

    def prune(self) -> int:
        surplus = max(0, len(self._lines) - self.limit)
        self._chars -= sum(map(len, self._lines[:surplus]))
        while self._chars > self.chars_limit and surplus < len(self._lines) - 1:
            self._chars -= len(self._lines[surplus])
            surplus += 1
        del self._lines[:surplus]
        self.first += surplus
        return surplus


def last_written(raw: str) -> str:
    """One line as it would stand on a terminal: what ``\\r`` overwrote is gone."""
    return safe_line(raw.rstrip("\r").rpartition("\r")[2])


def _fit(raw: str) -> str:
    line = last_written(raw)
    return line if len(line) <= LINE_CHARS else line[: LINE_CHARS - 1] + "…"


@dataclass(frozen=True)
class LogFilter:
    """Keeps the lines that contain a text, or match ``/a pattern/``.

    In a merged log ``@worker1 text`` keeps only lines of processes of such a name.
    """

    source: str
    pattern: re.Pattern[str]
    process: str = ""

    @classmethod
    def parse(cls, source: str, *, merged: bool = False) -> LogFilter:
        """Understand a filter; upper case in it makes it case-sensitive.

        Raises:
            ValueError: The pattern is not one; the message is a sentence.
        """
        if merged and source.startswith("@"):
            process, _, rest = source[1:].partition(" ")
            return replace(cls.parse(rest), source=source, process=process.lower())
        is_pattern = source.startswith("/") and len(source) > 1
        expression = source[1:].removesuffix("/") if is_pattern else re.escape(source)
        flags = re.NOFLAG if source != source.lower() else re.IGNORECASE
        try:
            return cls(source, re.compile(expression, flags))
        except re.error as error:
            raise ValueError(f"Not a pattern: {error}.") from error

    def matches(self, line: str) -> bool:
        process, bar, _ = line.partition(" │ ")
        if self.process and not (bar and self.process in process.lower()):
            return False
        return self.pattern.search(line) is not None

    def spans(self, line: str) -> list[tuple[int, int]]:
        found = (match.span() for match in self.pattern.finditer(line))
        return [(start, end) for start, end in found if end > start]


def fold_line(line: str, width: int | None) -> list[tuple[int, int]]:
    """Character ranges of a line's rows, each at most ``width`` cells wide."""
    if width is None or len(line) * 2 <= width or cell_len(line) <= width:
        return [(0, len(line))]
    ranges, start = [], 0
    while start < len(line):
        end = fitting_end(line, start, width)
        ranges.append((start, end))
        start = end
    return ranges


class LogRows:
    """The rows of a buffer's lines, kept up as lines come and go."""

    def __init__(self, buffer: LogBuffer) -> None:
        self.filter: LogFilter | None = None
        self.level = LogLevel.DEBUG
        """The least serious lines that have rows."""
        self.width: int | None = None
        """Cells a row may take; None: unfolded."""
        self.matching = 0
        """Lines that have rows."""
        self.widest = 0
        """Cells of the widest row seen."""
        self._buffer = buffer
        self._rows: list[TextRow] = []
        self._end = 0
        """Number of the next line to lay out."""

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> TextRow:
        return self._rows[index]

    def line_numbers(self) -> Iterator[int]:
        return (row.line for row in self._rows if row.start == 0)

    def extend(self, changed: int) -> int:
        """Lay out the lines from ``changed`` on; return the rows dropped on top."""
        self.cut(changed)
        self.lay_out(self._buffer.end - self._end)
        self._buffer.prune()
        return self._drop_pruned()

    def cut(self, changed: int) -> None:
        while self._rows and self._rows[-1].line >= changed:
            row = self._rows.pop()
            self.matching -= row.start == 0
        self._end = min(self._end, changed)

    def lay_out(self, n_lines: int) -> bool:
        """Lay out so many lines more; return whether there are others still."""
        first = max(self._end, self._buffer.first)
        self._end = min(first + n_lines, self._buffer.end)
        for number in range(first, self._end):
            line = self._buffer[number]
            found = self.filter is None or self.filter.matches(line)
            if found and self.level.admits(line):
                self._add_line(number, line)
        self._drop_pruned()
        return self._end < self._buffer.end

    def _add_line(self, number: int, line: str) -> None:
        self.matching += 1
        if self.width is None:
            self.widest = max(self.widest, cell_len(line))
            self._rows.append(TextRow(number, 0, len(line)))
        else:
            ranges = fold_line(line, self.width)
            self._rows.extend(TextRow(number, start, end) for start, end in ranges)

    def _drop_pruned(self) -> int:
        oldest = self._buffer.first
        dropped = 0
        while dropped < len(self._rows) and self._rows[dropped].line < oldest:
            self.matching -= self._rows[dropped].start == 0
            dropped += 1
        del self._rows[:dropped]
        return dropped
