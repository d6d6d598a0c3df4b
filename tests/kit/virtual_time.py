"""An event loop whose clock jumps to the next timer as soon as nothing else is left.

Minutes of waiting take milliseconds, and every run is the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from unittest.mock import patch

from tui.cli.replay import JumpingLoop, JumpingSelector

T = TypeVar("T")

EPOCH_S = 1_800_000_000.0
"""Unix seconds at which every run begins."""


class StandsStillError(AssertionError):
    """Everything waits for what cannot happen any more."""


class _Selector(JumpingSelector):
    def select(self, timeout: float | None = None) -> Any:
        found = super().select(timeout)
        if not found and timeout is None:
            raise StandsStillError("nothing is left that could happen")
        return found


def in_virtual_time(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of some work, of which ``time.time`` and others see virtual time."""
    selector = _Selector()
    with (
        patch.object(time, "time", lambda: EPOCH_S + selector.now_s),
        patch.object(time, "monotonic", lambda: selector.now_s),
        asyncio.Runner(loop_factory=lambda: JumpingLoop(selector)) as runner,
    ):
        return runner.run(work())
