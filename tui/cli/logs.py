"""``dllm-tui logs``: what the processes say."""

from __future__ import annotations

import asyncio

import click

from backends.errors import UsageError
from tui.cli.output import emit_json, json_option, printable, run
from tui.cli.status import current_snapshot

EXAMPLES = """
\b
Examples:
  dllm-tui logs
  dllm-tui logs worker1 -n 50
  dllm-tui logs llama-server --follow
"""

POLL_S = 0.25
CHUNK_BYTES = 1 << 18
# A generous guess of a line, to fetch enough for the lines asked for.
LINE_BYTES = 200


@click.command(epilog=EXAMPLES)
@click.argument("name", required=False)
@click.option(
    "-n", "--lines", default=40, show_default=True, help="Lines from the end."
)
@click.option("-f", "--follow", is_flag=True, help="Go on as it grows; Ctrl-C ends.")
@json_option
def logs(name: str | None, lines: int, follow: bool, as_json: bool) -> None:
    """Show the log of a process; without NAME, list the processes."""
    if name is None:
        names = run(_names())
        emit_json(names) if as_json else click.echo("\n".join(names))
    else:
        run(_show(name, lines, follow=follow, as_json=as_json))


async def _names() -> list[str]:
    return [process.name for process in (await current_snapshot()).processes]


async def _show(name: str, lines: int, *, follow: bool, as_json: bool) -> None:
    """Print the end of a log, then what is added."""
    from backends.controller.client import ControllerClient

    client = ControllerClient()
    known = await _names()
    if name not in known:
        listed = ", ".join(known) or "none have been started"
        raise UsageError(f"There is no process {name}", f"Processes: {listed}.")
    chunk = await client.read_log(name, -lines * LINE_BYTES, CHUNK_BYTES)
    tail = chunk.text.splitlines()[-lines:]
    if as_json:
        emit_json(tail)
        return
    click.echo(printable("\n".join(tail)))
    while follow:
        chunk = await client.read_log(name, chunk.next_offset, CHUNK_BYTES)
        click.echo(printable(chunk.text), nl=False)
        await asyncio.sleep(POLL_S)
