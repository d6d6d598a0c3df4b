"""Ends of processes: why one ended, how often, and those that nobody saw."""

from __future__ import annotations

import re
import shlex
import time
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from backends.engine.logs import (
    CUT_OFF,
    clean_lines,
    end_reason,
    refused_argument,
    without_requests,
)
from backends.errors import DllmError, MachineError, ProcessFailed
from backends.gateway.control_messages import GATEWAY
from backends.link.relay import is_relay, worker_relay_name
from backends.machines.agent import AgentSession, ProcessRecord
from backends.machines.keep_awake import holds_awake
from backends.planning.blueprint import (
    SERVER,
    cluster_of,
    needed_names,
    own_workers,
    process_name,
    short_name,
)
from backends.state import Failure, Plan, ProcessRole
from backends.units import format_signal

if TYPE_CHECKING:
    from backends.machines.machine import Machines

DEATHS_MAX = 5
WINDOW_S = 120.0
TAIL_BYTES = 32 * 1024
TAIL_LINES = 15
LAST_WORDS = 4
"""Of a relay: those in which it says why it closed a connection."""
# Every sentence about a hole has the word.
_HOLE_HINT = "Put the model there, or a sparse file of it that has this layer."
_HOLE = re.compile(r"dllm-relay: (?P<link>[^:]+): (?P<why>.*\bsparse\b.*)")

_AGAIN = "Launch again to restart it; its log says more."
_HINTS = {
    ProcessRole.WORKER: _AGAIN,
    ProcessRole.SERVER: "Launch again; if it repeats, its log says why.",
    ProcessRole.WORKER_RELAY: _AGAIN,
    ProcessRole.RELAY: _AGAIN,
}


def how_it_ended(record: ProcessRecord) -> str:
    """``was killed by SIGKILL``, ``ended with exit code 1``."""
    if record.exit_signal is not None:
        return f"was killed by {format_signal(record.exit_signal)}"
    if record.exit_code is not None:
        return f"ended with exit code {record.exit_code}"
    return "is gone, its exit status unknown"


async def log_tail(agent: AgentSession, name: str) -> tuple[str, ...]:
    """The last lines of a process log, without escapes; empty when it has none."""
    try:
        chunk = await agent.read_log(name, -TAIL_BYTES, TAIL_BYTES)
    except MachineError:
        return ()
    return tuple(clean_lines(chunk.text))


def _hint(record: ProcessRecord, lines: Sequence[str]) -> str:
    refused = refused_argument(lines)
    if not refused or record.exit_code is None or not record.argv:
        return _HINTS.get(record.role, "")
    return (
        f"Leave {refused} out of the further arguments, or mend it: "
        f"{shlex.join((record.argv[0], '--help'))} lists what this one takes."
    )


async def _refused_hole(agent: AgentSession, server: ProcessRecord) -> str:
    """Why a relay of the head ended a load from a sparse file; empty where none did."""
    cluster = cluster_of(server.name)
    for relay in agent.seen:
        if relay.role is not ProcessRole.RELAY or cluster_of(relay.name) != cluster:
            continue
        last = (await log_tail(agent, relay.name))[-LAST_WORDS:]
        if told := [match for line in last if (match := _HOLE.search(line))]:
            return f"{told[-1]['link']}: {told[-1]['why']}"
    return ""


async def failure_of(agent: AgentSession, record: ProcessRecord) -> Failure:
    """All that is known about a process that ended when it should not have."""
    lines = await log_tail(agent, record.name)
    reason = end_reason(lines, record.exit_code, record.exit_signal)
    is_cut_off = record.role is ProcessRole.SERVER and reason == CUT_OFF
    hole = await _refused_hole(agent, record) if is_cut_off else ""
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
        at=time.time(),
    )


def unexpected(error: Exception) -> ProcessFailed:
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


class Deaths:
    """Counts deaths of the same kind within two minutes; ``clock`` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._now = clock
        self._deaths: dict[str, list[float]] = {}

    def trips(self, kind: str) -> bool:
        """Count one more death; whether that was one too many."""
        now = self._now()
        recent = [at for at in self._deaths.get(kind, ()) if now - at < WINDOW_S]
        self._deaths[kind] = [*recent, now]
        return len(self._deaths[kind]) >= DEATHS_MAX

    def reset(self) -> None:
        self._deaths.clear()


def needs_tunnels(plan: Plan) -> bool:
    """Return true if bytes between head and workers go through our tunnels."""
    return any(worker.peer != plan.head for worker in own_workers(plan))


async def ended_unwatched(
    cluster: str, plan: Plan, machines: Machines
) -> Failure | None:
    """The first process, in the order of blame, that is not alive any more.

    Those that ended because our tunnels did are not to blame. Nor is a relay beside a
    worker then: what hangs on it is started again in any case, and it with that.
    """
    for name, machine_name in needed_names(plan).items():
        # A gateway is started again beside what serves; nothing needs a machine awake.
        if name == GATEWAY or holds_awake(name):
            continue
        if needs_tunnels(plan) and (name == SERVER or is_relay(name)):
            continue
        machine = machines.get(machine_name)
        record = await machine.agent.record(process_name(cluster, name))
        if record is None and name.startswith(worker_relay_name("")):
            # None could stand there; or it is started anew, with what hangs on it.
            continue
        if record is None:
            what = f"{name} is gone with its process directory"
            return Failure(what=what, process=name, at=time.time())
        if not record.alive:
            return await failure_of(machine.agent, record)
    return None
