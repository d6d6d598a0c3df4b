"""``dllm-tui doctor``: examine this machine and all others, and repair them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from backends.client.http import ASKING, ReadOnly
from backends.errors import DllmError, UsageError
from backends.paths import Paths, user_paths
from tui.cli.command import Command, Name, options, prompting, refuse_with
from tui.cli.model_argument import require_model
from tui.cli.output import emit_json, require_folder, say, show, warn
from tui.cli.progress import ProgressLine, ticking

if TYPE_CHECKING:
    from backends.doctor.check import Check, Repair


EXAMPLES = """
dllm-tui doctor
dllm-tui doctor --quick                    leave out the golden output
dllm-tui doctor m.gguf                     compare it on all machines too
dllm-tui doctor --fix                      ask before each repair
dllm-tui doctor --fix --yes --json
dllm-tui doctor --bundle report.tar.gz     for a bug report, without names
"""
MARKS = {"ok": "✓", "warn": "!", "fail": "✗"}
CANCEL, YES, NO = "cancel", "yes", "no"


@click.command(
    cls=Command,
    watches=True,
    quiet=True,
    examples=EXAMPLES,
    notes="Exit code 1: something must be fixed before a launch can work, or computes "
    "wrongly.",
)
@click.argument("path", metavar="[MODEL]", required=False, type=Name("models"))
@options(
    ("--quick", bool, "Leave out the golden output and the bytes of MODEL."),
    ("--fix", bool, "Offer repairs, and ask before each."),
    ("--yes", bool, "With --fix: do all of them without asking."),
    ("--bundle", "FILE", "Write a tar.gz for a bug report, without names or keys."),
)
async def doctor(
    path: str | None,
    quick: bool,
    fix: bool,
    yes: bool,
    bundle: str | None,
    as_json: bool,
) -> None:
    """Check this machine, all peers and the network between them.

    Every worker computes a known answer on the demo model, alone and in its place.
    With MODEL its copies are compared tensor by tensor, and its operators are tried.
    """
    if yes and not fix:
        raise UsageError("--yes has no effect without --fix", "Add --fix.")
    if quick and path:
        refuse_with("MODEL", "--quick")
    if fix and ASKING.get().readonly:
        raise ReadOnly("dllm-tui doctor --fix")
    if bundle:
        require_folder(bundle)
    paths = user_paths()
    checks = await _examined(paths, path, quick=quick, silent=as_json)
    done = await _repaired(paths, checks, yes=yes) if fix else []
    if bundle:
        from backends.doctor.bundle import write_bundle

        await write_bundle(paths, checks, Path(bundle))
        say(f"Wrote {bundle}: look into it before you send it.")
    if as_json:
        emit_json(checks)
    failed = {check.name for check in checks if check.verdict == "fail"}
    if failed - _mended(checks, done):
        raise click.exceptions.Exit(1)


async def _examined(
    paths: Paths, path: str | None, *, quick: bool, silent: bool
) -> list[Check]:
    from backends.doctor.examine import Wish, examine

    checks = [_terminal()]
    line = ProgressLine()

    def told(machine: str, done_bytes: int, size_bytes: int) -> None:
        line.show_bytes(f"reading the model on {machine}", done_bytes, size_bytes)

    wish = Wish(quick=quick, model=await require_model(path) if path else "")
    if not silent:
        _print(checks[0])
    async with ticking(line), aclosing(examine(paths, wish, told)) as found:
        async for check in found:
            checks.append(check)
            if not silent:
                line.clear()
                _print(check)
    return checks


# --- repairs -------------------------------------------------------------------------


async def _repaired(
    paths: Paths, checks: Sequence[Check], *, yes: bool
) -> list[Repair]:
    from backends.doctor.installation import do_repair, repairs_of

    offered, done = repairs_of(checks), []
    if not offered:
        say("There is nothing that doctor can repair itself.")
    for repair in offered:
        answer = YES if yes else _asked(repair)
        if answer == CANCEL:
            say("Cancelled: the rest is left as it is.")
            break
        if answer == NO:
            continue
        try:
            say(await do_repair(paths, repair))
        except DllmError as error:
            warn(f"{repair.text}: {error}")
        else:
            done.append(repair)
    return done


def _asked(repair: Repair) -> str:
    if not sys.stdin.isatty():
        raise UsageError(
            "--fix asks before each repair, and there is no terminal",
            "Add --yes to do all of them.",
        )
    with prompting():
        answer: str = click.prompt(
            f"{repair.text}?",
            type=click.Choice([CANCEL, YES, NO]),
            default=CANCEL,
            err=True,
        )
    return answer


def _mended(checks: Sequence[Check], done: Sequence[Repair]) -> set[str]:
    # A check counts if all of its repairs were done.
    return {c.name for c in checks if c.repairs and set(c.repairs) <= set(done)}


# --- printing ------------------------------------------------------------------------


def _terminal() -> Check:
    from backends.doctor.check import Check, Verdict

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
