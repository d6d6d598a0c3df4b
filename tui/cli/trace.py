"""``dllm-tui trace``: the passes of the running cluster as a Chrome trace."""

from __future__ import annotations

from pathlib import Path

import click

from backends.errors import DllmError
from backends.state import to_json
from tui.cli.output import emit_json, json_option, run, say

EXAMPLES = """
\b
Examples:
  dllm-tui trace -o passes.json      then open it in https://ui.perfetto.dev
  dllm-tui trace --json | jq '.traceEvents | length'
"""


@click.command(epilog=EXAMPLES)
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="File to write.")
@json_option
def trace(output: str | None, as_json: bool) -> None:
    """Export where the time of the latest tokens went."""
    from backends.controller.client import ControllerClient
    from backends.link.trace import chrome_trace

    events = chrome_trace(run(ControllerClient().passes()))
    if output is None or as_json:
        emit_json(events)
        return
    try:
        Path(output).write_text(to_json(events))
    except OSError as error:
        raise DllmError(f"Cannot write {output} ({error.strerror})") from error
    say(f"{len(events['traceEvents'])} events in {output}.")
