"""A token over all links: what it costs on the wire, and whose time it takes.

A token goes through the workers one after the other, so round trips, bytes and the
workers' own times add up; what is left of its time is the head's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from backends.state import Link


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
    """What the links' medians say of a token."""
    carried = [link for link in links if link.round_trips_per_token is not None]
    unread = tuple(link.worker for link in links if link.mode == "plain")
    counted = [] if unread else carried
    workers = tuple(map(_times, carried))
    return TokenTotals(
        round_trips=_sum(link.round_trips_per_token for link in counted),
        bytes_up=_sum(link.bytes_up_per_token for link in counted),
        bytes_down=_sum(link.bytes_down_per_token for link in counted),
        p50_ms=_longest(link.pass_p50_ms for link in carried),
        p99_ms=_longest(link.pass_p99_ms for link in carried),
        head_ms=_head_ms(carried, workers) if carried else None,
        workers=workers,
        unread=unread,
        tokens_per_pass=_longest(link.generation.tokens_per_pass for link in carried),
    )


def _times(link: Link) -> WorkerTimes:
    return WorkerTimes(
        link.worker,
        link.up_ms_per_token or 0.0,
        link.compute_ms_per_token or 0.0,
        link.down_ms_per_token or 0.0,
        link.wait_ms_per_token or 0.0,
    )


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
