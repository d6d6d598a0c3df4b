"""Measured speeds, each with what the lab added to a token while it was measured."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from tui.screens.lab.forecast import MS_PER_S, same_lab, total_added_ms
from tui.work.quantities import newest_rate

if TYPE_CHECKING:
    from backends.state import ClusterSnapshot, Speed
    from tui.screens.lab.forecast import Labs

SAMPLES_MAX = 400
WINDOW_S = 3.0
"""Span over which the controller measures the speed of an answer under way."""


class Sample(NamedTuple):
    """One measurement."""

    added_ms: float
    """What the lab added to a token, over all links."""
    tok_per_s: float

    @property
    def own_ms(self) -> float:
        """What a token takes without any lab."""
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
        """Add the speed of now, if it is a new one and of the present lab alone."""
        labs = {link.worker: link.lab for link in snapshot.links}
        rate = newest_rate(snapshot.speed)
        if self._has_changed(labs):
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

    def _has_changed(self, labs: Labs) -> bool:
        before, self._labs = self._labs, labs
        if before is None:
            return False
        return before.keys() != labs.keys() or any(
            not same_lab(before[worker], lab) for worker, lab in labs.items()
        )
