"""Turn readings of a process into figures for display."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backends.machines.host import ProcessRecord

RSS_STEP_BYTES = 1 << 20
MEAN_MIN_S = 1.0
"""Over less than this the clock's ticks are too coarse for a mean."""
MS_PER_S = 1000.0
CORES_DIGITS = 2


@dataclass(frozen=True)
class Usage:
    """The newest figures of one process, and the reading they count from."""

    rss_bytes: int | None
    cpu_cores: float | None
    """None before there are two readings."""
    cpu_ms: int | None
    read_at: float
    """Monotonic seconds at which ``cpu_ms`` was read."""


def usage_of(record: ProcessRecord, at: float, before: Usage | None) -> Usage:
    """Return the usage in a record that was read at ``at`` (monotonic seconds).

    Memory is in whole MiB and time in hundredths of a core: smaller changes are no
    news.
    """
    rss_bytes = (record.rss_bytes or 0) // RSS_STEP_BYTES * RSS_STEP_BYTES or None
    if record.cpu_ms is None:
        return Usage(rss_bytes, None, None, at)
    if before is None or before.cpu_ms is None:
        return Usage(rss_bytes, None, record.cpu_ms, at)
    passed_s = at - before.read_at
    if passed_s < MEAN_MIN_S:
        return Usage(rss_bytes, before.cpu_cores, before.cpu_ms, before.read_at)
    used_s = max(record.cpu_ms - before.cpu_ms, 0) / MS_PER_S
    cores = round(used_s / passed_s, CORES_DIGITS)
    return Usage(rss_bytes, cores, record.cpu_ms, at)
