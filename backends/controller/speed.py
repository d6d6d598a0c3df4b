"""Tokens per second of whoever uses the server, from llama-server's slots."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from backends.state import ChatTimings, Speed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from backends.engine.http import Slot

# Long enough to be steady, short enough to follow a change.
WINDOW_S = 3.0


class SpeedMeter:
    """Turns readings of the slots into a rate; pure but for what it remembers."""

    def __init__(self) -> None:
        """Start with nothing measured."""
        self._decoded: dict[int, tuple[int, int]] = {}
        self._total = 0
        self._readings: deque[tuple[float, int]] = deque()
        self._last: float | None = None
        self._prompt: float | None = None

    def answered(self, timings: ChatTimings) -> None:
        """Take the figures of a whole answer, which may fit between two readings."""
        self._last = timings.tok_per_s or self._last
        if timings.prompt_ms > 0:
            self._prompt = timings.prompt_tokens / timings.prompt_ms * 1000

    def read(self, slots: Sequence[Slot], at: float) -> Speed:
        """Take one reading at ``at`` (monotonic seconds)."""
        for slot in slots:
            self._count(slot)
        active = [slot for slot in slots if slot.is_processing]
        rate = self._rate(at, generating=bool(active))
        if rate is not None:
            self._last = rate
        return Speed(
            tok_per_s=rate if active else None,
            last_tok_per_s=self._last,
            prompt_tok_per_s=self._prompt,
            requests_active=len(active),
            ctx_used=max((slot.ctx_used for slot in slots), default=0),
        )

    def _count(self, slot: Slot) -> None:
        """Add what a slot decoded since the last reading; a new task starts at 0."""
        task, before = self._decoded.get(slot.id, (slot.task, 0))
        new = slot.n_decoded - (before if task == slot.task else 0)
        self._total += max(new, 0)
        self._decoded[slot.id] = (slot.task, slot.n_decoded)

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
