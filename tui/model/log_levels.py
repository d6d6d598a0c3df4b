"""The level of a log line, read from its text."""

from __future__ import annotations

import re
from enum import StrEnum

_OWN_TIME = re.compile(
    r"(?:\d+\.\d\d\.\d{3}\.\d{3}|\d{4}-\d\d-\d\d[T ][\d:.,]{12}Z?) "
    r"|[ ~]\d\d:\d\d:\d\d\.\d{3} \S+ +│ "  # Of a merged log, with the process.
)
_LEVEL = re.compile(r"([IWED]|INFO|WARNING|ERROR|DEBUG|CRITICAL) ")
_BARE_LEVEL = re.compile(r"\s*(?:[\w.]+:\s+)?(error|fatal|warning|failed)\b", re.I)


class LogLevel(StrEnum):
    """The level of a log line, the least serious first."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    def admits(self, line: str) -> bool:
        return self is LogLevel.DEBUG or _RANKS[level_of(line)] >= _RANKS[self]

    def after(self) -> LogLevel:
        """The next worse level, and after the worst the first."""
        return _IN_ORDER[(_RANKS[self] + 1) % len(_IN_ORDER)]


_IN_ORDER = tuple(LogLevel)
_RANKS = {level: rank for rank, level in enumerate(_IN_ORDER)}
_LETTERS = {
    "I": LogLevel.INFO,
    "W": LogLevel.WARNING,
    "E": LogLevel.ERROR,
    "C": LogLevel.ERROR,
    "D": LogLevel.DEBUG,
}


def level_of(line: str) -> LogLevel:
    """The level a line carries, by its prefix or its first word."""
    begin = _time_length(line)
    if begin and (level := _LEVEL.match(line, begin)):
        return _LETTERS[level[1][0]]
    if bare := _BARE_LEVEL.match(line, begin):
        warning = bare[1].lower() == "warning"
        return LogLevel.WARNING if warning else LogLevel.ERROR
    return LogLevel.INFO


def prefix_length(line: str) -> int:
    """Characters of the time and level prefix; 0 without one."""
    begin = _time_length(line)
    level = _LEVEL.match(line, begin) if begin else None
    return level.end() if level else begin if "│" in line[:begin] else 0


def _time_length(line: str) -> int:
    told = _OWN_TIME.match(line)
    return told.end() if told else 0
