"""Leaving the console: what is asked, and what goes on."""

from __future__ import annotations

import pytest

from backends.errors import ControllerError
from tests.kit.console import Started
from tests.tui import scenes
from tests.tui.flowing import dialog
from tests.tui.helpers import toasts, until
from tests.tui.scripted import ScriptedCluster
from tui.dialogs.ask import ChoiceDialog


async def test_with_nothing_running_q_leaves_and_lets_the_controller_go(
    started: Started,
) -> None:
    async with started(scenes.idle(), wait=False) as (pilot, app, cluster):
        await until(pilot, lambda: app.editor.snapshot)
        await pilot.press("q")
        await until(pilot, lambda: not app.is_running)
    assert cluster.called("shutdown") == [True]


@pytest.mark.parametrize(
    ("keys", "left", "shutdowns"),
    [
        (["enter"], True, []),
        (["l"], True, []),
        (["s"], True, [False]),
        (["down", "enter"], True, [False]),
        (["c"], False, []),
        (["escape"], False, []),
    ],
)
async def test_leaving_a_running_cluster_asks(
    started: Started, keys: list[str], left: bool, shutdowns: list[bool]
) -> None:
    async with started(scenes.homelab_serving()) as (pilot, app, cluster):
        await pilot.press("q")
        await dialog(pilot)
        await pilot.press(*keys)
        await until(pilot, lambda: not isinstance(app._screen_stack[-1], ChoiceDialog))
        if left:
            await until(pilot, lambda: not app.is_running)
        assert app.is_running is not left
    assert cluster.called("shutdown") == shutdowns


async def test_a_controller_that_is_gone_keeps_nobody(started: Started) -> None:
    cluster = ScriptedCluster(scenes.idle())
    cluster.errors["shutdown"] = ControllerError("It is gone")
    async with started(cluster, wait=False) as (pilot, app, _):
        await until(pilot, lambda: app.editor.snapshot)
        await pilot.press("q")
        await until(pilot, lambda: not app.is_running)


async def test_ctrl_c_ends_nothing(started: Started) -> None:
    async with started() as (pilot, app, _):
        await pilot.press("ctrl+c")
        await pilot.pause()
        assert app.is_running
        assert toasts(app) == ["Nothing is selected to copy; q quits"]
