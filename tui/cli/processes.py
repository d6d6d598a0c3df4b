"""``dllm-tui processes``: every process of a cluster, and what it uses."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import click
from msgspec.structs import replace

from backends.client.client import ControllerClient
from backends.errors import UsageError, did_you_mean
from backends.redaction import shown_argv
from backends.state import Event, ProcessInfo, UsageReport
from tui.cli.command import Group, Name, cluster_option, options, prompting
from tui.cli.output import Column, Table, emit_json, redraw_screen, say
from tui.model.process_words import (
    TAIL_BYTES,
    age_of,
    belongs_to_cluster,
    cpu_text,
    ending_text,
    kill_question,
    last_lines,
    memory_text,
    process_facts,
    usual_order,
)
from tui.widgets.safe_text import safe, safe_line

EXAMPLES = """
dllm-tui processes list
dllm-tui processes list --watch
dllm-tui processes list -o wide --cluster second
dllm-tui processes show worker1
dllm-tui processes restart llama-server
dllm-tui processes kill worker1 --peer mini
"""


PROCESSES = Table(
    columns=[
        Column("NAME", lambda one: one.name),
        Column("MACHINE", lambda one: one.peer),
        Column("STATE", lambda one: one.state.value),
        Column("AGE", lambda one: age_of(one, time.time()), right=True),
        Column("RESTARTS", lambda one: str(one.restarts), right=True),
        Column("CPU", cpu_text, right=True),
        Column("MEMORY", memory_text, right=True),
        Column("PID", lambda one: str(one.pid or ""), wide=True, right=True),
        Column("PORT", lambda one: str(one.port or ""), wide=True, right=True),
        Column("ENDED BY", ending_text, wide=True),
    ],
    name=lambda one: one.name,
    none=lambda _: "No process runs. Launch a model: dllm-tui up.",
)


@click.group(cls=Group, default="list", examples=EXAMPLES)
def processes() -> None:
    """List the processes of a cluster, and restart or kill one."""


@processes.command("list", shows=PROCESSES, watches=True)
@options(("-w --watch", bool, "Keep watching, and show every second."))
@cluster_option
async def list_processes(
    client: ControllerClient, watch: bool, form: str
) -> tuple[ProcessInfo, ...]:
    """List the processes with their machine, state and use.

    The controller and the helper on each machine are listed, too. With --json and
    --watch every second is a line of JSON.
    """
    if watch:
        async for report in client.usages():
            found = usual_order(report.processes)
            if form == "json":
                emit_json(found, indent=0)
            else:
                redraw_screen("\n".join(PROCESSES.lines(found, form)))
    if not await client.running() and not client.left_processes():
        return ()
    return tuple(usual_order((await client.usage()).processes))


class Described(NamedTuple):
    """A process, its last lines, and what happened to it."""

    process: ProcessInfo
    events: tuple[Event, ...]
    log_tail: tuple[str, ...]


def _lines(told: Described) -> Iterator[str]:
    yield safe_line(told.process.name)
    for label, text in process_facts(told.process, told.events, time.time()):
        if text:
            yield f"  {label:10}{safe_line(text)}"
    for said in told.log_tail:
        yield f"  | {safe_line(said)}"


def _json(told: Described) -> object:
    shown = replace(told.process, argv=tuple(shown_argv(told.process.argv)))
    return {"process": shown, "log_tail": told.log_tail}


name_argument = click.argument("name", type=Name("processes"))
peer_option = options(
    ("--peer", Name("peers"), "Machine of the process, if several have one so called."),
)


@processes.command("show", shows=_lines, as_json=_json, watches=True)
@name_argument
@peer_option
@cluster_option
async def show_process(
    client: ControllerClient, name: str, peer: str | None
) -> Described:
    """Show all about one process: command line, events, last log lines.

    Keys and prompts in the command line are hidden.
    """
    report = await client.usage()
    process = _found(report, name, peer)
    tail: tuple[str, ...] = ()
    if process.log_path:
        chunk = await client.read_log(name, -TAIL_BYTES, TAIL_BYTES)
        tail = tuple(last_lines(chunk))
    return Described(process, await client.events(), tail)


@processes.command("restart")
@name_argument
@peer_option
@cluster_option
async def restart_process(
    client: ControllerClient, name: str, peer: str | None
) -> dict[str, str]:
    """Restart a process, and what depends on it.

    Answers that this would break end first; what comes meanwhile waits.
    """
    process = _found(await client.usage(), name, peer)
    await client.restart_process(name, process.peer)
    say(f"{name} is restarted; see dllm-tui status.")
    return {"restarted": name, "machine": process.peer}


@processes.command("kill")
@name_argument
@peer_option
@options(("-y --yes", bool, "Do not ask."))
@cluster_option
async def kill_process(
    client: ControllerClient, name: str, peer: str | None, yes: bool
) -> dict[str, str]:
    """Kill a process at once; if it is needed it starts again."""
    process = _found(await client.usage(), name, peer)
    if not yes and belongs_to_cluster(process):
        _require_agreed(process)
    await client.kill_process(name, process.peer, process.pid)
    say(f"{name} was killed; see dllm-tui status.")
    return {"killed": name, "machine": process.peer}


def _require_agreed(process: ProcessInfo) -> None:
    if not sys.stdin.isatty():
        raise UsageError(f"{process.name} would end at once", "Add --yes.")
    say(safe(kill_question(process)))
    with prompting():
        agreed = click.confirm("Kill it?", err=True)
    if not agreed:
        say("Nothing was killed.")
        raise click.exceptions.Exit(1)


def _found(report: UsageReport, name: str, peer: str | None) -> ProcessInfo:
    called = [one for one in report.processes if one.name == name]
    found = [one for one in called if peer in (None, one.peer)]
    if len(found) == 1:
        return found[0]
    if called:
        machines = ", ".join(one.peer for one in called)
        raise UsageError(
            f"{name} runs on {machines}", f"Give one: --peer {called[0].peer}."
        )
    names = [one.name for one in report.processes]
    raise UsageError(
        f"There is no process {name}",
        f"{did_you_mean(name, names)}Processes: {', '.join(names)}.",
    )
