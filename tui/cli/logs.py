"""``dllm-tui logs`` and ``events``: what the processes say, and what happened."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import click

from backends.client.client import ControllerClient
from backends.errors import UsageError, did_you_mean
from backends.state import Event
from tui.cli.command import (
    SECONDS,
    Command,
    Name,
    any_cluster_option,
    cluster_option,
    options,
    quantity,
    refuse_with,
    refuse_without,
)
from tui.cli.output import emit_json, say, show
from tui.cli.status import current_snapshot
from tui.model.events import SIGNS, details
from tui.model.log_levels import LogLevel
from tui.widgets.safe_text import safe_line

LOGS_EXAMPLES = """
dllm-tui logs                                list the processes
dllm-tui logs worker1 -n 50
dllm-tui logs llama-server --follow
dllm-tui logs llama-server --level warning
"""
EVENTS_EXAMPLES = """
dllm-tui events                      the last week
dllm-tui events --since 2h           the last two hours
dllm-tui events --evidence           with the last log lines of what died
dllm-tui events --follow             and new ones as they happen
dllm-tui events --json | jq '.[] | select(.kind == "died")'
"""
LOG_POLL_S = 0.25
EVENTS_POLL_S = 0.5
CHUNK_BYTES = 1 << 18
# A generous guess of a line, to fetch enough for the lines asked for.
LINE_BYTES = 200


# --- logs ----------------------------------------------------------------------------


@click.command(cls=Command, watches=True, examples=LOGS_EXAMPLES)
@click.argument("name", required=False, type=Name("processes"))
@options(
    ("-n --lines", click.IntRange(0), "Number of lines, from the end.", 40),
    ("-f --follow", bool, "Keep printing new lines."),
    (
        "--level",
        click.Choice([level.value for level in LogLevel]),
        "Lowest level to show.",
        LogLevel.DEBUG.value,
    ),
)
@cluster_option
async def logs(
    client: ControllerClient,
    name: str | None,
    lines: int,
    follow: bool,
    level: str,
    as_json: bool,
) -> None:
    """Show the log of a process; without NAME list them."""
    if as_json:
        refuse_with("--json", "--follow")
    if name is None:
        refuse_without("a process", "--follow", "--level", "--lines")
    names = await _names(client.cluster)
    if name is None:
        if as_json:
            emit_json(names)
        elif names:
            show("\n".join(names))
        else:
            say("No process has been started.")
        return
    if name not in names:
        listed = ", ".join(names) or "none have been started"
        raise UsageError(
            f"There is no process {name}",
            f"{did_you_mean(name, names)}Processes: {listed}.",
        )
    log = _Log(client, name, LogLevel(level))
    tail = await log.tail(lines)
    if as_json:
        emit_json(tail)
        return
    show("\n".join(tail))
    while follow:
        _, found = await log.read()
        show("".join(f"{line}\n" for line in found), end="")
        await asyncio.sleep(LOG_POLL_S)


async def _names(cluster: str) -> list[str]:
    return [process.name for process in (await current_snapshot(cluster)).processes]


class _Log:
    def __init__(self, client: ControllerClient, name: str, level: LogLevel) -> None:
        self._client = client
        self._name = name
        self._level = level
        self._offset = 0
        self._rest = ""

    async def tail(self, lines: int) -> list[str]:
        """The last lines of the log; those of a level may lie anywhere in it."""
        kept: deque[str] = deque(maxlen=lines)
        if self._level is LogLevel.DEBUG:
            self._offset = -lines * LINE_BYTES
        going = True
        while going:
            going, found = await self.read()
            kept.extend(found)
        rest, self._rest = self._rest, ""
        if rest and self._shows(rest):
            kept.append(rest)
        return list(kept)

    async def read(self) -> tuple[bool, list[str]]:
        """The next whole lines to show, and True if any text was read."""
        chunk = await self._client.read_log(self._name, self._offset, CHUNK_BYTES)
        self._offset = chunk.next_offset
        *whole, self._rest = (self._rest + chunk.text).split("\n")
        return bool(chunk.text), [line for line in whole if self._shows(line)]

    def _shows(self, line: str) -> bool:
        return self._level.admits(safe_line(line))


# --- events --------------------------------------------------------------------------


@click.command(cls=Command, watches=True, examples=EVENTS_EXAMPLES)
@options(
    ("--since", "AGE", "Show events since this long ago: 90s, 30m, 2h, 3d."),
    ("--evidence", bool, "Include the last log lines of what died."),
    ("-f --follow", bool, "Keep printing new events."),
)
@any_cluster_option
async def events(
    client: ControllerClient,
    since: str | None,
    evidence: bool,
    follow: bool,
    cluster: str | None,
    as_json: bool,
) -> None:
    """Show what happened: launches, crashes, recoveries.

    With --json and --follow every event is a line of JSON.
    """
    oldest, newest = datetime.min.replace(tzinfo=UTC), 0
    if since is not None:
        oldest = datetime.now(UTC) - timedelta(seconds=quantity(since, SECONDS, "2h"))
    while True:
        found = await client.events(after=newest)
        newest = found[-1].number if found else newest
        wanted = [
            event
            for event in found
            if event.at >= oldest and cluster in (None, event.cluster or cluster)
        ]
        if as_json and not follow:
            emit_json(wanted)
        elif as_json:
            for event in wanted:
                emit_json(event, indent=0)
        else:
            _show_events(wanted, evidence=evidence)
        if not follow:
            if not wanted and not as_json:
                say("No events.")
            return
        await asyncio.sleep(EVENTS_POLL_S)


def _show_events(found: Sequence[Event], *, evidence: bool) -> None:
    for event in found:
        when = event.at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        show(f"{when}  {SIGNS[event.tone]} {event.sentence}")
        more = [*details(event), *(f"| {line}" for line in event.evidence if evidence)]
        for line in more:
            show(f"{'':19}    {line}")
