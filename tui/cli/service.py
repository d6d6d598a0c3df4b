"""``dllm-tui service``: keep the controller running."""

from __future__ import annotations

import os
from collections.abc import Iterator

import click

from backends.paths import user_paths
from backends.service.manager import LINGER, Manager, ServiceState, hand_over, manager
from backends.service.unit import Service, controller_service
from tui.cli.command import Group, options
from tui.cli.output import emit_json, say, show

EXAMPLES = """
dllm-tui service install --dry-run     print the unit file
dllm-tui service install
dllm-tui service status
dllm-tui service remove                clusters keep serving
"""
dry_run_option = options(("--dry-run", bool, "Print the unit file; change nothing."))


@click.group(
    cls=Group,
    default="status",
    examples=EXAMPLES,
    notes="Exit code 1 of status: the service is installed but not running.",
)
def service() -> None:
    """Keep the controller running across logouts and reboots."""


def state_lines(
    state: ServiceState, ends: str = "It ends when you log out, with all it has started"
) -> Iterator[str]:
    running = f"running, pid {state.pid}" if state.running else "not running"
    yield f"service  {running if state.installed else 'not installed'}"
    yield f"file     {state.file}"
    if state.installed and state.lingers is False:
        say(f"{ends}: {LINGER} lets it go on, and starts it at boot.")


@service.command("install", shows=state_lines)
@dry_run_option
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
    if as_json:
        text = looked_after_by.text(wanted)
        emit_json({"file": str(looked_after_by.file), "text": text})
    else:
        _show_unit(looked_after_by, wanted)
    return None


def _show_unit(looked_after_by: Manager, wanted: Service) -> None:
    show(looked_after_by.text(wanted), end="")
    say(f"This is for {looked_after_by.file}.")


@service.command("remove")
def remove_service() -> ServiceState:
    """Stop and remove the service; clusters keep serving."""
    return _removed(manager())


def _removed(looked_after_by: Manager) -> ServiceState:
    looked_after_by.remove()
    say(f"Removed {looked_after_by.file}.")
    return looked_after_by.state()


@service.command(
    "status",
    shows=state_lines,
    fails=lambda state: state.installed and not state.running,
    watches=True,
)
def service_status() -> ServiceState:
    """Show whether it is installed, runs and outlives logouts."""
    return manager().state()


# --- services of other groups --------------------------------------------------------


def unit_lines(state: ServiceState) -> Iterator[str]:
    return state_lines(state, "It ends when you log out")


def installed(wanted: Service, *, dry_run: bool) -> ServiceState | None:
    """Install and start a service; in a dry run only print its unit file."""
    looked_after_by = manager(wanted.name)
    if dry_run:
        _show_unit(looked_after_by, wanted)
        return None
    looked_after_by.install(wanted)
    return looked_after_by.state()


def add_unit_commands(group: click.Group, name: str, ends: str) -> None:
    """Add ``remove``, which ``ends`` what runs, and ``status`` to a group."""

    def remove() -> ServiceState:
        return _removed(manager(name))

    def status() -> ServiceState:
        return manager(name).state()

    remove.__doc__ = f"Stop and remove it{ends}."
    status.__doc__ = "Show whether it is installed and runs."
    group.command("remove")(remove)
    group.command("status", shows=unit_lines, watches=True)(status)
