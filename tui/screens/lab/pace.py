"""At most so many changes a second: of those in between only the newest counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

GAP_S = 0.1
"""Between two changes told while a thumb is dragged."""

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
        """Seconds until another change may be told."""
        return self._told_at + self._gap_s - self._clock()

    def _tell(self) -> T | None:
        change, self.held = self.held, None
        if change is not None:
            self._told_at = self._clock()
        return change
