"""What tests of the console's flows have in common."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from textual.pilot import Pilot

from tests.kit.console import Running, Started
from tests.tui import scenes
from tests.tui.helpers import in_front
from tui.app.app import DllmApp
from tui.dialogs.dialog import ChoiceDialog
from tui.screens.cluster.split_bar import SplitBar

SIZE = (120, 36)


def planning(started: Started) -> AbstractAsyncContextManager[Running]:
    """A console where nothing runs, begun with the demo model."""
    return started(scenes.idle(), initial_model=scenes.DEMO.path)


def layers(app: DllmApp) -> tuple[int, ...]:
    bar = app.query_one(SplitBar)
    assert bar.edit is not None
    return bar.edit.counts


async def dialog(pilot: Pilot[None]) -> ChoiceDialog:
    return await in_front(pilot, ChoiceDialog)
