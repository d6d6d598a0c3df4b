"""Consoles under test draw when a test pauses: frames are a third of what each costs.

No test sees a frame between two pauses. What is dirty stays so until the next pause.
Tests that count frames have the mark ``frames``, and draw each as the program does.
A pause waits for those widgets alone that have messages.
"""

from __future__ import annotations

import asyncio
from typing import Any

from textual._queue import Queue
from textual.message import Message
from textual.message_pump import MessagePump
from textual.pilot import Pilot, WaitForScreenTimeout
from textual.screen import Screen

_draw = Screen._compositor_refresh
_pause = Pilot.pause


def draw_later(screen: Screen[Any]) -> None:
    """Stand in for ``Screen._compositor_refresh``."""
    if screen is screen.app.screen:
        screen._dirty_widgets.clear()
        screen.app._update_mouse_over(screen)
    else:
        _draw(screen)


async def wait_and_draw(pilot: Pilot[Any], timeout: float = 30.0) -> bool:
    """Stand in for ``Pilot._wait_for_screen``, which ends each press of a key."""
    waited = await _wait_for_messages(pilot, timeout)
    if pilot.app.is_running and pilot.app._screen_stack:
        _draw_now(pilot)
    return waited


async def pause_and_draw(pilot: Pilot[Any], delay: float | None = None) -> None:
    """Stand in for ``Pilot.pause``."""
    await _pause(pilot, delay)
    _draw_now(pilot)


async def _wait_for_messages(pilot: Pilot[Any], timeout: float) -> bool:
    app = pilot.app
    if not app._screen_stack:
        return False
    failed: asyncio.Future[Any] = asyncio.create_task(app._exception_event.wait())
    answers = []
    for pump in (app, app.screen, *filter(_is_busy, app.screen.walk_children())):
        answer = asyncio.Event()
        if pump.call_later(answer.set):
            answers.append(answer.wait())
    answered = asyncio.gather(*answers)
    await asyncio.wait(
        {answered, failed}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
    )
    if not answered.done() and not failed.done():
        raise WaitForScreenTimeout("The messages of a widget took too long.")
    failed.cancel()
    return answered.done() or not answered.cancel()


def _is_busy(pump: MessagePump) -> bool:
    queue: Queue[Message | None] = pump._message_queue
    return not queue.empty() or not queue.ready_event._waiters


def _draw_now(pilot: Pilot[Any]) -> None:
    screen = pilot.app.screen
    if pilot.app._exception is None and screen._compositor._dirty_regions:
        _draw(screen)
