"""The lines a relay writes to its readers, as values."""

from __future__ import annotations

from typing import Any

import msgspec

from backends.errors import UsageError
from backends.state import (
    LAB_DELAY_MAX_MS,
    LAB_RATE_MAX_MB_S,
    NOT_JSON,
    Lab,
    LinkCommand,
)

NS_PER_MS = 1e6
NS_PER_S = 1e9
LINE_BYTES_MAX = 1 << 22
"""Of one line; the longest a relay writes is a sixteenth of it."""


class PassLine(msgspec.Struct, frozen=True):
    """One pass; instants and durations in nanoseconds of the relay's clock."""

    batch: int
    generated: bool
    round_trips: int
    bytes_up: int
    bytes_down: int
    last_reply_ns: int
    head_ns: int
    up_ns: int
    compute_ns: int
    down_ns: int
    wait_ns: int
    rows: int | None = None
    """Tokens that came out; None where the last layer is elsewhere."""


class PairLine(msgspec.Struct, frozen=True):
    """The link to a relay beside the worker."""

    up: bool = False
    reason: str | None = None
    """Why it is not up."""
    place: str | None = None
    """The address that the head's relay dialled."""
    detour: str | None = None
    """Why not at the first place that it was told."""
    wire_bytes_up: int | None = 0
    wire_bytes_down: int | None = 0
    overhead_bytes_up: int | None = None
    overhead_bytes_down: int | None = None
    """Of them what belongs to no command; None where an older relay does not say."""
    weight_bytes_home: int | None = None
    weight_bytes_sent: int | None = None
    """None where the pair sends every weight without asking."""
    tensors_differ: int = 0
    tensors_missing: int = 0
    reconnects: int = 0
    pause_ms: int = 0


class Line(msgspec.Struct, frozen=True):
    """Any line; ``type`` says which fields mean something."""

    type: str
    worker: str = ""
    at_ns: int = 0
    mode: str = "metered"
    protocol: str | None = None
    waiting: tuple[str, ...] = ()
    unanswered_ms: float | None = None
    plain_reason: str | None = None
    refused: int = 0
    refused_reason: str | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    rtt_us: float = 0.0
    pair: PairLine | None = None
    lab: Lab | None = None
    commands: dict[str, LinkCommand] = {}
    passes: Any = None
    rows: int | None = None
    """Of all passes; None where the last layer is elsewhere."""
    error: str = ""

    def pass_lines(self) -> list[PassLine]:
        return msgspec.convert(self.passes or [], list[PassLine])


def parse(line: bytes) -> Line | None:
    """One line; None for one that is not understood (a newer relay's, say)."""
    try:
        return msgspec.json.decode(line, type=Line)
    except NOT_JSON:
        return None


def require_possible(lab: Lab) -> None:
    delays_ms = (lab.latency_ms, lab.jitter_ms)
    if min(*delays_ms, lab.rate_mb_s, lab.seed) < 0:
        raise UsageError(
            "A link cannot be delayed or slowed by less than nothing",
            "Give latency, jitter, rate and seed as 0 or more.",
        )
    if max(delays_ms) > LAB_DELAY_MAX_MS:
        raise UsageError(
            f"The relay delays by {LAB_DELAY_MAX_MS / 1000:g} s at most",
            "Give less latency and less jitter.",
        )
    if lab.rate_mb_s > LAB_RATE_MAX_MB_S:
        raise UsageError(
            f"The relay limits a link to {LAB_RATE_MAX_MB_S / 1000:g} GB/s at most",
            "Give no rate where the link is to be as fast as it is.",
        )
