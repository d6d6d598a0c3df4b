"""The user's wishes for each link, beside the cluster's report of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from tui.model.warnings import is_off
from tui.screens.lab.forecast import same_lab

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from backends.state import Lab, Link
    from tui.screens.lab.forecast import Labs

GRACE_S = 2.0
"""For so long a snapshot that says otherwise is taken for one from before."""
UNDO_MAX = 100


class LabWishes:
    """The labs as wanted, with a way back; the cluster's word counts in the end."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.labs: Labs = {}
        """The lab wanted on each link."""
        self._clock = clock
        self._asked_at: dict[str, float] = {}
        self._asked: Labs = {}
        self._history: list[Labs] = []

    def want(self, labs: Mapping[str, Lab | None], *, final: bool = True) -> bool:
        """Take what the user wants; False when it is so already.

        What is final is one step of undo; before that the links only count as asked.
        """
        for worker, lab in labs.items():
            self._ask(worker, lab)
        if not final:
            return True
        before = {worker: self.labs.get(worker) for worker in labs}
        changed = any(not same_lab(before[worker], labs[worker]) for worker in labs)
        if changed:
            self._history = [*self._history, before][-UNDO_MAX:]
            self.labs.update(labs)
        return changed

    def undo(self) -> Labs | None:
        """Restore the links before the last change; None if there was none."""
        if not self._history:
            return None
        before = self._history.pop()
        self.labs.update(before)
        for worker, lab in before.items():
            self._ask(worker, lab)
        return before

    def adopt(self, link: Link) -> bool:
        """Take over the lab of a link; False while the last wish may be under way."""
        worker, lab = link.worker, None if is_off(link.lab) else link.lab
        asked_at = self._asked_at.get(worker)
        if asked_at is not None:
            late = self._clock() - asked_at > GRACE_S
            if not late and not same_lab(lab, self._asked.get(worker)):
                return False
            del self._asked_at[worker]
        self.labs[worker] = lab
        return True

    def forget(self, workers: set[str]) -> None:
        """Keep only what is known of these workers."""
        self.labs = {w: lab for w, lab in self.labs.items() if w in workers}
        self._asked_at = {w: at for w, at in self._asked_at.items() if w in workers}

    def _ask(self, worker: str, lab: Lab | None) -> None:
        self._asked[worker] = lab
        self._asked_at[worker] = self._clock()


GAP_S = 0.1
"""Time between two changes sent while the user drags a thumb."""

T = TypeVar("T")


class Pace(Generic[T]):
    """Lets changes through, or holds the newest until its time has come."""

    def __init__(self, clock: Callable[[], float], gap_s: float = GAP_S) -> None:
        self._clock = clock
        self._gap_s = gap_s
        self._told_at = float("-inf")
        self.held: T | None = None
        """The change that waits."""

    def offer(self, change: T, *, final: bool) -> T | None:
        """A change to tell now; None when it has to wait. A final one never waits."""
        self.held = change
        return self._tell() if final else self.due()

    def due(self) -> T | None:
        """The change held, once its time has come."""
        return self._tell() if self.wait_s <= 0 else None

    @property
    def wait_s(self) -> float:
        """Seconds until another change may be sent."""
        return self._told_at + self._gap_s - self._clock()

    def _tell(self) -> T | None:
        change, self.held = self.held, None
        if change is not None:
            self._told_at = self._clock()
        return change
