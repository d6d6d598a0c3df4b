"""``dllm-tui logs`` and ``events``: what the processes say, and what happened."""

from __future__ import annotations

import asyncio
import time
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
from tui.model.merged_log import CONTROLLER, LogLine, MergedLog, shown_lines
from tui.widgets.safe_text import safe_line

LOGS_EXAMPLES = """
dllm-tui logs                                list the processes
dllm-tui logs worker1 -n 50
dllm-tui logs llama-server --follow
dllm-tui logs llama-server --level warning
dllm-tui logs --all -f                       all processes, by time
dllm-tui logs --all --since 10m --level warning
dllm-tui logs llama-server worker1           these two, by time
"""
EVENTS_EXAMPLES = """
dllm-tui events                      the last week
dllm-tui events --since 2h           the last two hours
dllm-tui events --evidence           with the last log lines of what died
dllm-tui events --follow             and new ones as they happen
dllm-tui events --json | jq '.[] | select(.kind == "died")'
"""
LOG_POLL_S = 0.25
MERGED_POLL_S = 0.5
MERGED_BYTES = 1 << 20
"""Of each log's end, among which lines are looked for."""
LINES = 40
EVENTS_POLL_S = 0.5
CHUNK_BYTES = 1 << 18
# A generous guess of a line, to fetch enough for the lines asked for.
LINE_BYTES = 200


# --- logs ----------------------------------------------------------------------------


@click.command(cls=Command, watches=True, examples=LOGS_EXAMPLES)
@click.argument("processes", nargs=-1, metavar="[NAME]...", type=Name("processes"))
@options(
    ("--all everything", bool, "Show all processes' logs as one, by time."),
    ("--since", "AGE", "Show lines since this long ago: 90s, 30m, 2h."),
    ("-n --lines", click.IntRange(0), f"Number of lines, from the end: {LINES}."),
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
    processes: tuple[str, ...],
    everything: bool,
    since: str | None,
    lines: int | None,
    follow: bool,
    level: str,
    as_json: bool,
) -> None:
    """Show the log of a process; without NAME list them.

    Several logs are shown as one, by time: --all, several NAMEs, or --since. Each line
    has its time and its process; ~ marks the time of a line that tells none. Times of
    another machine are corrected by its clock's difference as last probed.
    """
    if as_json:
        refuse_with("--json", "--follow")
    if not processes and not everything:
        refuse_without("a process", "--follow", "--level", "--lines", "--since")
    names = await _names(client.cluster)
    if not processes and not everything:
        if as_json:
            emit_json(names)
        elif names:
            show("\n".join(names))
        else:
            say("No process has been started.")
        return
    for name in processes:
        if name not in (*names, CONTROLLER.name):
            listed = ", ".join(names) or "none have been started"
            raise UsageError(
                f"There is no process {name}",
                f"{did_you_mean(name, names)}Processes: {listed}.",
            )
    if everything or since is not None or len(processes) > 1:
        merged = _Merged(client, () if everything else processes, LogLevel(level))
        await merged.tell(lines, since, as_json=as_json, follow=follow)
        return
    log = _Log(client, processes[0], LogLevel(level))
    tail = await log.tail(LINES if lines is None else lines)
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


class _Merged:
    """The logs of some processes as one; none named means all."""

    def __init__(
        self, client: ControllerClient, names: tuple[str, ...], level: LogLevel
    ) -> None:
        self._client = client
        self._names = names
        self._level = level
        self._log = MergedLog(client.read_log, tail_bytes=MERGED_BYTES)

    async def tell(
        self, lines: int | None, since: str | None, *, as_json: bool, follow: bool
    ) -> None:
        tail = await self._more(unfinished=not follow)
        if since is not None:
            oldest = time.time() - quantity(since, SECONDS, "2h")
            tail = [line for line in tail if line.at >= oldest]
        if since is None or lines is not None:
            n_lines = LINES if lines is None else lines
            tail = tail[len(tail) - n_lines :] if n_lines < len(tail) else tail
        if as_json:
            emit_json([line._asdict() for line in tail])
            return
        self._show(tail)
        while follow:
            await asyncio.sleep(0 if self._log.is_behind else MERGED_POLL_S)
            self._show(await self._more())

    async def _more(self, *, unfinished: bool = False) -> list[LogLine]:
        snapshot = await self._client.snapshot()
        found = await self._log.more(snapshot, self._names, unfinished=unfinished)
        if self._level is LogLevel.DEBUG:
            return found
        return [line for line in found if self._level.admits(line.shown(0))]

    def _show(self, found: Sequence[LogLine]) -> None:
        for line in shown_lines(found):
            show(line)


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
