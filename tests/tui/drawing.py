"""Consoles under test draw when a test pauses: frames are a third of what each costs.

No test sees a frame between two pauses. What is dirty stays so until the next pause.
Tests that count frames have the mark ``frames``, and draw each as the program does.
"""

from __future__ import annotations

from typing import Any

from textual.pilot import Pilot
from textual.screen import Screen

_draw = Screen._compositor_refresh
_pause = Pilot.pause
_wait_for_screen = Pilot._wait_for_screen


def draw_later(screen: Screen[Any]) -> None:
    """Stand in for ``Screen._compositor_refresh``."""
    if screen is screen.app.screen:
        screen._dirty_widgets.clear()
        screen.app._update_mouse_over(screen)
    else:
        _draw(screen)


async def wait_and_draw(pilot: Pilot[Any], timeout: float = 30.0) -> bool:
    """Stand in for ``Pilot._wait_for_screen``, which ends each press of a key."""
    waited = await _wait_for_screen(pilot, timeout)
    if pilot.app.is_running and pilot.app._screen_stack:
        _draw_now(pilot)
    return waited


async def pause_and_draw(pilot: Pilot[Any], delay: float | None = None) -> None:
    """Stand in for ``Pilot.pause``."""
    await _pause(pilot, delay)
    _draw_now(pilot)


def _draw_now(pilot: Pilot[Any]) -> None:
    screen = pilot.app.screen
    if pilot.app._exception is None and screen._compositor._dirty_regions:
        _draw(screen)
