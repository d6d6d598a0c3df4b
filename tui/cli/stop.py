"""``dllm-tui stop``: end a cluster, or everything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tui.cli.options import cluster_option
from tui.cli.output import emit_json, json_option, run, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from backends.state import Leftover
    from tui.cli.ending import Ended

EXAMPLES = """
\b
Examples:
  dllm-tui stop
  dllm-tui stop --cluster second
  dllm-tui stop --all

Exit code 1 means that something could not be stopped; it says what.
"""


@click.command(epilog=EXAMPLES)
@cluster_option
@click.option("--all", "every", is_flag=True, help="Every cluster.")
@json_option
def stop(cluster: str, every: bool, as_json: bool) -> None:
    """Stop llama-server and the workers, and the controller with the last cluster."""
    ended, orphans = run(_stop(cluster, every=every))
    stopped = [name for one in ended for name in one.stopped] + orphans
    leftovers = [left for one in ended for left in one.leftovers]
    if as_json:
        emit_json({"stopped": stopped, "leftovers": leftovers})
    else:
        _tell(stopped, leftovers)
    if leftovers:
        raise click.exceptions.Exit(1)


def _tell(stopped: Sequence[str], leftovers: Sequence[Leftover]) -> None:
    if stopped:
        say(f"Stopped {', '.join(stopped)}.")
    elif not leftovers:
        say("Nothing was running.")
    for left in leftovers:
        why = f": {left.why.rstrip('.')}" if left.why else ""
        say(
            f"{left.name} on {left.peer} could not be stopped{why}. "
            f"It is ended when {left.peer} can be reached again."
        )


async def _stop(cluster: str, *, every: bool) -> tuple[list[Ended], list[str]]:
    """What was stopped, by cluster, and the names of orphans that were ended."""
    from backends.client.client import ControllerClient
    from backends.doctor.orphans import end_orphans, find_orphans
    from backends.paths import user_paths
    from tui.cli.ending import end_cluster

    ended = []
    # Seen before a controller starts: it ends some of them itself.
    lost = await find_orphans(user_paths())
    client = ControllerClient(cluster=cluster)
    if await client.running() or client.left_processes():
        briefs = (await client.snapshot()).clusters if every else ()
        names = [brief.name for brief in briefs] or [cluster]
        for name in names:
            client.use(name)
            ended.append(await end_cluster(client))
    lost += await end_orphans(user_paths())
    return ended, list(dict.fromkeys(orphan.name for orphan in lost))
