"""A finding of ``doctor``."""

from __future__ import annotations

from enum import StrEnum

from backends.state import Value


class Verdict(StrEnum):
    """The outcomes of a check."""

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
