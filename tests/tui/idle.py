"""When a console under test has nothing left to do."""

from __future__ import annotations

import asyncio
from typing import Any

SOON_S = 0.02
"""What is due this soon is waited for: a console paints sixty times a second."""

TURNS = 3
"""So many turns of the loop without work are rest: each looks at the sockets, too."""

TIMERS = 60
BUSY_TURNS = 1000
"""A console that never rests is left after so many."""


async def wait_for_idle(_min_sleep: float = 0, _max_sleep: float = 1) -> None:
    """Return once nothing is ready to run and nothing is due soon.

    Textual's own asks how much of a processor the process took in the last moment:
    it takes a console that a busy machine gave nothing for one that is done.
    """
    loop: Any = asyncio.get_running_loop()
    turns = timers = busy = 0
    while turns < TURNS and timers < TIMERS and busy < BUSY_TURNS:
        await asyncio.sleep(0)
        if loop._ready:
            turns, busy = 0, busy + 1
        elif (due_s := _next_due_s(loop)) < SOON_S:
            await asyncio.sleep(due_s)
            turns, timers = 0, timers + 1
        else:
            turns += 1


async def wait_for_screen(_pilot: object, _timeout_s: float = 30) -> bool:
    """Return once every widget has seen what was sent to it.

    Textual's own asks each one, and waits half a minute for one removed meanwhile.
    """
    await wait_for_idle()
    return True


def _next_due_s(loop: Any) -> float:
    """The time until the next timer; none if it is over."""
    whens = (timer.when() for timer in loop._scheduled if not timer.cancelled())
    due_s: float = min(whens, default=float("inf")) - loop.time()
    return max(0.0, due_s)
