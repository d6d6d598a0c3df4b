"""``dllm-tui service`` and ``doctor``: what keeps running here, and is it in order?"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from backends.paths import user_paths
from backends.service.manager import LINGER, ServiceState, hand_over, manager
from backends.service.unit import controller_service
from tui.cli.command import Command, Group, options
from tui.cli.output import emit_json, say, show

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backends.doctor.examine import Check

EXAMPLES = """
dllm-tui service install --dry-run     print the unit file
dllm-tui service install
dllm-tui service status
dllm-tui service remove                clusters keep serving
"""
DOCTOR_EXAMPLES = """
dllm-tui doctor
dllm-tui doctor --json
"""
MARKS = {"ok": "✓", "warn": "!", "fail": "✗"}


@click.group(
    cls=Group,
    default="status",
    examples=EXAMPLES,
    notes="Exit code 1 of status: the service is installed but not running.",
)
def service() -> None:
    """Keep the controller running across logouts and reboots."""


def _state_lines(state: ServiceState) -> Iterator[str]:
    running = f"running, pid {state.pid}" if state.running else "not running"
    yield f"service  {running if state.installed else 'not installed'}"
    yield f"file     {state.file}"
    if state.installed and state.lingers is False:
        say(
            f"It ends when you log out, with all it has started: {LINGER} lets it go "
            "on, and starts it at boot."
        )


@service.command("install", shows=_state_lines)
@options(("--dry-run", bool, "Print the unit file; change nothing."))
async def install_service(dry_run: bool, as_json: bool) -> ServiceState | None:
    """Install and start the service.

    It starts the controller now, at every login, and whenever it exits. It takes over
    from a running controller; clusters keep serving.
    """
    paths, looked_after_by = user_paths(), manager()
    wanted = controller_service(paths, os.environ)
    if not dry_run:
        looked_after_by.install(wanted)
        return await hand_over(paths, looked_after_by)
    text = looked_after_by.text(wanted)
    if as_json:
        emit_json({"file": str(looked_after_by.file), "text": text})
    else:
        show(text, end="")
        say(f"This is for {looked_after_by.file}.")
    return None


@service.command("remove")
def remove_service() -> ServiceState:
    """Stop and remove the service; clusters keep serving."""
    looked_after_by = manager()
    looked_after_by.remove()
    say(f"Removed {looked_after_by.file}.")
    return looked_after_by.state()


@service.command(
    "status",
    shows=_state_lines,
    fails=lambda state: state.installed and not state.running,
    watches=True,
)
def service_status() -> ServiceState:
    """Show whether it is installed, runs and outlives logouts."""
    return manager().state()


@click.command(
    cls=Command,
    watches=True,
    examples=DOCTOR_EXAMPLES,
    notes="Exit code 1: something must be fixed before a launch can work.",
)
async def doctor(as_json: bool) -> None:
    """Check settings, engine, model, ports, leftovers and peers."""
    from backends.doctor.examine import examine

    checks = [_terminal()]
    if not as_json:
        _print(checks[0])
    async for check in examine(user_paths()):
        checks.append(check)
        if not as_json:
            _print(check)
    if as_json:
        emit_json(checks)
    if any(check.verdict == "fail" for check in checks):
        raise click.exceptions.Exit(1)


def _terminal() -> Check:
    from backends.doctor.examine import Check, Verdict

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
