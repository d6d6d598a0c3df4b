"""Chat, logs and models in the whole console."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.widgets import DataTable

from tests.tui import scenes
from tests.tui.helpers import screen_text, settled, until
from tests.tui.scripted import ScriptedCluster
from tui.screens.cluster.chat_pane import Composer
from tui.screens.models.picker import ModelPicker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from textual.pilot import Pilot

    from tests.kit.console import Started
    from tui.app.app import DllmApp

    MakeApp = Callable[..., DllmApp]


async def ask(app: DllmApp, pilot: Pilot[None], question: str) -> None:
    await settled(pilot)
    app._home.go_to("chat")
    await until(pilot, lambda: isinstance(app.focused, Composer))
    await pilot.press(*question, "enter")


async def test_a_question_is_answered_and_kept(
    make_app: MakeApp, tmp_path: Path
) -> None:
    cluster = ScriptedCluster(scenes.homelab_serving(), chats_folder=tmp_path)
    app = make_app(cluster)
    async with app.run_test(size=(120, 36)) as pilot:
        await ask(app, pilot, "Why?")
        await until(pilot, lambda: "first token 0.88 s" in screen_text(app))
        await until(pilot, lambda: "Air scatters short" in screen_text(app))
        assert "studio" in screen_text(app).partition("first token")[2]
    cluster = ScriptedCluster(scenes.homelab_serving(), chats_folder=tmp_path)
    again = make_app(cluster)
    async with again.run_test(size=(120, 36)) as pilot:
        await settled(pilot)
        await until(pilot, lambda: "Air scatters short" in screen_text(again))
        assert "Why?" in screen_text(again)


async def test_escape_stops_the_generation(started: Started) -> None:
    cluster = ScriptedCluster(scenes.homelab_serving())
    cluster.gate.clear()
    async with started(cluster, wait=False) as (pilot, app, _):
        await ask(app, pilot, "Why?")
        await until(pilot, lambda: "waiting for the first token" in screen_text(app))
        await pilot.press("escape")
        await until(pilot, lambda: "stopped by you" in screen_text(app))
        assert not app._home.chat.answering


async def test_a_picked_model_is_proposed(started: Started) -> None:
    async with started(scenes.idle(), wait=False) as (pilot, app, cluster):
        await until(pilot, lambda: app.is_running and app._home.is_mounted)
        await pilot.press("m")
        await until(pilot, lambda: isinstance(app.screen, ModelPicker))
        table = app.screen.query_one(DataTable)
        await until(pilot, lambda: table.row_count == 3)
        await pilot.press(*"glm", "enter")
        await until(pilot, lambda: cluster.called("propose") == [scenes.GLM.path])


async def test_a_model_chosen_on_its_screen_goes_to_the_split(started: Started) -> None:
    async with started(scenes.idle(), wait=False) as (pilot, app, cluster):
        await until(pilot, lambda: app.is_running and app._home.is_mounted)
        await pilot.press("f6")
        await until(pilot, lambda: "3 models" in screen_text(app))
        await pilot.press("down", "enter")
        await until(pilot, lambda: cluster.called("propose") == [scenes.GLM.path])
        assert app.current_mode == "cluster"
