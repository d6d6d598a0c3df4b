"""Processes and what machines use, in words."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import PurePath

from backends.machine_names import LOCAL
from backends.redaction import shown_argv
from backends.state import (
    Event,
    GpuUsage,
    LogChunk,
    MachineUsage,
    ProcessInfo,
    ProcessRole,
    ProcessState,
    UsageSample,
)
from backends.units import (
    format_bytes,
    format_celsius,
    format_percent,
    format_signal,
)
from tui.model.names import by_role
from tui.model.peer_words import age_text
from tui.model.quantities import (
    UNKNOWN,
    clock_text,
    megabytes_text,
    power_text,
    short_part_of,
)

EVENTS_MAX = 8
TAIL_BYTES = 4096
TAIL_LINES = 12
MIB = 1 << 20


def cpu_text(process: ProcessInfo) -> str:
    """``180 %`` of a core, as ``top`` shows it."""
    cores = process.cpu_cores
    return UNKNOWN if cores is None else format_percent(cores)


def memory_text(process: ProcessInfo) -> str:
    return format_bytes(process.rss_bytes) if process.rss_bytes else UNKNOWN


def command_text(process: ProcessInfo) -> str:
    """``llama-server -m glm.gguf``: without the program's folder, keys and prompts."""
    argv = shown_argv(process.argv)
    return shlex.join([PurePath(argv[0]).name, *argv[1:]]) if argv else ""


def age_of(process: ProcessInfo, now: float) -> str:
    """``40 s``, ``4 m``: how long it has run; empty if it ended, or nobody knows."""
    if not process.started_at or process.state is ProcessState.EXITED:
        return ""
    return age_text(now - process.started_at)


def ending_text(process: ProcessInfo) -> str:
    """``exit 1``, ``SIGKILL``, or ``ended`` if nobody saw how; empty while it runs."""
    if process.state is not ProcessState.EXITED:
        return ""
    if process.exit_signal is not None:
        return format_signal(process.exit_signal)
    return "ended" if process.exit_code is None else f"exit {process.exit_code}"


def usual_order(processes: Iterable[ProcessInfo]) -> list[ProcessInfo]:
    """This machine's first; on each those that people ask for first."""
    return sorted(by_role(processes), key=lambda one: (one.peer != LOCAL, one.peer))


def process_facts(
    process: ProcessInfo, events: Sequence[Event], now: float
) -> Iterator[tuple[str, str]]:
    """Everything to tell of one process but its log: label and text."""
    yield "machine", process.peer
    yield "role", process.role
    ending = ending_text(process)
    yield "state", f"{process.state}, {ending}" if ending else process.state
    yield "pid", str(process.pid or "")
    yield "since", age_of(process, now)
    yield "restarts", str(process.restarts)
    yield "cpu", cpu_text(process)
    yield "memory", memory_text(process)
    yield "port", str(process.port or "")
    yield "log", process.log_path
    # Before what may take many rows.
    for event in events_of(process, events):
        when = event.at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        yield "event", f"{when}  {event.sentence}"
    yield "command", shlex.join(shown_argv(process.argv))


def events_of(process: ProcessInfo, events: Iterable[Event]) -> list[Event]:
    """The last events about a process: of its name, or that name it."""
    name = process.name
    about = [
        one
        for one in events
        if name in (one.process, *one.text.replace(",", " ").replace(":", " ").split())
    ]
    return about[-EVENTS_MAX:]


def last_lines(chunk: LogChunk) -> list[str]:
    """The last lines of a piece of a log, without a rest that it begins with."""
    return chunk.text.splitlines()[bool(chunk.offset) :][-TAIL_LINES:]


def belongs_to_cluster(process: ProcessInfo) -> bool:
    """False of the controller and of agents: without a log, and not ended alone."""
    return process.role not in (ProcessRole.CONTROLLER, ProcessRole.AGENT)


def restart_question(process: ProcessInfo) -> str:
    rest = "Answers that this would break end first; what comes meanwhile waits."
    return f"{process.name} ends and starts again, with what depends on it. {rest}"


def kill_question(process: ProcessInfo) -> str:
    command = shlex.join(shown_argv(process.argv))
    rest = "It ends at once, and what the cluster needs of it starts again."
    return (
        f"{process.name} on {process.peer}, pid {process.pid}:\n{command}\n\n{rest} "
        "Streams that can go on do so."
    )


# --- machines ------------------------------------------------------------------------


def memory_used_text(usage: MachineUsage) -> str:
    """``9.7/55 GiB``, and the swap in use where there is some."""
    total = usage.memory_total_bytes
    text = short_part_of(total - usage.memory_available_bytes, total)
    if usage.swap_used_bytes < MIB:
        return text
    return f"{text}, {format_bytes(usage.swap_used_bytes)} swapped"


def traffic_text(usage: MachineUsage) -> str:
    """``net ↓1.20 ↑0.31 MB/s · disk ↓0.00 ↑4.20 MB/s``, as far as it is known."""
    pairs = (
        ("net", usage.received_bytes_per_s, usage.sent_bytes_per_s),
        ("disk", usage.read_bytes_per_s, usage.written_bytes_per_s),
    )
    return " · ".join(
        f"{name} ↓{megabytes_text(came).removesuffix(' MB/s')} ↑{megabytes_text(went)}"
        for name, came, went in pairs
        if came is not None and went is not None
    )


def gpu_name(gpu: GpuUsage) -> str:
    """The engine's name, else the card's, else its vendor's and address."""
    name = gpu.name.removeprefix("NVIDIA ")
    return gpu.device or name or f"{gpu.vendor} {gpu.pci}"


def gpu_text(gpu: GpuUsage) -> str:
    """``93 % · 41/80 GiB · 64 °C · 312/700 W · 1.98 GHz``."""
    parts = []
    if gpu.load_percent is not None:
        parts.append(f"{gpu.load_percent} %")
    if gpu.used_bytes is not None and gpu.total_bytes:
        parts.append(short_part_of(gpu.used_bytes, gpu.total_bytes))
    if gpu.celsius is not None:
        parts.append(format_celsius(gpu.celsius))
    if gpu.power_mw is not None:
        parts.append(power_text(gpu.power_mw, gpu.power_limit_mw))
    if gpu.clock_mhz is not None:
        parts.append(clock_text(gpu.clock_mhz))
    return " · ".join(parts)


# --- histories -----------------------------------------------------------------------


def history(
    samples: Sequence[UsageSample],
    figure: Callable[[UsageSample], float | None],
    span_s: int,
    cells: int,
) -> list[float | None]:
    """Means of equal stretches of the last seconds, newest last, at most so many.

    Stretches begin at whole multiples of their length, so a column stays as it is. One
    without a sample is unknown.
    """
    if not samples or cells < 1:
        return []
    step = -(-span_s // cells)
    last = samples[-1].at // step
    first = last - -(-span_s // step) + 1
    found: dict[int, list[float]] = {}
    for sample in samples:
        value = figure(sample)
        if value is not None and sample.at // step >= first:
            found.setdefault(sample.at // step, []).append(value)
    return [
        sum(found[at]) / len(found[at]) if at in found else None
        for at in range(first, last + 1)
    ]
