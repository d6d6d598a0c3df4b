"""``dllm-tui status``: what runs now."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from backends.state import ClusterSnapshot, ClusterState
from backends.units import format_bytes
from tui.cli.output import emit_json, json_option, printable, run
from tui.cli.session import cluster_json, verdict

if TYPE_CHECKING:
    from backends.state import ProcessInfo

EXAMPLES = """
\b
Examples:
  dllm-tui status
  dllm-tui status --json | jq .api_url

Exit code 1 means the cluster failed.
"""


@click.command(epilog=EXAMPLES)
@json_option
def status(as_json: bool) -> None:
    """Show what runs: state, API, split, processes."""
    snapshot = run(current_snapshot())
    if as_json:
        emit_json(cluster_json(snapshot))
    else:
        click.echo("\n".join(_lines(snapshot)))
    if snapshot.state is ClusterState.FAILED:
        raise click.exceptions.Exit(1)


async def current_snapshot() -> ClusterSnapshot:
    """The controller's snapshot; an idle one when nothing was ever started.

    A controller is started only to adopt processes an earlier one left running.
    """
    from backends.controller.client import ControllerClient

    client = ControllerClient()
    if await client.running() or client.left_processes():
        return await client.snapshot()
    return ClusterSnapshot()


def _lines(snapshot: ClusterSnapshot) -> list[str]:
    lines = [f"state    {snapshot.state.value}"]
    if snapshot.message:
        lines.append(f"         {printable(snapshot.message)}")
    if snapshot.api_url:
        lines.append(f"api      {snapshot.api_url}")
    if snapshot.plan:
        lines.append(f"model    {printable(snapshot.plan.model)}")
        lines += [
            f"layers   {r.device:24} {r.first}–{r.last}" for r in snapshot.planned
        ]
        lines.append(f"split    {verdict(snapshot)}")
    lines += [_process_line(process) for process in snapshot.processes]
    return lines


def _process_line(process: ProcessInfo) -> str:
    memory = format_bytes(process.rss_bytes) if process.rss_bytes else ""
    where = f"pid {process.pid}" if process.state != "exited" else "ended"
    return f"process  {process.name:24} {process.state.value:9} {where:12} {memory}"
