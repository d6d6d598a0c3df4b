"""When starting something again and again is given up: it has a reason of its own."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEATHS_MAX = 5
WINDOW_S = 120.0
GIVEN_UP = "It is not started once more: its log may say why; launch again to try anew."


class Deaths:
    """Counts deaths of the same kind within two minutes; ``clock`` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._now = clock
        self._deaths: dict[str, list[float]] = {}

    def trips(self, kind: str) -> bool:
        """Count one more death; whether that was one too many."""
        now = self._now()
        recent = [at for at in self._deaths.get(kind, ()) if now - at < WINDOW_S]
        self._deaths[kind] = [*recent, now]
        return len(self._deaths[kind]) >= DEATHS_MAX

    def had(self, kind: str, deaths: int) -> None:
        """So many came before this controller, and count as of now."""
        self._deaths[kind] = [self._now()] * deaths

    def reset(self) -> None:
        """Begin anew: somebody said so."""
        self._deaths.clear()


class Breaker(Deaths):
    """Counts deaths within two minutes of serving.

    Only the time in which the cluster serves counts. A model that loads for a quarter
    of an hour does not use up the two minutes.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(lambda: self._served_s)
        self._clock = clock
        self._served_s = 0.0

    @contextmanager
    def serving(self) -> Iterator[None]:
        """It serves while the block runs."""
        began = self._clock()
        try:
            yield
        finally:
            self._served_s += max(self._clock() - began, 0.0)
