"""A sweep: the speed of a running plan while a link is made slower step by step."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from backends.state.base import Value
from backends.state.links import LAB_DELAY_MAX_MS

SWEEP_TO_MS = 50.0
SWEEP_STEPS = 11
SWEEP_TOKENS = 32


class SweepRequest(Value, frozen=True, kw_only=True):
    worker: str | None = None
    """The worker whose link is made slower; None: all."""
    to_ms: Annotated[float, Meta(gt=0, le=LAB_DELAY_MAX_MS)] = SWEEP_TO_MS
    """The most added one-way latency; the least is 0."""
    steps: Annotated[int, Meta(ge=2, le=101)] = SWEEP_STEPS
    tokens: Annotated[int, Meta(ge=8, le=4096)] = SWEEP_TOKENS
    """Of each answer, at most; slow steps have fewer."""

    @property
    def latencies_ms(self) -> tuple[float, ...]:
        last = self.steps - 1
        return tuple(self.to_ms * step / last for step in range(self.steps))


class SweepPoint(Value, frozen=True, kw_only=True):
    """One step: predicted before the sweep, and measured."""

    latency_ms: float
    """Added one-way latency."""
    predicted_tok_per_s: float
    low: float
    high: float
    """Nine of ten runs are between these."""
    tok_per_s: float | None = None
    """Measured; None until then."""
    tokens: int = 0
    """Of the answer behind it."""
    disturbed: bool = False
    """True if other requests or programs were at work meanwhile."""

    @property
    def is_within(self) -> bool:
        """True if it was measured within the predicted band."""
        return self.tok_per_s is not None and self.low <= self.tok_per_s <= self.high


class Sweep(Value, frozen=True, kw_only=True):
    """A sweep as far as it has come."""

    model: str
    workers: tuple[str, ...]
    """The workers whose links are made slower."""
    points: tuple[SweepPoint, ...]
    measuring: int | None = None
    """The index of the step under way; None when all are measured."""

    @property
    def measured(self) -> tuple[SweepPoint, ...]:
        return tuple(one for one in self.points if one.tok_per_s is not None)
