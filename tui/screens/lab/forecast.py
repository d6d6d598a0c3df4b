"""The speed on a worse network, predicted from the relays' measurements.

The model is that of design.md ("The cost model"): a token costs what the machines
compute, and for each worker ``trips · RTT + bytes / bandwidth``. What the machines take
is measured; trips and bytes are counted; the lab's part is arithmetic. So the figures
hold for any lab, whichever one was on while they were measured.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from backends.split.cost import lab_ms
from backends.state import ClusterSnapshot, Lab, Link, Speed
from backends.units import MS_PER_S
from tui.model.quantities import newest_rate

Labs = dict[str, Lab | None]
"""The lab on each link, by worker; None if the link has none."""

_SAME = 1e-6


def same_lab(one: Lab | None, other: Lab | None) -> bool:
    """True if two labs do the same, whatever their seeds."""
    one, other = one or Lab(), other or Lab()
    names = ("latency_ms", "jitter_ms", "rate_mb_s")
    return all(abs(getattr(one, n) - getattr(other, n)) < _SAME for n in names)


def added_ms(link: Link, lab: Lab | None) -> float | None:
    """The time a lab adds to a token on one link: each trip goes there and back.

    The arithmetic is that of every prediction (``split.cost``); None before a token.
    """
    trips = link.round_trips_per_token
    if trips is None:
        return None
    n_bytes = (link.bytes_up_per_token or 0.0) + (link.bytes_down_per_token or 0.0)
    return lab_ms(lab, trips, n_bytes)


def total_added_ms(links: Sequence[Link], labs: Mapping[str, Lab | None]) -> float:
    return sum(added_ms(link, labs.get(link.worker)) or 0.0 for link in links)


def own_ms(links: Sequence[Link]) -> float | None:
    """The time of a token without any lab, by what relays measured of its parts."""
    pairs = [
        (link.head_ms_per_token, _link_ms(link) + _machine_ms(link))
        for link in links
        if link.head_ms_per_token is not None and link.compute_ms_per_token is not None
    ]
    if not links or len(pairs) < len(links):
        return None
    everything = sum(busy for _, busy in pairs)
    head = fmean(part - (everything - busy) for part, busy in pairs)
    return max(head, 0.0) + sum(_machine_ms(link) + _network_ms(link) for link in links)


def forecast(
    links: Sequence[Link], labs: Mapping[str, Lab | None], own: float | None
) -> float | None:
    """Tokens per second under these labs, if a token takes ``own`` ms without any."""
    return rate_at(own, total_added_ms(links, labs)) if own else None


def rate_at(own: float, added: float) -> float:
    return MS_PER_S / (own + added)


def _link_ms(link: Link) -> float:
    return (link.up_ms_per_token or 0.0) + (link.down_ms_per_token or 0.0)


def _machine_ms(link: Link) -> float:
    return (link.compute_ms_per_token or 0.0) + (link.wait_ms_per_token or 0.0)


def _network_ms(link: Link) -> float:
    if link.rtt_ms is not None:
        return link.rtt_ms * (link.round_trips_per_token or 0.0)
    return max(_link_ms(link) - (added_ms(link, link.lab) or 0.0), 0.0)


SAMPLES_MAX = 400
WINDOW_S = 3.0
"""Span over which the controller measures the speed of an answer under way."""


class Sample(NamedTuple):
    added_ms: float
    """The time that the lab added to a token, over all links."""
    tok_per_s: float

    @property
    def own_ms(self) -> float:
        return MS_PER_S / self.tok_per_s - self.added_ms


class Samples:
    """The speeds that the header has shown, since the plan runs."""

    def __init__(self) -> None:
        self.points: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self.latest: Sample | None = None
        """The newest one under the present lab."""
        self.base: Sample | None = None
        """The newest one with the least added: predictions begin with it."""
        self._labs: Labs | None = None
        self._changed_at: float | None = None
        """When the lab was changed, until a speed is of the time after it alone."""
        self._before: float | None = None
        """The speed of the last answer from before a change."""

    def take(self, snapshot: ClusterSnapshot) -> None:
        labs = {link.worker: link.lab for link in snapshot.links}
        rate = newest_rate(snapshot.speed)
        before, self._labs = self._labs, labs
        if before is not None and (
            before.keys() != labs.keys()
            or not all(same_lab(before[worker], lab) for worker, lab in labs.items())
        ):
            self._changed_at, self._before = snapshot.at, rate
            self.latest = None
        if rate is None or not self._is_of_present_lab(snapshot.speed, snapshot.at):
            return
        self._changed_at = None
        sample = Sample(total_added_ms(snapshot.links, labs), rate)
        if sample != self.latest:
            self.latest = sample
            self.points.append(sample)
            if self.base is None or sample.added_ms <= self.base.added_ms:
                self.base = sample

    def _is_of_present_lab(self, speed: Speed, at: float) -> bool:
        if self._changed_at is None:
            return True
        if speed.tok_per_s is not None:
            return at - self._changed_at >= WINDOW_S
        self._changed_at = float("-inf")  # The next answer begins after the change.
        return speed.last_tok_per_s != self._before
