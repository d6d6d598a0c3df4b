"""The lines a relay writes to its readers, as values."""

from __future__ import annotations

from typing import Any

import msgspec

NS_PER_MS = 1e6
US_PER_MS = 1e3


class Command(msgspec.Struct, frozen=True):
    """Counters of one command."""

    count: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    answered: int = 0
    errors: int = 0
    p50_us: float | None = None
    p99_us: float | None = None
    max_us: float | None = None


class LabLine(msgspec.Struct, frozen=True):
    """The lab as it is set."""

    latency_ms: float = 0.0
    jitter_ms: float = 0.0
    rate_mb_s: float = 0.0
    seed: int = 1


class PassLine(msgspec.Struct, frozen=True):
    """One pass; instants and durations in nanoseconds of the relay's clock."""

    tokens: int
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


class Line(msgspec.Struct, frozen=True):
    """Any line; ``type`` says which fields mean something."""

    type: str
    worker: str = ""
    mode: str = "metered"
    protocol: str | None = None
    waiting: tuple[str, ...] = ()
    plain_reason: str | None = None
    refused: int = 0
    refused_reason: str | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    rtt_us: float = 0.0
    lab: LabLine | None = None
    commands: dict[str, Command] = {}
    passes: Any = None
    error: str = ""

    def pass_lines(self) -> list[PassLine]:
        """The passes of a ``passes`` line."""
        return msgspec.convert(self.passes or [], list[PassLine])


def parse(line: bytes) -> Line | None:
    """One line; None for one that is not understood (a newer relay's, say)."""
    try:
        return msgspec.json.decode(line, type=Line)
    except msgspec.DecodeError:
        return None
