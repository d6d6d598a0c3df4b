"""``dllm-tui trace``: the passes of the running cluster as a Chrome trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from backends.errors import DllmError
from backends.state import to_json
from tui.cli.options import cluster_option
from tui.cli.output import emit_json, json_option, run, say

if TYPE_CHECKING:
    from backends.state import Pass

EXAMPLES = """
\b
Examples:
  dllm-tui trace -o passes.json      then open it in https://ui.perfetto.dev
  dllm-tui trace --json | jq '.traceEvents | length'
"""


@click.command(epilog=EXAMPLES)
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="File to write.")
@cluster_option
@json_option
def trace(output: str | None, cluster: str, as_json: bool) -> None:
    """Export where the time of the latest tokens went."""
    from backends.link.trace import chrome_trace

    events = chrome_trace(run(_passes(cluster)))
    if output is None or as_json:
        emit_json(events)
        return
    try:
        Path(output).write_text(to_json(events))
    except OSError as error:
        raise DllmError(f"Cannot write {output} ({error.strerror})") from error
    say(f"{len(events['traceEvents'])} events in {output}.")


async def _passes(cluster: str) -> dict[str, tuple[Pass, ...]]:
    """What was measured of each link.

    Raises:
        DllmError: nothing was.
    """
    from backends.client.client import ControllerClient
    from backends.link.absence import why_no_link
    from tui.cli.status import current_snapshot

    if why := why_no_link(await current_snapshot(cluster)):
        raise DllmError(why)
    passes = await ControllerClient(cluster=cluster).passes()
    if not any(passes.values()):
        raise DllmError(
            "No token has been measured yet",
            "Ask something first, for example: dllm-tui chat hello.",
        )
    return passes
