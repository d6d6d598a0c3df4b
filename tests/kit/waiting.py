"""Waiting for what must come true, however busy the machine is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

PATIENCE_S = 60.0
POLL_S, LATE_POLL_S, LONGEST_POLL_S = 0.005, 0.05, 0.5


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
    for needs the processor too; and longer where it takes long.
    """
    begun = first = time.monotonic()
    while not condition():
        now = time.monotonic()
        assert now < first + patience_s, f"waited in vain for {what}"
        late_s = min((now - first) / 20, LATE_POLL_S)
        yield min(max(now - begun, POLL_S, late_s), LONGEST_POLL_S)
        begun = time.monotonic()
