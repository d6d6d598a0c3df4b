"""Waiting for what must come true, however busy the machine is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

PATIENCE_S = 60.0
POLL_S = 0.005


async def until(condition: Callable[[], object], what: str = "the condition") -> None:
    for _ in _looks(condition, what):
        await asyncio.sleep(POLL_S)


def wait_until(
    condition: Callable[[], object],
    what: str = "the condition",
    patience_s: float = PATIENCE_S,
) -> None:
    for _ in _looks(condition, what, patience_s):
        time.sleep(POLL_S)


def _looks(
    condition: Callable[[], object], what: str, patience_s: float = PATIENCE_S
) -> Iterator[None]:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        yield
