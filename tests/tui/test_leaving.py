"""Leaving the console: what is asked, and what goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from backends.errors import ControllerError
from tests.tui import scenes
from tests.tui.helpers import settled, toasts, until
from tests.tui.scripted import ScriptedCluster
from tui.dialogs.ask import ChoiceDialog

if TYPE_CHECKING:
    from collections.abc import Callable

    from tui.app.app import DllmApp

    MakeApp = Callable[..., DllmApp]
from tests.tui.flowing import SIZE, dialog


async def test_with_nothing_running_q_leaves_and_lets_the_controller_go(
    make_app: MakeApp,
) -> None:
    cluster = ScriptedCluster(scenes.idle())
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:
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
    make_app: MakeApp, keys: list[str], left: bool, shutdowns: list[bool]
) -> None:
    cluster = ScriptedCluster(scenes.homelab_serving())
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await pilot.press("q")
        await dialog(pilot)
        await pilot.press(*keys)
        await until(pilot, lambda: not isinstance(app._screen_stack[-1], ChoiceDialog))
        if left:
            await until(pilot, lambda: not app.is_running)
        assert app.is_running is not left
    assert cluster.called("shutdown") == shutdowns


async def test_a_controller_that_is_gone_keeps_nobody(make_app: MakeApp) -> None:
    cluster = ScriptedCluster(scenes.idle())
    cluster.errors["shutdown"] = ControllerError("It is gone")
    app = make_app(cluster)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: app.editor.snapshot)
        await pilot.press("q")
        await until(pilot, lambda: not app.is_running)


async def test_ctrl_c_ends_nothing(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await pilot.press("ctrl+c")
        await pilot.pause()
        assert app.is_running
        assert toasts(app) == ["Nothing is selected to copy; q quits"]
