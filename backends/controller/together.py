"""Several things at once, none of which goes on when one of them has ended."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

T = TypeVar("T")


async def together(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results in their order; the first failure ends the others, and is raised.

    ``asyncio.gather`` would let them go on behind our back: what they start would be
    nobody's. A task group of Python 3.11 forgets a cancellation from outside that comes
    while it ends for a failure.
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    if not tasks:
        return []
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        failed = [t for t in tasks if t.done() and not t.cancelled() and t.exception()]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [task.result() for task in (failed[:1] or tasks)]


async def until_over(
    up: Coroutine[Any, Any, None], over: Coroutine[Any, Any, str]
) -> str:
    """Keep something up, which returns only by raising, until that is over: why."""
    up_task, over_task = asyncio.create_task(up), asyncio.create_task(over)
    tasks = {up_task, over_task}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if up_task.done():
            await up_task
        return await over_task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
