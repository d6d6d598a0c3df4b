"""Tokens per second of all clients of the server, from llama-server's slots."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from backends.state import ChatTimings, Speed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from backends.engine.server import Slot

# Long enough to be steady, short enough to follow a change.
WINDOW_S = 3.0


class SpeedMeter:
    """Turns readings of the slots into a rate; pure but for what it remembers."""

    def __init__(self) -> None:
        self._decoded: dict[int, tuple[int, int]] = {}
        self._total = 0
        self._rows: int | None = None
        self._readings: deque[tuple[float, int]] = deque()
        self._since = 0
        """The total before what is made now, or was made last."""
        self._last: float | None = None
        self._told = False
        """True if the server itself reported that figure, for its last answer."""
        self._tasks: set[int] = set()
        self._prompt: float | None = None

    def answered(self, timings: ChatTimings) -> None:
        """Take the figures of a whole answer, which may fit between two readings."""
        self._last = timings.tok_per_s or self._last
        self._told = timings.tok_per_s > 0
        if timings.prompt_ms > 0:
            self._prompt = timings.prompt_tokens / timings.prompt_ms * 1000

    def read(
        self,
        slots: Sequence[Slot],
        at: float,
        finished: int | None = None,
        rows: int | None = None,
    ) -> Speed:
        """Take one reading at ``at`` (monotonic seconds).

        ``finished`` are the tokens of all requests that ended, as the server counted
        them before the slots were read; ``rows`` are the tokens that relays saw come
        out. Without either, what a slot made after its last reading is not seen.
        """
        active = [slot for slot in slots if slot.is_processing]
        if not self._readings:
            self._since = self._total
        by_slots = sum(map(self._new, slots))
        by_rows = self._new_rows(rows)
        if finished is not None:
            # A request that ends between both questions is in neither answer, and
            # the server's count comes in steps once it is long.
            counted = finished + sum(slot.n_decoded for slot in active)
            self._total = max(self._total, counted)
        else:
            self._total += by_slots if by_rows is None else by_rows
        rate = self._rate(at, generating=bool(active))
        self._begin({slot.task for slot in active})
        # A single token has no speed: reading a conversation ahead makes one.
        if rate is not None and not self._told and self._total - self._since > 1:
            self._last = rate
        return Speed(
            tok_per_s=rate if active else None,
            last_tok_per_s=self._last,
            prompt_tok_per_s=self._prompt,
            requests_active=len(active),
            slots=len(slots),
            tokens=self._total,
            speculative=any(slot.speculative for slot in slots),
            ctx_used=max((slot.ctx_used for slot in slots), default=0),
        )

    def _begin(self, tasks: set[int]) -> None:
        # The reported figure is of the answer before.
        self._told = self._told and tasks <= self._tasks
        self._tasks |= tasks
        if not tasks:
            self._tasks.clear()

    def _new_rows(self, rows: int | None) -> int | None:
        before, self._rows = self._rows, rows or 0
        return None if rows is None or before is None else max(rows - before, 0)

    def _new(self, slot: Slot) -> int:
        # A new task starts at 0.
        task, before = self._decoded.get(slot.id, (slot.task, 0))
        new = slot.n_decoded - (before if task == slot.task else 0)
        self._decoded[slot.id] = (slot.task, slot.n_decoded)
        return max(new, 0)

    def _rate(self, at: float, *, generating: bool) -> float | None:
        """Tokens per second over the window; None when nothing was generated in it."""
        if not generating and not self._readings:
            return None
        self._readings.append((at, self._total))
        while self._readings and at - self._readings[0][0] > WINDOW_S:
            self._readings.popleft()
        first_at, first_total = self._readings[0]
        if not generating:
            self._readings.clear()
        if at <= first_at or self._total == first_total:
            return None
        return (self._total - first_total) / (at - first_at)
