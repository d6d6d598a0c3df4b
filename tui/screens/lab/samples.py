"""Measured speeds, each with what the lab added to a token while it was measured."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from tui.screens.lab.forecast import measured_rate, same_lab, total_added_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from backends.state import Link
    from tui.screens.lab.forecast import Labs

SAMPLES_MAX = 400


class Sample(NamedTuple):
    """One measurement."""

    added_ms: float
    """What the lab added to a token, over all links."""
    tok_per_s: float


class Samples:
    """The measurements so far; passes from before a change never count for after it."""

    def __init__(self) -> None:
        """Begin with none."""
        self.points: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self.latest: Sample | None = None
        """The newest one under the present lab."""
        self._labs: Labs | None = None
        self._since_ms = float("-inf")
        self._seen_ms = float("-inf")

    def take(self, links: Sequence[Link]) -> None:
        """Add what the newest passes say, when there are new ones."""
        link = next((link for link in links if link.passes), None)
        newest = link.passes[-1].at_ms if link else self._seen_ms
        if self._changed({link.worker: link.lab for link in links}):
            self._since_ms = self._seen_ms = newest
            self.latest = None
        elif link is not None and newest != self._seen_ms:
            self._seen_ms = newest
            self._measure(links, measured_rate(link, self._since_ms))

    def _measure(self, links: Sequence[Link], rate: float | None) -> None:
        if rate is not None:
            added = total_added_ms(links, {link.worker: link.lab for link in links})
            self.latest = Sample(added, rate)
            self.points.append(self.latest)

    def _changed(self, labs: Labs) -> bool:
        """Whether another lab is on than at the last look; the first look is none."""
        before, self._labs = self._labs, labs
        if before is None:
            return False
        return before.keys() != labs.keys() or any(
            not same_lab(before[worker], lab) for worker, lab in labs.items()
        )
