"""Counting requests, and telling whoever wants to know."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import replace

from backends.state.snapshots import KeyCounts, RequestCounts

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

Count = Literal[
    "waiting",
    "in_flight",
    "passed",
    "failed",
    "left",
    "refused",
    "replayed",
    "continued",
]


KEYS_MAX = 256
"""The counts of so many keys are told; those of a key used longer ago are forgotten."""


class Tally:
    """The counts now, and when they change."""

    def __init__(self) -> None:
        """Begin at nothing."""
        self.counts = RequestCounts()
        self._changed = asyncio.Event()

    def add(self, name: Count, number: int = 1) -> None:
        """Count one more, or one less."""
        self._set(**{name: getattr(self.counts, name) + number})

    def add_of_key(self, name: str, **more: int) -> None:
        """Count something of the requests with one key."""
        keys = dict(self.counts.keys)
        before = keys.pop(name, KeyCounts())
        keys[name] = replace(
            before, **{what: getattr(before, what) + n for what, n in more.items()}
        )
        # The end of a request in flight is still to be counted.
        idle = next((key for key, counts in keys.items() if not counts.in_flight), None)
        if len(keys) > KEYS_MAX and idle is not None:
            del keys[idle]
        self._set(keys=keys)

    @contextmanager
    def during(self, name: Literal["waiting", "in_flight"]) -> Iterator[None]:
        """Count one more while the block runs."""
        if name == "waiting" and not self.counts.waiting:
            self._set(held_longest_s=0.0)
        self.add(name)
        try:
            yield
        finally:
            self.add(name, -1)

    def stir(self) -> None:
        """Have the counts told again, for what stands beside them has changed."""
        self._set()

    def went_on(self, waited_s: float, *, again: bool) -> None:
        """A request that was held goes on to llama-server, once more or at last."""
        longest_s = max(waited_s, self.counts.held_longest_s)
        self._set(held=self.counts.held + (not again), held_longest_s=longest_s)

    def paused(self, pause_s: float) -> None:
        """A stream that broke off goes on: its client saw it pause for so long."""
        self._set(held_longest_s=max(pause_s, self.counts.held_longest_s))

    def _set(self, **changes: Any) -> None:
        self.counts = replace(self.counts, **changes)
        event, self._changed = self._changed, asyncio.Event()
        event.set()

    def change(self) -> Coroutine[Any, Any, object]:
        """Wait for the next change from now on, also where it is awaited later."""
        return self._changed.wait()
