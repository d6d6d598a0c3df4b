"""What a worse network would do to the speed, from what the relays measured.

The model is that of design.md ("The cost model"): a token costs what the machines
compute, and for each worker ``trips · RTT + bytes / bandwidth``. What the machines take
is measured; trips and bytes are counted; the lab's part is arithmetic. So the figures
hold for any lab, whichever one was on while they were measured.
"""

from __future__ import annotations

from math import exp, pi, sqrt
from statistics import NormalDist, fmean
from typing import TYPE_CHECKING

from backends.state import Lab

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from backends.state import Link

Labs = dict[str, Lab | None]
"""What is put on each link, by worker; None where it is as it is."""

MS_PER_S = 1000.0
BYTES_PER_MS_PER_MB_S = 1000.0
_SAME = 1e-6


def same_lab(one: Lab | None, other: Lab | None) -> bool:
    """Whether two labs do the same, whatever their seeds."""
    one, other = one or Lab(), other or Lab()
    pairs = (
        (one.latency_ms, other.latency_ms),
        (one.jitter_ms, other.jitter_ms),
        (one.rate_mb_s, other.rate_mb_s),
    )
    return all(abs(a - b) < _SAME for a, b in pairs)


def mean_delay_ms(lab: Lab) -> float:
    """The mean of the added one-way latency.

    The relay draws it from a normal distribution and cuts it at 0, so jitter greater
    than the latency adds to the mean.
    """
    mean, deviation = lab.latency_ms, lab.jitter_ms
    if deviation <= 0:
        return mean
    ratio = mean / deviation
    density = exp(-ratio * ratio / 2) / sqrt(2 * pi)
    return mean * NormalDist().cdf(ratio) + deviation * density


def added_ms(link: Link, lab: Lab | None) -> float | None:
    """What a lab adds to a token on one link: each trip goes there and back.

    ``trips · 2 · latency + (bytes up + bytes down) / rate``; None before a token.
    """
    trips = link.round_trips_per_token
    if trips is None:
        return None
    if lab is None:
        return 0.0
    n_bytes = (link.bytes_up_per_token or 0.0) + (link.bytes_down_per_token or 0.0)
    rate = lab.rate_mb_s * BYTES_PER_MS_PER_MB_S
    return trips * 2 * mean_delay_ms(lab) + (n_bytes / rate if rate else 0.0)


def total_added_ms(links: Sequence[Link], labs: Mapping[str, Lab | None]) -> float:
    """What the labs of all links add to a token."""
    return sum(added_ms(link, labs.get(link.worker)) or 0.0 for link in links)


def own_ms(links: Sequence[Link]) -> float | None:
    """What a token takes without any lab; None where something was not measured.

    The head's own time, and per link compute, wait and the real round trips. A link's
    *head* part holds the other links as well, so these are taken off again.
    """
    busy = [_busy_ms(link) for link in links]
    heads = [link.head_ms_per_token for link in links]
    known_busy = [part for part in busy if part is not None]
    known_heads = [part for part in heads if part is not None]
    if not links or len(known_busy) < len(links) or len(known_heads) < len(links):
        return None
    everything = sum(known_busy)
    pairs = zip(known_heads, known_busy, strict=True)
    head = fmean(part - (everything - own) for part, own in pairs)
    return max(head, 0.0) + sum(_machine_ms(link) + _network_ms(link) for link in links)


def forecast(
    links: Sequence[Link], labs: Mapping[str, Lab | None], own: float | None
) -> float | None:
    """Tokens per second under these labs, if a token takes ``own`` ms without any."""
    return rate_at(own, total_added_ms(links, labs)) if own else None


def rate_at(own: float, added: float) -> float:
    """Tokens per second when a token takes its own time and something on top."""
    return MS_PER_S / (own + added)


def _busy_ms(link: Link) -> float | None:
    if link.compute_ms_per_token is None:
        return None
    up, down = link.up_ms_per_token or 0.0, link.down_ms_per_token or 0.0
    return up + down + _machine_ms(link)


def _machine_ms(link: Link) -> float:
    return (link.compute_ms_per_token or 0.0) + (link.wait_ms_per_token or 0.0)


def _network_ms(link: Link) -> float:
    if link.rtt_ms is not None:
        return link.rtt_ms * (link.round_trips_per_token or 0.0)
    measured = (link.up_ms_per_token or 0.0) + (link.down_ms_per_token or 0.0)
    return max(measured - (added_ms(link, link.lab) or 0.0), 0.0)
