"""Why a process of ours ended: the sentence, the command line, the status, the log."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from backends.engine.logs import clean_lines, explain
from backends.errors import HostError, ProcessFailed
from backends.state import Failure, ProcessRole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from backends.peers.host import Host, ProcessRecord

TAIL_BYTES = 32 * 1024
TAIL_LINES = 15

_HINTS = {
    ProcessRole.WORKER: "Launch again to restart it; its log says more.",
    ProcessRole.SERVER: "Launch again; if it repeats, its log says why.",
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


async def require_alive(host: Host, names: Sequence[str], at: float) -> None:
    """See that processes still run.

    A dead worker takes llama-server down with it, so the first of ``names`` that is
    dead is blamed: name workers before the server.

    Raises:
        ProcessFailed: one of them ended; it carries the evidence.
    """
    for name in names:
        record = await host.record(name)
        if record is None:
            raise ProcessFailed(
                Failure(what=f"The process directory of {name} is gone", at=at)
            )
        if not record.alive:
            raise ProcessFailed(await failure_of(host, record, at))
