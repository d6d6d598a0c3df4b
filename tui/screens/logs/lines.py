"""Which lines of a log to keep, by their text."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class LogFilter:
    """Which lines to keep: those with a piece of text, or matching ``/a pattern/``."""

    source: str
    """What the user typed."""
    pattern: re.Pattern[str]

    @classmethod
    def parse(cls, source: str) -> LogFilter:
        """Understand a filter; upper case in it makes it case-sensitive.

        Raises:
            ValueError: The pattern is not one; the message is a sentence.
        """
        is_pattern = source.startswith("/") and len(source) > 1
        expression = source[1:].removesuffix("/") if is_pattern else re.escape(source)
        flags = re.NOFLAG if source != source.lower() else re.IGNORECASE
        try:
            return cls(source, re.compile(expression, flags))
        except re.error as error:
            raise ValueError(f"Not a pattern: {error}.") from error

    def matches(self, line: str) -> bool:
        """True if the line stays."""
        return self.pattern.search(line) is not None

    def spans(self, line: str) -> list[tuple[int, int]]:
        """Where in the line the filter matched, for highlighting."""
        found = (match.span() for match in self.pattern.finditer(line))
        return [(start, end) for start, end in found if end > start]
