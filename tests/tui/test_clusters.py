"""Going from one cluster to another, and knowing at which one is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from backends.errors import DllmError
from backends.state import ClusterBrief, ClusterSnapshot, ClusterState, ModelInfo, Speed
from tests.kit.console import Started
from tests.tui import scenes
from tests.tui.helpers import screen_text, settled, until
from tests.tui.scripted import ScriptedCluster
from tui.dialogs.dialog import ChoiceDialog
from tui.model.files import Remembered, recall, remember

SIZE = (120, 36)
BRIEFS = (
    ClusterBrief(name="default", state=ClusterState.SERVING, model="/m/demo.gguf"),
    ClusterBrief(name="second", state=ClusterState.SERVING, model="/m/glm.gguf"),
)


def at(name: str, snapshot: ClusterSnapshot) -> ClusterSnapshot:
    return replace(snapshot, cluster=name, clusters=BRIEFS)


HERE = at("default", scenes.demo_serving(scenes.DEMO_PLAN))


async def asked(pilot: Pilot[None], key: str = "N") -> None:
    await pilot.press(key)
    await until(pilot, lambda: isinstance(pilot.app.screen, ChoiceDialog))


async def gone_to_second(pilot: Pilot[None], cluster: ScriptedCluster) -> None:
    await asked(pilot)
    await pilot.press("down", "enter")
    await until(pilot, lambda: cluster.called("use") == ["second"])


async def test_another_cluster_is_chosen_by_name(
    started: Started, memory_file: Path
) -> None:
    async with started(HERE) as (pilot, app, cluster):
        assert "default ▸ " in screen_text(app), "the usual one is named beside another"
        assert "second" not in screen_text(app)
        await asked(pilot)
        for name in ("default", "second", "glm"):
            assert name in screen_text(app)
        await pilot.press("down", "enter")
        await until(pilot, lambda: cluster.called("use") == ["second"])
        assert app.editor.plan is None
        cluster.push(HERE)
        await settled(pilot)
        assert app.editor.plan is None, "what the other cluster said late is not shown"
        cluster.push(at("second", scenes.homelab_serving()))
        await until(pilot, lambda: app.editor.plan == scenes.HOMELAB_PLAN)
        await settled(pilot)
        assert "second ▸ " in screen_text(app)
    plans = {"default": scenes.DEMO_PLAN, "second": scenes.HOMELAB_PLAN}
    assert recall(memory_file).plans == plans, "each has its own"


async def test_another_cluster_takes_up_its_remembered_plan(
    started: Started, memory_file: Path
) -> None:
    remember(memory_file, Remembered(plans={"second": scenes.HOMELAB_PLAN}), "second")
    async with started(HERE) as (pilot, app, cluster):
        await gone_to_second(pilot, cluster)
        idle = replace(scenes.homelab_serving(), state=ClusterState.IDLE, plan=None)
        cluster.push(at("second", idle))
        await until(pilot, lambda: app.editor.plan == scenes.HOMELAB_PLAN)


async def test_staying_and_quitting_end_nothing_elsewhere(started: Started) -> None:
    async with started(HERE) as (pilot, app, cluster):
        plan = app.editor.plan
        for keys in (("enter",), ("escape",), ("1",)):
            await asked(pilot)
            await pilot.press(*keys)
            await settled(pilot)
        assert cluster.called("use") == []
        assert app.editor.plan == plan
        assert cluster.streams == 1
        await asked(pilot, "q")
        await pilot.press("s")
        await until(pilot, lambda: cluster.called("stop"))
        assert cluster.called("shutdown") == []


async def test_a_launch_says_what_it_replaces(started: Started) -> None:
    """Somebody else's newer goal is not cut off unseen."""
    running = replace(scenes.homelab_serving(), generation=7, speed=Speed())
    async with started(running) as (pilot, _, cluster):
        await pilot.press("left", "l")
        await until(pilot, lambda: cluster.called("replaces"))
        assert cluster.called("replaces") == [7]


async def test_another_cluster_ends_a_freeze_and_a_loss(started: Started) -> None:
    async with started(HERE) as (pilot, app, cluster):
        await pilot.press("space")
        await until(pilot, lambda: "frozen" in screen_text(app))
        cluster.lose(DllmError("It is gone"))
        await until(pilot, lambda: not app._home.status_line.connected)
        await gone_to_second(pilot, cluster)
        cluster.push(at("second", scenes.homelab_serving()))
        await until(pilot, lambda: app._home.shown is cluster.now)
        assert "frozen" not in screen_text(app)
        assert app.editor.plan == scenes.HOMELAB_PLAN
        assert app._home.status_line.connected


async def test_a_model_chosen_for_one_cluster_is_not_put_into_the_editor_of_another(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = ScriptedCluster(HERE)
    read, inspect = asyncio.Event(), cluster.inspect

    async def slow(path: str) -> ModelInfo:
        await read.wait()
        return await inspect(path)

    async with started(cluster) as (pilot, app, _):
        monkeypatch.setattr(cluster, "inspect", slow)
        app.use_model(scenes.GLM.path)
        await pilot.pause()
        app.show_cluster("second")
        read.set()
        await until(pilot, lambda: cluster.called("propose"))
        await pilot.pause()
        assert app.editor.plan is None
