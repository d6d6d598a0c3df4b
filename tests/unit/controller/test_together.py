"""Several things at once: results in order, one failure, and a cancellation heard."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from backends.controller.together import together


async def result(value: int, after_s: float) -> int:
    await asyncio.sleep(after_s)
    return value


async def failing() -> int:
    raise ValueError("first")


async def test_results_keep_their_order() -> None:
    assert await together([result(1, 0.02), result(2, 0.0)]) == [1, 2]
    assert await together([]) == []


async def test_the_first_failure_ends_the_others() -> None:
    went_on: list[str] = []

    async def slow() -> int:
        await asyncio.sleep(0.05)
        went_on.append("slow")
        return 0

    with pytest.raises(ValueError, match="first"):
        await together([slow(), failing()])
    await asyncio.sleep(0.1)
    assert went_on == []


async def test_a_cancellation_while_it_ends_for_a_failure_is_not_forgotten() -> None:
    """A task group of Python 3.11 that is ending already would swallow it."""
    ending = asyncio.Event()

    async def takes_its_time() -> int:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            ending.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)
            raise
        return 0

    task = asyncio.create_task(together([takes_its_time(), failing()]))
    await ending.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
