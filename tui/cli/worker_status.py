"""The status of a worker for its owner, as lines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from backends.units import format_bytes, format_count, format_ms
from tui.cli.output import aligned
from tui.widgets.safe_text import safe_line

if TYPE_CHECKING:
    from backends.mesh.owner_limits import OwnerLimits
    from backends.mesh.worker_status import LogEntry, TenantState, WorkerStatus

LOG_LINES = 8


def status_lines(status: WorkerStatus) -> Iterator[str]:
    yield from _head(status)
    yield ""
    yield from _consoles(status)
    yield ""
    yield from _log(status, LOG_LINES)


def log_text(line: LogEntry) -> str:
    """``14:02:07 ada has connected``, by the clock here."""
    clock = time.strftime("%H:%M:%S", time.localtime(line.at))
    return f"{clock} {safe_line(line.text)}"


def limits_text(limits: OwnerLimits) -> str:
    memory = limits.memory_bytes
    hours = limits.hours
    add = "which consoles may add to" if limits.writable else "read-only"
    return " · ".join(
        (
            format_bytes(memory) if memory is not None else "all memory",
            ", ".join(limits.devices) or "all devices",
            f"{hours[0]} to {hours[1]} o'clock" if hours else "at all hours",
            f"models in {', '.join(limits.models)}, {add}",
        )
    )


def _head(status: WorkerStatus) -> Iterator[str]:
    sign = "◐" if status.refusal else "●"
    yield f"{sign} {safe_line(status.name)}: {status.refusal or 'lent'}"
    yield f"  limits   {limits_text(status.limits)}"
    most = status.limits.memory_bytes
    of = f" of {format_bytes(most)}" if most is not None else ""
    count = sum(console.processes for console in status.consoles)
    runs = format_count(count, "program")
    yield f"  in use   {format_bytes(status.used_bytes)}{of} of memory · {runs}"
    if status.ways:
        yield f"  reached  by {' · '.join(map(safe_line, status.ways))}"


def _consoles(status: WorkerStatus) -> Iterator[str]:
    if not status.consoles:
        yield "  No console uses it now."
        return
    rows = [_console(console) for console in status.consoles]
    for line in aligned(rows, [False] * len(rows[0])):
        yield f"  {line}"


def _console(console: TenantState) -> tuple[str, ...]:
    sign = "●" if console.connected else "○"
    on = f" on {', '.join(console.devices)}" if console.devices else ""
    return (
        f"{sign} {safe_line(console.name)}",
        f"{console.way} {safe_line(console.address)}" if console.connected else "away",
        "" if console.rtt_ms is None else format_ms(console.rtt_ms).strip(),
        f"{format_count(console.processes, 'program')}{on}",
        format_bytes(console.memory_bytes),
    )


def _log(status: WorkerStatus, count: int) -> Iterator[str]:
    for line in status.log[-count:]:
        yield f"  {log_text(line)}"
