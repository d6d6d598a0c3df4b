"""Figures of links for a reader: totals of a token, buckets, a trace, or why none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from statistics import median
from typing import Any, NamedTuple

from backends.split.flags import used_workers
from backends.state import ClusterSnapshot, ClusterState, Link, Pass, TokenPart
from backends.units import MS_PER_S, US_PER_MS


class WorkerTimes(NamedTuple):
    """A token's own time at one worker."""

    worker: str
    up_ms: float
    compute_ms: float
    down_ms: float
    wait_ms: float


class TokenTotals(NamedTuple):
    """One token; None where a link cannot tell."""

    round_trips: float | None
    bytes_up: float | None
    bytes_down: float | None
    p50_ms: float | None
    p99_ms: float | None
    head_ms: float | None
    workers: tuple[WorkerTimes, ...]
    unread: tuple[str, ...]
    """Workers behind plain links: their time cannot be told from the head's."""
    tokens_per_pass: float | None = None
    """Tokens that come out of one pass; the percentiles are of passes."""


def token_totals(links: Sequence[Link]) -> TokenTotals:
    carried = [link for link in links if link.round_trips_per_token is not None]
    timed = [link for link in carried if link.head_ms_per_token is not None]
    unread = tuple(link.worker for link in links if link.mode == "plain")
    counted = [] if unread else carried
    workers = tuple(
        WorkerTimes(
            link.worker,
            link.up_ms_per_token or 0.0,
            link.compute_ms_per_token or 0.0,
            link.down_ms_per_token or 0.0,
            link.wait_ms_per_token or 0.0,
        )
        for link in timed
    )
    return TokenTotals(
        round_trips=_sum(link.round_trips_per_token for link in counted),
        bytes_up=_sum(link.bytes_up_per_token for link in counted),
        bytes_down=_sum(link.bytes_down_per_token for link in counted),
        p50_ms=_longest(link.pass_p50_ms for link in carried),
        p99_ms=_longest(link.pass_p99_ms for link in carried),
        head_ms=_head_ms(timed, workers) if timed else None,
        workers=workers,
        unread=unread,
        tokens_per_pass=_longest(link.generation.tokens_per_pass for link in carried),
    )


def lab_changed(links: Iterable[Link]) -> bool:
    """True if no token was made since the lab of a link changed."""
    return any(
        link.round_trips_per_token is not None and link.head_ms_per_token is None
        for link in links
    )


LINK, COMPUTE = "link", "compute"


def token_parts(snapshot: ClusterSnapshot) -> tuple[TokenPart, ...]:
    """The parts of a typical pass, the longest first; none before the first answer."""
    plan, totals = snapshot.plan, token_totals(snapshot.links)
    if plan is None:
        return ()
    if not used_workers(plan):
        rate = snapshot.speed.last_tok_per_s
        acceptance = snapshot.speed.acceptance
        shared = (acceptance and acceptance.tokens_per_pass) or 1.0
        found = [(plan.head, COMPUTE, shared * MS_PER_S / rate)] if rate else []
    elif totals.head_ms is None or totals.unread:
        return ()
    else:
        found = [(plan.head, COMPUTE, totals.head_ms)]
        for one in totals.workers:
            way_ms = one.up_ms + one.down_ms + one.wait_ms
            found += [(one.worker, LINK, way_ms), (one.worker, COMPUTE, one.compute_ms)]
    whole = sum(ms for _, _, ms in found)
    if whole <= 0:
        return ()
    # Each is a median of its own; together they take that of passes.
    scale = totals.p50_ms / whole if totals.p50_ms else 1.0
    parts = [
        TokenPart(name=name, part=part, ms=ms * scale, share=ms / whole)
        for name, part, ms in found
    ]
    return tuple(sorted(parts, key=lambda part: -part.ms))


def _head_ms(links: Sequence[Link], workers: Sequence[WorkerTimes]) -> float:
    """Every link sees the whole token; less all workers' times, the head is left.

    Of several links the longest token counts: a stall at one worker looks like a
    pause to the others.
    """
    own_ms = [sum(times[1:]) for times in workers]
    seen_ms = [
        (link.head_ms_per_token or 0.0) + own
        for link, own in zip(links, own_ms, strict=True)
    ]
    return max(max(seen_ms) - sum(own_ms), 0.0)


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _longest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


NS_PER_US = 1000
BUCKETS_PER_OCTAVE = 8


def lower_edge_us(upper_us: float) -> float:
    """The lower edge of the bucket that ends with this time.

    The relay divides each octave of nanoseconds into eight equal buckets and reports
    the last nanosecond of each; below eight nanoseconds every one has its own.
    """
    last_ns = round(upper_us * NS_PER_US)
    if last_ns < BUCKETS_PER_OCTAVE:
        return last_ns / NS_PER_US
    width_ns = 1 << (last_ns.bit_length() - BUCKETS_PER_OCTAVE.bit_length())
    return (last_ns + 1 - width_ns) / NS_PER_US


PARTS = ("head", "up", "compute", "down", "wait")
PAUSE_MS_MIN = 1000.0
PAUSE_FACTOR = 10.0
"""Of the usual wall time of a pass."""


def least_pause_ms(generated: Sequence[Pass]) -> float:
    """A pass with more time elsewhere followed a pause: nobody had asked."""
    usual_ms = median(one.wall_ms for one in generated) if generated else 0.0
    return max(PAUSE_MS_MIN, PAUSE_FACTOR * usual_ms)


def chrome_trace(passes: Mapping[str, Sequence[Pass]]) -> dict[str, Any]:
    events: list[dict[str, Any]] = []
    for row, (worker, of_worker) in enumerate(passes.items(), start=1):
        name = {"name": worker}
        events.append(
            {"ph": "M", "pid": 1, "tid": row, "name": "thread_name", "args": name}
        )
        pause_ms = least_pause_ms([one for one in of_worker if one.generated])
        for each in of_worker:
            events.extend(_slices(each, row, pause_ms))
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _slices(each: Pass, row: int, pause_ms: float) -> Iterator[dict[str, Any]]:
    first = "head" if each.head_ms <= pause_ms else "pause"
    durations = [getattr(each, f"{part}_ms") * US_PER_MS for part in PARTS]
    begin = each.at_ms * US_PER_MS - sum(durations)
    starts = accumulate(durations[:-1], initial=begin)
    names = (first, *PARTS[1:])
    for part, start, duration in zip(names, starts, durations, strict=True):
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


def why_no_link(snapshot: ClusterSnapshot) -> str:
    """One sentence without its full stop; empty where there are links."""
    plan, state = snapshot.plan, snapshot.state
    if plan is None or state in (ClusterState.IDLE, ClusterState.FAILED):
        # Links in it are as they were at last.
        return "There is no link: nothing runs"
    if snapshot.links:
        return ""
    if not used_workers(plan):
        return f"There is no link: {plan.head}, the head, runs alone, without workers"
    if not plan.relay:
        return "The links are not measured: the plan was launched with --relay off"
    return f"The links are not there yet: the cluster is {state.value}"
