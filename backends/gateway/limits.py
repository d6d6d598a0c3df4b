"""How much one key may ask for: so many requests a minute, so many at once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from backends.gateway.keys import Key

SOON_S = 1.0
"""When to come again where only the end of another request makes room."""
MINUTE_S = 60.0


class Allowance:
    """What one key has left.

    A minute's worth may come at once; from there on one at a time as it grows back.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Nothing is used up."""
        self._clock = clock
        self._used = 0.0
        self._at = clock()
        self.in_flight = 0

    def wait_s(self, key: Key) -> float:
        """How long to wait before the next request; 0 where it may come now."""
        if key.requests_at_once and self.in_flight >= key.requests_at_once:
            return SOON_S
        rate = key.requests_per_minute / MINUTE_S
        if not rate:
            return 0.0
        now = self._clock()
        self._used = max(0.0, self._used - (now - self._at) * rate)
        self._at = now
        over = self._used + 1 - key.requests_per_minute
        return max(0.0, over / rate)

    def begin(self) -> None:
        """One more is being answered."""
        self._used += 1
        self.in_flight += 1

    def end(self) -> None:
        """One is answered."""
        self.in_flight -= 1


class Allowances:
    """Those of all keys, by name."""

    def __init__(self) -> None:
        """Nobody came yet."""
        self._known: dict[str, Allowance] = {}

    def of(self, key: Key) -> Allowance:
        """That of one key."""
        return self._known.setdefault(key.name, Allowance(time.monotonic))
