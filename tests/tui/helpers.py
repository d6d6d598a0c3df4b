"""Waiting for conditions, and finding what is on the screen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from textual import events
from textual.app import App
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widget import Widget

from tests.tui.drawing import draw
from tui.app.app import DllmApp
from tui.app.console import ConsoleApp
from tui.screens.cluster.split_bar import SplitBar
from tui.widgets.strips import StripWidget

PATIENCE_S = 120.0
"""A machine that does other work may take seconds for what takes milliseconds."""
LOOKS_A_PAUSE = 10
"""A pause asks every widget on the screen, a look costs next to nothing."""
OfScreen = TypeVar("OfScreen", bound=Screen[Any])


async def until(pilot: Pilot[None], condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await pilot.pause()
            for _ in range(LOOKS_A_PAUSE):
                if condition():
                    break
                await asyncio.sleep(0.005)
    await pilot.pause()


async def resize(pilot: Pilot[None], width: int, height: int) -> None:
    """Resize the terminal, and wait until the screen is laid out for it.

    The pilot's own pause may end before that.
    """
    await pilot.resize_terminal(width, height)
    await until(pilot, lambda: pilot.app.screen.size == (width, height))


async def settled(pilot: Pilot[None]) -> None:
    bar = pilot.app.query_one(SplitBar)
    await until(pilot, lambda: bar.edit is not None and bar.size.width > 0)
    await pilot.pause()


async def in_front(pilot: Pilot[None], kind: type[OfScreen]) -> OfScreen:
    """Wait until a screen of this kind is the one in front."""
    await until(pilot, lambda: isinstance(pilot.app.screen, kind))
    screen = pilot.app.screen
    assert isinstance(screen, kind)
    return screen


async def wheel_down(pilot: Pilot[None], widget: Widget) -> None:
    down = events.MouseScrollDown
    await pilot._post_mouse_events([down], widget, offset=(1, 0))
    await pilot.pause()


def text_of(widget: StripWidget) -> str:
    return "\n".join(strip.text.rstrip() for strip in widget.lines())


def screen_text(app: App[None]) -> str:
    # Lines that are read before they were drawn would lack what is behind a dialog.
    draw(app)
    lines = app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in lines)


def toasts(app: App[None]) -> list[str]:
    return [notification.message for notification in app._notifications]


def last_answer(app: DllmApp) -> str:
    now = app._home.chat.conversation
    return now.turns[-1].reply.text if now and now.turns else ""


async def burst(pilot: Pilot[None], *keys: str) -> None:
    """Press keys without waiting for what each does, as a fast typist's terminal."""
    app = pilot.app
    assert isinstance(app, ConsoleApp)
    for key in keys:
        app.post_message(events.Key(key, key if len(key) == 1 else None))
    await pilot.pause()
    await until(pilot, lambda: not app._typed and app._key_at_work is None)
