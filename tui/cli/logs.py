"""``dllm-tui logs``: what the processes say."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

import click

from backends.errors import UsageError, did_you_mean
from tui.cli.options import cluster_option, completing
from tui.cli.output import emit_json, json_option, run, say, show
from tui.cli.status import current_snapshot
from tui.kit.safe_text import safe_line
from tui.work.log_levels import LogLevel

if TYPE_CHECKING:
    from backends.client.client import ControllerClient

EXAMPLES = """
\b
Examples:
  dllm-tui logs
  dllm-tui logs worker1 -n 50
  dllm-tui logs llama-server --follow
  dllm-tui logs llama-server --level warning
"""

POLL_S = 0.25
CHUNK_BYTES = 1 << 18
# A generous guess of a line, to fetch enough for the lines asked for.
LINE_BYTES = 200


@click.command(epilog=EXAMPLES)
@click.argument("name", required=False, shell_complete=completing("processes"))
@click.option(
    "-n", "--lines", default=40, show_default=True, help="Lines from the end."
)
@click.option("-f", "--follow", is_flag=True, help="Go on as it grows; Ctrl-C ends.")
@click.option(
    "--level",
    type=click.Choice([level.value for level in LogLevel]),
    default=LogLevel.DEBUG.value,
    show_default=True,
    help="Only lines of this level or worse.",
)
@cluster_option
@json_option
def logs(
    name: str | None,
    lines: int,
    follow: bool,
    level: str,
    cluster: str,
    as_json: bool,
) -> None:
    """Show the log of a process; without NAME, list the processes."""
    if name is None:
        names = run(_names(cluster))
        if as_json:
            emit_json(names)
        elif names:
            show("\n".join(names))
        else:
            say("No process has been started.")
    else:
        view = _View(cluster, name, LogLevel(level))
        run(view.write(lines, follow=follow, as_json=as_json))


async def _names(cluster: str) -> list[str]:
    return [process.name for process in (await current_snapshot(cluster)).processes]


class _View:
    """The lines of one log that are serious enough."""

    def __init__(self, cluster: str, name: str, level: LogLevel) -> None:
        self._cluster = cluster
        self._name = name
        self._level = level
        self._offset = 0
        self._rest = ""

    async def write(self, lines: int, *, follow: bool, as_json: bool) -> None:
        """Print the end of the log, then what is added."""
        from backends.client.client import ControllerClient

        client = ControllerClient(cluster=self._cluster)
        known = await _names(self._cluster)
        if self._name not in known:
            listed = ", ".join(known) or "none have been started"
            raise UsageError(
                f"There is no process {self._name}",
                f"{did_you_mean(self._name, known)}Processes: {listed}.",
            )
        tail = await self._tail(client, lines)
        if as_json:
            emit_json(tail)
            return
        show("\n".join(tail))
        while follow:
            _, found = await self._read(client)
            show("".join(f"{line}\n" for line in found), end="")
            await asyncio.sleep(POLL_S)

    async def _tail(self, client: ControllerClient, lines: int) -> list[str]:
        """The last lines of the log; those of a level may lie anywhere in it."""
        kept: deque[str] = deque(maxlen=lines)
        if self._level is LogLevel.DEBUG:
            self._offset = -lines * LINE_BYTES
        going = True
        while going:
            going, found = await self._read(client)
            kept.extend(found)
        return [*kept, *self._unfinished()][-lines:] if lines else []

    async def _read(self, client: ControllerClient) -> tuple[bool, list[str]]:
        """The next whole lines that are shown, and whether there was anything."""
        chunk = await client.read_log(self._name, self._offset, CHUNK_BYTES)
        self._offset = chunk.next_offset
        *whole, self._rest = (self._rest + chunk.text).split("\n")
        return bool(chunk.text), [line for line in whole if self._shows(line)]

    def _unfinished(self) -> list[str]:
        """The last line, whose end has not come yet."""
        rest, self._rest = self._rest, ""
        return [rest] if rest and self._shows(rest) else []

    def _shows(self, line: str) -> bool:
        return self._level.admits(safe_line(line))
