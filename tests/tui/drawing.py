"""Consoles under test draw when a test pauses: frames are a third of what each costs.

No test sees a frame between two pauses. What is dirty stays so until the next pause,
or the end of the test.
Tests that count frames have the mark ``frames``, and draw each as the program does.
"""

from __future__ import annotations

from typing import Any

from textual.app import App
from textual.pilot import Pilot
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


async def pause_and_draw(pilot: Pilot[Any], delay: float | None = None) -> None:
    """Stand in for ``Pilot.pause``."""
    await _pause(pilot, delay)
    draw(pilot.app)


def draw(app: App[Any]) -> None:
    """Draw what is dirty, unless the console under test draws by itself."""
    is_ours = Screen._compositor_refresh is draw_later
    if not is_ours or app._exception is not None or not app._screen_stack:
        return
    if app.screen._compositor._dirty_regions:
        _draw(app.screen)
