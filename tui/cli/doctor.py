"""``dllm-tui doctor``: is everything in order here?"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from tui.cli.output import emit_json, json_option, run, show

if TYPE_CHECKING:
    from backends.doctor.checks import Check

EXAMPLES = """
\b
Examples:
  dllm-tui doctor
  dllm-tui doctor --json

Exit code 1 means that something must be mended before a launch can work.
"""

MARKS = {"ok": "✓", "warn": "!", "fail": "✗"}


@click.command(epilog=EXAMPLES)
@json_option
def doctor(as_json: bool) -> None:
    """Check settings, helper, engine, model, ports, leftovers and other machines."""
    checks = run(_examine(show=not as_json))
    if as_json:
        emit_json(checks)
    if any(check.verdict == "fail" for check in checks):
        raise click.exceptions.Exit(1)


async def _examine(*, show: bool) -> list[Check]:
    from backends.doctor.examine import examine
    from backends.paths import user_paths

    checks = [_terminal()]
    if show:
        _print(checks[0])
    async for check in examine(user_paths()):
        checks.append(check)
        if show:
            _print(check)
    return checks


def _terminal() -> Check:
    """Whether this terminal can show the console as it is meant."""
    from backends.doctor.checks import Check, Verdict

    encoding = (sys.stdout.encoding or "").lower()
    colours = os.environ.get("COLORTERM", "") or "256 or fewer colours"
    detail = f"{os.environ.get('TERM', 'unknown')}, {colours}, {encoding}"
    if "utf" not in encoding:
        return Check(
            name="terminal",
            verdict=Verdict.WARN,
            detail=detail,
            fix="Set a UTF-8 locale, for example LANG=C.UTF-8.",
        )
    return Check(name="terminal", detail=detail)


def _print(check: Check) -> None:
    mark = MARKS[check.verdict]
    first, *table = check.detail.splitlines() or [""]
    show(f"{mark} {check.name:12} {first}")
    for row in table:
        show(f"  {'':12} {row}")
    if check.fix:
        show(f"  {'':12} {check.fix}")
