"""Several coroutines at once: results in order, one failure, a cancellation heard."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys

import pytest

from backends.tasks import first_of, forever, gather_or_cancel


async def result(value: int, after_s: float) -> int:
    await asyncio.sleep(after_s)
    return value


async def failing() -> int:
    raise ValueError("first")


async def test_results_keep_their_order() -> None:
    assert await gather_or_cancel([result(1, 0.02), result(2, 0.0)]) == [1, 2]
    assert await gather_or_cancel([]) == []


@pytest.mark.parametrize("several", [lambda *w: gather_or_cancel(w), first_of])
async def test_the_first_failure_ends_the_others(several: object) -> None:
    ended: list[str] = []

    async def slow() -> int:
        try:
            await forever()
        finally:
            ended.append("slow")

    with pytest.raises(ValueError, match="first"):
        await several(slow(), failing())  # type: ignore[operator]
    assert ended == ["slow"]


async def test_the_first_to_end_counts_and_ends_the_others() -> None:
    assert await first_of(forever(), result(1, 0.0), result(2, 0.0)) == 1


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

    task = asyncio.create_task(gather_or_cancel([takes_its_time(), failing()]))
    await ending.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


STARTING = """
import asyncio
from backends.tasks import end_others

async def start():
    pipe = asyncio.subprocess.PIPE
    await asyncio.create_subprocess_exec("cat", stdin=pipe, stdout=pipe, stderr=pipe)

async def main(steps):
    starting = asyncio.ensure_future(start())
    for _ in range(steps):
        await asyncio.sleep(0)
    await end_others()

for steps in range(12):
    asyncio.run(main(steps))
"""


def test_a_child_may_be_starting_at_the_end() -> None:
    """``asyncio.run`` alone waits for ever in the first seven of these moments."""
    subprocess.run([sys.executable, "-c", STARTING], timeout=60, check=True)
