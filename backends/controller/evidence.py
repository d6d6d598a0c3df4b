"""Why a process of ours ended: the sentence, the command line, the status, the log."""

from __future__ import annotations

import re
import shlex
import signal
import traceback
from typing import TYPE_CHECKING

from msgspec.structs import replace

from backends.engine.explain import CUT_OFF, explain, refused_argument
from backends.engine.logs import clean_lines, without_requests
from backends.errors import DllmError, HostError, ProcessFailed
from backends.planning.blueprint import cluster_of, short_name
from backends.state import Failure, ProcessRole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from backends.machines.host import AgentHost, ProcessRecord

TAIL_BYTES = 32 * 1024
TAIL_LINES = 15
LAST_WORDS = 4
"""Of a relay: those in which it says why it closed a connection."""
# Every sentence about a hole has the word.
_HOLE_HINT = "Put the model there, or a sparse file of it that has this layer."
_HOLE = re.compile(r"dllm-relay: (?P<link>[^:]+): (?P<why>.*\bthin\b.*)")

_HINTS = {
    ProcessRole.WORKER: "Launch again to restart it; its log says more.",
    ProcessRole.SERVER: "Launch again; if it repeats, its log says why.",
    ProcessRole.WORKER_RELAY: "Launch again to restart it; its log says more.",
    ProcessRole.RELAY: "Launch again to restart it; its log says more.",
}


def how_it_ended(record: ProcessRecord) -> str:
    """``was killed by SIGKILL (signal 9)``, ``ended with exit code 1``."""
    if record.exit_signal is not None:
        try:
            name = signal.Signals(record.exit_signal).name
        except ValueError:
            name = "a signal"
        return f"was killed by {name} (signal {record.exit_signal})"
    if record.exit_code is not None:
        return f"ended with exit code {record.exit_code}"
    return "is gone, its exit status unknown"


async def log_tail(host: AgentHost, name: str) -> tuple[str, ...]:
    """The last lines of a process log, without escapes; empty when it has none."""
    try:
        chunk = await host.read_log(name, -TAIL_BYTES, TAIL_BYTES)
    except HostError:
        return ()
    return tuple(clean_lines(chunk.text))


def _hint(record: ProcessRecord, lines: Sequence[str]) -> str:
    """Return advice for the user."""
    refused = refused_argument(lines)
    if not refused or record.exit_code is None or not record.argv:
        return _HINTS.get(record.role, "")
    return (
        f"Leave {refused} out of what follows the two dashes (--), or mend it: "
        f"{shlex.join((record.argv[0], '--help'))} lists what this one takes."
    )


async def _refused_hole(host: AgentHost, server: ProcessRecord) -> str:
    """Why a relay of the head ended a load from a sparse file; empty where none did."""
    cluster = cluster_of(server.name)
    for relay in host.seen:
        if relay.role is not ProcessRole.RELAY or cluster_of(relay.name) != cluster:
            continue
        last = (await log_tail(host, relay.name))[-LAST_WORDS:]
        if told := [match for line in last if (match := _HOLE.search(line))]:
            return f"{told[-1]['link']}: {told[-1]['why']}"
    return ""


async def failure_of(host: AgentHost, record: ProcessRecord, at: float) -> Failure:
    """All that is known about a process that ended when it should not have."""
    lines = await log_tail(host, record.name)
    reason = explain(lines, record.exit_code, record.exit_signal)
    is_cut_off = record.role is ProcessRole.SERVER and reason == CUT_OFF
    hole = await _refused_hole(host, record) if is_cut_off else ""
    reason = hole or reason
    name = short_name(record.name)
    what = f"{name} {how_it_ended(record)}"
    if record.role is ProcessRole.SERVER:
        # Events are kept for a week, and a prompt is nobody's business.
        lines = tuple(without_requests(lines))
    return Failure(
        what=f"{what}: {reason}" if reason else what,
        hint=_HOLE_HINT if hole else _hint(record, lines),
        process=name,
        argv=record.argv,
        exit_code=record.exit_code,
        exit_signal=record.exit_signal,
        log_tail=lines[-TAIL_LINES:],
        at=at,
    )


def unexpected(error: Exception) -> ProcessFailed:
    """An error nobody thought of, with its evidence."""
    failure = failed_at("The controller failed", error)
    hint = "Launch again; its log (controller.log) has the details."
    return ProcessFailed(replace(failure, hint=hint))


def failed_at(what: str, error: Exception, at: float = 0.0) -> Failure:
    """Return the failure of an error: its own, or one made from all that is known."""
    if isinstance(error, DllmError):
        return replace(error.failure(at), what=f"{what}: {error.what}")
    lines = "".join(traceback.format_exception(error)).splitlines()
    return Failure(
        what=f"{what}: {type(error).__name__}: {error}",
        hint="The controller's log (controller.log) has the details.",
        process="controller",
        log_tail=tuple(lines[-TAIL_LINES:]),
        at=at,
    )
