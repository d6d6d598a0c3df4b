"""The last lines of one log, fed with raw text cut anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tui.widgets.safe_text import safe_line

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        """Of all lines kept."""
        self.first = 0
        """Number of the oldest line kept."""
        self._lines: list[str] = []
        self._open = ""
        """Raw text of the last line while its newline has not come."""

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, number: int) -> str:
        return self._lines[number - self.first]

    @property
    def end(self) -> int:
        """Number the next line will get."""
        return self.first + len(self._lines)

    def numbers(self) -> range:
        """Numbers of all lines kept."""
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
        """Drop the oldest lines over the limits; return how many."""
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
