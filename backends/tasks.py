"""Several coroutines at once, none of which goes on behind our back."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

if TYPE_CHECKING:
    import socket

T = TypeVar("T")
_CONNECTS = "_connect_pipes"


async def gather_or_cancel(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results in order; the first failure ends the others, and is raised.

    ``asyncio.gather`` would let them go on: what they start would be nobody's. A task
    group of Python 3.11 forgets a cancellation that comes while it ends for a failure.
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    if not tasks:
        return []
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        failed = [t for t in tasks if t.done() and not t.cancelled() and t.exception()]
    finally:
        await end_tasks(*tasks)
    return [task.result() for task in (failed[:1] or tasks)]


async def first_of(*works: Coroutine[Any, Any, T]) -> T:
    """Return the result of the first to end, and cancel the others.

    If several end at once, the one that is named first counts.
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task.done()).result()
    finally:
        await end_tasks(*tasks)


async def forever() -> NoReturn:
    while True:
        await asyncio.Event().wait()


async def end_tasks(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancel tasks, and wait until they have ended; None is no task."""
    there = [task for task in tasks if task is not None]
    for task in there:
        task.cancel()
    await asyncio.gather(*there, return_exceptions=True)


class TaskSet:
    """The tasks of one owner, each kept until it ends."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def end(self) -> None:
        await end_tasks(*self._tasks)


async def end_others() -> None:
    """End every other task, but asyncio's own that connect the pipes of a child.

    ``asyncio.run`` cancels those with the others: then whoever starts the child at that
    moment waits for it for ever.
    """
    this = asyncio.current_task()
    while left := [
        task
        for task in asyncio.all_tasks()
        if task is not this and getattr(task.get_coro(), "__name__", "") != _CONNECTS
    ]:
        await end_tasks(*left)


async def until_readable(made: socket.socket) -> None:
    """Wait until there is something to read, and leave it there."""
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(made, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(made)
