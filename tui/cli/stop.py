"""``dllm-tui stop``: end everything."""

from __future__ import annotations

import click

from tui.cli.output import emit_json, json_option, run, say

EXAMPLES = """
\b
Examples:
  dllm-tui stop
"""


@click.command(epilog=EXAMPLES)
@json_option
def stop(as_json: bool) -> None:
    """Stop llama-server, the workers and the controller; leave nothing behind."""
    stopped = run(_stop())
    if as_json:
        emit_json({"stopped": stopped})
    else:
        say(f"Stopped {', '.join(stopped)}." if stopped else "Nothing was running.")


async def _stop() -> list[str]:
    """Names of the processes that were running."""
    from backends.controller.client import ControllerClient

    client = ControllerClient()
    if not await client.running() and not client.left_processes():
        return []
    snapshot = await client.snapshot()
    await client.shutdown()
    return [p.name for p in snapshot.processes if p.state != "exited"]
