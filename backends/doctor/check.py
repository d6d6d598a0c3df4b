"""A check of the doctor: its verdict, what it found, and what would repair it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from backends.state import Transport, Value

TOGETHER = " + "
"""Between the names of machines that are wrong only together."""
WITH_AGENT = (Transport.SSH, Transport.INVITED)
"""The ways to peers on which an agent of ours runs."""


class Verdict(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class RepairKind(StrEnum):
    END_ORPHANS = "end orphans"
    INSTALL = "install"
    USE_TUNNEL = "use tunnel"
    KEEP_AWAKE = "keep awake"


class Repair(Value, frozen=True, kw_only=True):
    kind: RepairKind
    text: str
    """The deed as a request: ``Install this machine's engine on ada``."""
    machine: str = ""


class Check(Value, frozen=True, kw_only=True):
    name: str
    verdict: Verdict = Verdict.OK
    detail: str = ""
    """One line, or a table below its first."""
    fix: str = ""
    machines: tuple[str, ...] = ()
    """The machines to blame; empty if there are none."""
    repairs: tuple[Repair, ...] = ()


class Finding(Value, frozen=True, kw_only=True):
    """A fault of one machine, on the way to a check."""

    machine: str
    what: str
    """A clause about the machine: ``its clock is +75.0 s off``."""
    verdict: Verdict = Verdict.WARN
    repair: Repair | None = None

    @property
    def names(self) -> list[str]:
        """The machines to blame, where it is about several together."""
        return self.machine.split(TOGETHER)


def check_of(
    name: str, fine: str, findings: list[Finding], *, fix: str = "", unread: str = ""
) -> Check:
    lines = [f"{one.machine}: {one.what}" for one in findings]
    worst = Verdict.OK
    for one in findings:
        if worst is not Verdict.FAIL:
            worst = one.verdict
    return Check(
        name=name,
        verdict=worst,
        detail="\n".join(filter(None, [*(lines or [fine]), unread])),
        fix=fix if findings else "",
        machines=tuple(dict.fromkeys(n for one in findings for n in one.names)),
        repairs=tuple(one.repair for one in findings if one.repair),
    )


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows of a table, as lines."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(f"{c:{w}}" for c, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
