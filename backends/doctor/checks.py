"""What ``doctor`` says of one thing it looked at."""

from __future__ import annotations

from enum import StrEnum

from backends.state import Value


class Verdict(StrEnum):
    """How a check went."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Check(Value, frozen=True, kw_only=True):
    """One thing looked at."""

    name: str
    verdict: Verdict = Verdict.OK
    detail: str = ""
    """One line, or a table below its first."""
    fix: str = ""
