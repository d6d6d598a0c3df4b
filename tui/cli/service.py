"""``dllm-tui service``: what runs goes on across logouts and reboots."""

from __future__ import annotations

import os

import click

from backends.paths import user_paths
from backends.service.hand_over import hand_over
from backends.service.manager import LINGER, ServiceState, manager
from backends.service.unit import controller_service
from tui.cli.output import emit_json, json_option, run, say, show

EXAMPLES = """
\b
Examples:
  dllm-tui service install --dry-run     prints the file, and does nothing
  dllm-tui service install
  dllm-tui service status
  dllm-tui service remove                what serves goes on

status gives exit code 1 for a service that is installed and does not run.
"""


@click.group(epilog=EXAMPLES)
def service() -> None:
    """Keep clusters running across logouts and reboots (systemd, launchd)."""


@service.command("install", epilog=EXAMPLES)
@click.option("--dry-run", is_flag=True, help="Print the file; write and start none.")
@json_option
def install_service(dry_run: bool, as_json: bool) -> None:
    """Have the controller started now, at every login, and whenever it ends.

    It takes over from a controller that runs; what serves goes on.
    """
    paths, looked_after_by = user_paths(), manager()
    wanted = controller_service(paths, os.environ)
    if dry_run:
        text = looked_after_by.text(wanted)
        if as_json:
            emit_json({"file": str(looked_after_by.file), "text": text})
        else:
            show(text, end="")
            say(f"This is for {looked_after_by.file}.")
        return
    looked_after_by.install(wanted)
    state = run(hand_over(paths, looked_after_by))
    _show(state, as_json)


@service.command("remove", epilog=EXAMPLES)
@json_option
def remove_service(as_json: bool) -> None:
    """End the service, and start it no more; what serves goes on."""
    looked_after_by = manager()
    looked_after_by.remove()
    if as_json:
        emit_json(looked_after_by.state())
    else:
        say(f"{looked_after_by.file} is removed.")


@service.command("status", epilog=EXAMPLES)
@json_option
def service_status(as_json: bool) -> None:
    """Show whether it is installed and runs, and whether it outlives logouts."""
    state = manager().state()
    _show(state, as_json)
    if state.installed and not state.running:
        raise click.exceptions.Exit(1)


def _show(state: ServiceState, as_json: bool) -> None:
    if as_json:
        emit_json(state)
        return
    there = f"pid {state.pid}" if state.running else "does not run"
    show(f"service  {there if state.installed else 'not installed'}")
    show(f"file     {state.file}")
    if state.installed and state.lingers is False:
        say(
            f"It ends when you log out, with all it has started: {LINGER} lets it go "
            "on, and starts it at boot."
        )
