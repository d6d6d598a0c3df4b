"""Processor time as cores kept busy, from readings at uneven distances."""

from __future__ import annotations

import pytest

from backends.controller.processes import Usage, usage_of
from backends.machines.agent import ProcessRecord
from backends.state import ProcessRole, ProcessState

MIB = 1 << 20


def record(cpu_ms: int | None, rss_bytes: int | None = 5 * MIB) -> ProcessRecord:
    return ProcessRecord(
        name="default/worker1",
        role=ProcessRole.WORKER,
        state=ProcessState.RUNNING,
        pid=7,
        argv=("rpc-server",),
        rss_bytes=rss_bytes,
        cpu_ms=cpu_ms,
    )


def test_one_reading_tells_no_rate() -> None:
    assert usage_of(record(4000), 10.0, None).cpu_cores is None


@pytest.mark.parametrize(
    ("later_ms", "passed_s", "cores"),
    [(4000, 5.0, 0.0), (9000, 5.0, 1.0), (19000, 5.0, 3.0), (4012, 5.0, 0.0)],
)
def test_two_readings_tell_the_cores_kept_busy(
    later_ms: int, passed_s: float, cores: float
) -> None:
    before = usage_of(record(4000), 10.0, None)
    assert usage_of(record(later_ms), 10.0 + passed_s, before).cpu_cores == cores


def test_a_reading_soon_after_counts_with_the_next() -> None:
    """Else somebody who asks often would see the ticks of the clock."""
    first = usage_of(record(0), 10.0, None)
    second = usage_of(record(5000), 15.0, first)
    soon = usage_of(record(5010), 15.1, second)
    assert soon.cpu_cores == 1.0
    assert usage_of(record(7500), 20.0, soon).cpu_cores == 0.5


def test_memory_counts_in_whole_mib() -> None:
    told = usage_of(record(0, rss_bytes=5 * MIB + 4096), 1.0, None)
    assert told.rss_bytes == 5 * MIB
    assert usage_of(record(0, rss_bytes=None), 1.0, None).rss_bytes is None


def test_a_helper_that_tells_no_time_tells_memory() -> None:
    before = Usage(5 * MIB, None, None, 1.0)
    assert usage_of(record(None), 6.0, before) == Usage(5 * MIB, None, None, 6.0)
