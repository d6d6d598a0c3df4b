"""Foreign text made safe to draw, and what llama.cpp's log lines say of themselves."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

_ANSI = re.compile(
    r"\x1b(?:"
    r"\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor moves
    r"|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC, DCS and their strings
    r"|[ -/]*[0-~]"  # two-character escapes
    r")?"
)
_CONTROL = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]"
)
_PREFIX = re.compile(r"(\d+\.\d\d\.\d{3}\.\d{3}) ([IWED]) ")
_BARE_LEVEL = re.compile(r"\s*(?:[\w.]+:\s+)?(error|fatal|warning|failed)\b", re.I)


class LogLevel(StrEnum):
    """How serious a log line says it is."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    DEBUG = "debug"


_LETTERS = {
    "I": LogLevel.INFO,
    "W": LogLevel.WARNING,
    "E": LogLevel.ERROR,
    "D": LogLevel.DEBUG,
}


def clean_text(text: str) -> str:
    """Text without escape sequences, control and direction characters.

    Newlines and tabs stay; a bare carriage return becomes a newline.
    """
    text = _ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROL.sub("", text)


def clean_line(line: str) -> str:
    """One log line as it would stand on a terminal: what ``\\r`` overwrote is gone."""
    line = line.rstrip("\r")
    if "\r" in line:
        line = line.rpartition("\r")[2]
    return _CONTROL.sub("", _ANSI.sub("", line)).replace("\n", " ").expandtabs()


def level_of(line: str) -> LogLevel:
    """The level a line carries, by llama.cpp's prefix or by its first word."""
    if prefix := _PREFIX.match(line):
        return _LETTERS[prefix[2]]
    if bare := _BARE_LEVEL.match(line):
        warning = bare[1].lower() == "warning"
        return LogLevel.WARNING if warning else LogLevel.ERROR
    return LogLevel.INFO


def prefix_length(line: str) -> int:
    """Characters of llama.cpp's time and level prefix; 0 without one."""
    prefix = _PREFIX.match(line)
    return prefix.end() if prefix else 0


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
