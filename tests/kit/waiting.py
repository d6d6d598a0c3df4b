"""Waiting for what must come true, however busy the machine is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

PATIENCE_S = 60.0
POLL_S, LONGEST_POLL_S = 0.005, 0.5


async def until(condition: Callable[[], object], what: str = "the condition") -> None:
    for pause_s in _looks(condition, what):
        await asyncio.sleep(pause_s)


def wait_until(
    condition: Callable[[], object],
    what: str = "the condition",
    patience_s: float = PATIENCE_S,
) -> None:
    for pause_s in _looks(condition, what, patience_s):
        time.sleep(pause_s)


def _looks(
    condition: Callable[[], object], what: str, patience_s: float = PATIENCE_S
) -> Iterator[float]:
    """The pause before the next look: as long as the last one took, for what is waited
    for needs the processor too.
    """
    begun = time.monotonic()
    deadline = begun + patience_s
    while not condition():
        now = time.monotonic()
        assert now < deadline, f"waited in vain for {what}"
        yield min(max(now - begun, POLL_S), LONGEST_POLL_S)
        begun = time.monotonic()
