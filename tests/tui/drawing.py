"""Consoles under test draw when a test pauses: frames are a third of what each costs.

No test sees a frame between two pauses. What is dirty stays so until the next pause,
or the end of the test.
Tests that count frames have the mark ``frames``, and draw each as the program does.
"""

from __future__ import annotations

import asyncio
from typing import Any

from textual import _wait
from textual.app import App
from textual.message_pump import MessagePump
from textual.pilot import Pilot, WaitForScreenTimeout
from textual.screen import Screen

_draw = Screen._compositor_refresh
_pause = Pilot.pause
_wait_for_idle = _wait.wait_for_idle
MOST_TURNS = 1_000
"""Of a loop in which something is always ready."""


def draw_later(screen: Screen[Any]) -> None:
    """Stand in for ``Screen._compositor_refresh``."""
    if screen is screen.app.screen:
        screen._dirty_widgets.clear()
        screen.app._update_mouse_over(screen)
    else:
        _draw(screen)


async def pause_and_draw(pilot: Pilot[Any], delay: float | None = None) -> None:
    """Stand in for ``Pilot.pause``."""
    await _pause(pilot, delay)
    draw(pilot.app)


async def wait_for_busy(pilot: Pilot[Any], timeout: float = 30.0) -> bool:
    """Stand in for ``Pilot._wait_for_screen``, which has every widget answer.

    Here only those answer that have a message, or are about one.
    """
    app, left = pilot.app, 0
    answered = asyncio.Event()

    def answer() -> None:
        nonlocal left
        left -= 1
        if not left:
            answered.set()

    for pump in (app, *app.screen.walk_children(with_self=True)):
        if not _waits(pump) and pump.call_later(answer):
            left += 1
    if not left:
        return True
    waiting = [
        asyncio.ensure_future(event.wait())
        for event in (answered, app._exception_event)
    ]
    done, pending = await asyncio.wait(
        waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
    )
    for one in pending:
        one.cancel()
    if not done:
        raise WaitForScreenTimeout("Widgets did not answer")
    return not left


async def wait_for_idle(min_sleep: float = 0.02, max_sleep: float = 1.0) -> None:
    """Stand in for the ``wait_for_idle`` of textual, which asks for processor time.

    A process that other work keeps from the processor looks idle to it: the next key
    was pressed while the last one's message still waited.
    """
    await _wait_for_idle(min_sleep, max_sleep)
    loop: Any = asyncio.get_running_loop()
    for _ in range(MOST_TURNS):
        if not loop._ready:
            return
        await asyncio.sleep(0)


def _waits(pump: MessagePump) -> bool:
    queue: Any = pump._message_queue
    return queue.empty() and bool(queue.ready_event._waiters)


def draw(app: App[Any]) -> None:
    """Draw what is dirty, unless the console under test draws by itself."""
    is_ours = Screen._compositor_refresh is draw_later
    if not is_ours or app._exception is not None or not app._screen_stack:
        return
    if app.screen._compositor._dirty_regions:
        _draw(app.screen)
