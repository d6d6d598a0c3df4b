"""Passes as a Chrome trace: one row per worker, one slice per part of a pass.

Format: the JSON object form of the Trace Event Format, complete events (``"ph": "X"``)
with times in microseconds; chrome://tracing and Perfetto open it.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

from backends.units import US_PER_MS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from backends.state import Pass

PARTS = ("head", "up", "compute", "down", "wait")


def chrome_trace(passes: Mapping[str, Sequence[Pass]]) -> dict[str, Any]:
    """All passes of all workers as one trace."""
    events: list[dict[str, Any]] = []
    for row, (worker, of_worker) in enumerate(passes.items(), start=1):
        name = {"name": worker}
        events.append(
            {"ph": "M", "pid": 1, "tid": row, "name": "thread_name", "args": name}
        )
        for each in of_worker:
            events.extend(_slices(each, row))
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _slices(each: Pass, row: int) -> Iterator[dict[str, Any]]:
    """The parts of a pass, one after the other, ending with its reply."""
    durations = [getattr(each, f"{part}_ms") * US_PER_MS for part in PARTS]
    begin = each.at_ms * US_PER_MS - sum(durations)
    starts = accumulate(durations[:-1], initial=begin)
    for part, start, duration in zip(PARTS, starts, durations, strict=True):
        yield {
            "ph": "X",
            "pid": 1,
            "tid": row,
            "name": part,
            "ts": start,
            "dur": duration,
            "args": {
                "batch": each.batch,
                "tokens": each.tokens,
                "generated": each.generated,
                "round_trips": each.round_trips,
                "bytes_up": each.bytes_up,
                "bytes_down": each.bytes_down,
            },
        }
