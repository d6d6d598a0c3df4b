"""An event loop whose clock jumps to the next timer as soon as nothing else is left.

Minutes of waiting take milliseconds, and every run is the same.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from unittest.mock import patch

T = TypeVar("T")

EPOCH_S = 1_800_000_000.0
"""Unix seconds at which every run begins."""


class StandsStillError(AssertionError):
    """Everything waits for what cannot happen any more."""


class _JumpingSelector(selectors.DefaultSelector):
    now_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if found := super().select(0):
            return found
        if timeout is None:
            raise StandsStillError("nothing is left that could happen")
        self.now_s += max(timeout, 0.0)
        return found


class _VirtualLoop(asyncio.SelectorEventLoop):
    """Works in threads are done at once, in this one: no thread knows this clock."""

    def __init__(self, selector: _JumpingSelector) -> None:
        self._jumping = selector
        super().__init__(selector)

    def time(self) -> float:
        return self._jumping.now_s

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> Any:
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def in_virtual_time(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of some work, of which ``time.time`` and others see virtual time."""
    selector = _JumpingSelector()
    with (
        patch.object(time, "time", lambda: EPOCH_S + selector.now_s),
        patch.object(time, "monotonic", lambda: selector.now_s),
        asyncio.Runner(loop_factory=lambda: _VirtualLoop(selector)) as runner,
    ):
        return runner.run(work())
