"""Why a process of ours ended: the sentence, the command line, the status, the log."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

from backends.engine.logs import clean_lines, explain
from backends.errors import HostError, ProcessFailed
from backends.state import Failure, ProcessRole, Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from backends.controller.machines import Machines
    from backends.peers.host import Host, ProcessRecord

TAIL_BYTES = 32 * 1024
TAIL_LINES = 15

_HINTS = {
    ProcessRole.WORKER: "Launch again to restart it; its log says more.",
    ProcessRole.SERVER: "Launch again; if it repeats, its log says why.",
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


async def log_tail(host: Host, name: str) -> tuple[str, ...]:
    """The last lines of a process log, without escapes; empty when it has none."""
    try:
        chunk = await host.read_log(name, -TAIL_BYTES, TAIL_BYTES)
    except HostError:
        return ()
    return tuple(clean_lines(chunk.text))


async def failure_of(host: Host, record: ProcessRecord, at: float) -> Failure:
    """All that is known about a process that ended when it should not have."""
    lines = await log_tail(host, record.name)
    reason = explain(lines, record.exit_code, record.exit_signal)
    what = f"{record.name} {how_it_ended(record)}"
    return Failure(
        what=f"{what}: {reason}" if reason else what,
        hint=_HINTS.get(record.role, ""),
        process=record.name,
        argv=record.argv,
        exit_code=record.exit_code,
        exit_signal=record.exit_signal,
        log_tail=lines[-TAIL_LINES:],
        at=at,
    )


class Placed(Value, frozen=True, kw_only=True):
    """A process of the cluster and the machine it runs on."""

    machine: str
    name: str


async def require_alive(
    machines: Machines, processes: Sequence[Placed], at: float
) -> None:
    """See that processes still run.

    A dead worker takes llama-server down with it, so the first of ``processes`` that is
    dead is blamed: name workers before the server.

    Raises:
        ProcessFailed: one of them ended; it carries the evidence.
        PeerUnreachable: the connection to the machine of one of them broke.
    """
    for placed in processes:
        machine = machines.get(placed.machine)
        records = {record.name: record for record in machine.records}
        record = records.get(placed.name)
        if record is None:
            what = f"The process directory of {placed.name} is gone"
            raise ProcessFailed(Failure(what=what, process=placed.name, at=at))
        if not record.alive:
            raise ProcessFailed(await failure_of(machine.host, record, at))


async def look_at(machines: Machines, processes: Sequence[Placed]) -> None:
    """Look anew at every machine that runs one of these processes.

    Raises:
        PeerUnreachable: the connection to one of them broke.
    """
    names = dict.fromkeys(placed.machine for placed in processes)
    await asyncio.gather(*(machines.get(name).look() for name in names))
