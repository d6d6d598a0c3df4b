"""Nothing the user did gets lost: quick keys, late snapshots, other consoles."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from itertools import groupby

import pytest
from msgspec.structs import replace
from textual import events
from textual.pilot import Pilot

from backends.errors import ModelError
from backends.split.layout import counts, with_counts
from backends.state import ClusterSnapshot, ModelInfo, PeerState
from tests.kit.console import Started
from tests.tui import peer_scenes as people
from tests.tui import scenes
from tests.tui.flowing import layers
from tests.tui.helpers import settled, toasts, until
from tests.tui.scripted import ScriptedCluster
from tui.app.app import DllmApp
from tui.dialogs.dialog import ChoiceDialog
from tui.screens.cluster.split_bar import SplitBar

SIZE = (120, 36)
KEY_GAP_S = 0.001


def numbered(snapshot: ClusterSnapshot, seq: int) -> ClusterSnapshot:
    return replace(snapshot, seq=seq)


async def burst(app: DllmApp, keys: Sequence[str]) -> None:
    """Keys as a terminal sends them, whatever the app has to do meanwhile."""
    driver = app._driver
    assert driver is not None
    for key in keys:
        character = key if len(key) == 1 else None
        driver.process_message(events.Key(key, character))
        await asyncio.sleep(KEY_GAP_S)


async def quiet(pilot: Pilot[None], app: DllmApp) -> None:
    await pilot.pause()
    await until(pilot, lambda: not app._typed and app._key_at_work is None)
    await until(pilot, lambda: app.query_one(SplitBar).message_queue_size == 0)
    await pilot.pause()


async def test_bursts_of_keys_are_exact_whatever_else_comes(started: Started) -> None:
    """120 keys at 1 ms, as a slow line over SSH delivers them."""
    chosen = random.Random(7).choices(("left", "right"), k=120)
    expected = [26]
    for key in chosen:
        place = expected[-1] + (1 if key == "right" else -1)
        expected.append(min(max(place, 0), 34))
    async with started(scenes.homelab_serving()) as (pilot, app, cluster):
        await burst(app, ["right"] * 4 + ["u"] * 3 + ["U"] * 2 + ["left"] + ["u"] * 4)
        await quiet(pilot, app)
        assert layers(app) == (26, 8, 14)
        assert not app.editor.can_undo
        await burst(app, chosen)
        await quiet(pilot, app)
        assert layers(app)[0] == expected[-1]
        steps = [place for place, _ in groupby(expected)]
        for place in reversed(steps[:-1]):
            app._home.split.bar.action_undo()
            assert layers(app)[0] == place
        await quiet(pilot, app)
        assert app.editor.plan is not None
        assert counts(app.editor.plan.split) == (26, 8, 14)
        for seq in range(8, 16):
            await burst(app, ["left"] * 3)
            cluster.push(numbered(scenes.homelab_serving(), seq))
        await quiet(pilot, app)
        assert layers(app)[0] == 2


# --- snapshots out of order -------------------------------------------------


async def test_a_late_snapshot_takes_nothing_back_after_a_launch(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller's answer to the launch is newer than what comes after it."""
    before = scenes.demo_serving()
    async with started(before) as (pilot, app, cluster):

        async def launch(plan: object, *, replaces: int | None = None) -> object:
            cluster.calls.append(("launch", plan))
            return numbered(scenes.demo_starting(plan), 20)  # type: ignore[arg-type]

        monkeypatch.setattr(cluster, "launch", launch)
        await pilot.press("left", "l")
        await until(pilot, lambda: cluster.called("launch"))
        for seq in (17, 18):
            cluster.push(numbered(before, seq))
            await until(pilot, lambda: all(one.empty() for one in cluster._queues))
            assert layers(app) == (0, 5, 8)
        assert app.editor.snapshot is not None
        assert app.editor.snapshot.seq == 20
        cluster.push(numbered(scenes.demo_serving(app.editor.plan), 21))  # type: ignore[arg-type]
        await until(pilot, lambda: app.editor.snapshot.seq == 21)  # type: ignore[union-attr]
        assert layers(app) == (0, 5, 8)


# --- headers ----------------------------------------------------------------


async def test_a_slow_header_is_read_once_though_snapshots_come(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = replace(scenes.homelab_serving(), model=None)
    cluster = ScriptedCluster(bare)
    may = asyncio.Event()
    asked: list[str] = []

    async def inspect(path: str) -> ModelInfo:
        asked.append(path)
        await may.wait()
        return scenes.GLM

    monkeypatch.setattr(cluster, "inspect", inspect)
    async with started(cluster, wait=False) as (pilot, app, _):
        await until(pilot, lambda: asked)
        cluster.push(numbered(bare, 8))
        await until(pilot, lambda: app.editor.snapshot.seq == 8)  # type: ignore[union-attr]
        may.set()
        await settled(pilot)
        assert asked == [scenes.GLM.path]
        assert app.editor.model == scenes.GLM


async def test_a_header_that_cannot_be_read_is_said_once(started: Started) -> None:
    bare = replace(scenes.homelab_serving(), model=None)
    cluster = ScriptedCluster(bare)
    cluster.errors["inspect"] = ModelError("It cannot be read")
    async with started(cluster, wait=False) as (pilot, app, _):
        await until(pilot, lambda: toasts(app))
        cluster.push(numbered(bare, 8))
        await until(pilot, lambda: app.editor.snapshot.seq == 8)  # type: ignore[union-attr]
        await pilot.pause()
        assert toasts(app) == ["It cannot be read"]


# --- drags ------------------------------------------------------------------


async def test_a_question_does_not_end_a_drag(started: Started) -> None:
    plans = {scenes.GLM.path: people.SPREAD_PLAN}
    cluster = ScriptedCluster(people.here(people.ADA, people.BOB), plans=plans)
    async with started(cluster, initial_model=scenes.GLM.path) as (pilot, app, _):
        bar = app.query_one(SplitBar)
        assert await pilot.mouse_down(bar, offset=(bar.handle_x, 1))
        await pilot.hover(bar, offset=(bar.handle_x + 8, 1))
        moved = layers(app)
        asking = replace(people.BOB, state=PeerState.ASKING, question=people.PASSWORD)
        cluster.push(numbered(people.here(people.ADA, asking), 9))
        await until(pilot, lambda: app.editor.snapshot.seq == 9)  # type: ignore[union-attr]
        await pilot.pause()
        assert bar.dragging
        assert layers(app) == moved
        assert any("needs your input" in text for text in toasts(app))


def dealt(seq: int, *layers: int) -> ClusterSnapshot:
    split = with_counts(scenes.HOMELAB_PLAN.split, layers)
    plan = replace(scenes.HOMELAB_PLAN, split=split)
    return replace(scenes.homelab_serving(), plan=plan, seq=seq)


async def test_a_plan_from_elsewhere_ends_a_drag_but_no_question(
    started: Started,
) -> None:
    async with started(scenes.homelab_serving()) as (pilot, app, cluster):
        bar = app.query_one(SplitBar)
        assert await pilot.mouse_down(bar, offset=(bar.handle_x, 1))
        await pilot.hover(bar, offset=(bar.handle_x - 9, 1))
        later = dealt(9, 20, 14, 14)
        cluster.push(later)
        await until(pilot, lambda: app.editor.snapshot == later)
        assert not bar.dragging
        assert layers(app) == (20, 14, 14)
        assert app.mouse_captured is None
        # The plan that is shown when one is asked is launched.
        await pilot.press("left", "l")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
        last = dealt(10, 26, 8, 14)
        cluster.push(last)
        await until(pilot, lambda: app.editor.snapshot == last)
        await pilot.press("y")
        await until(pilot, lambda: cluster.called("launch"))
        assert counts(cluster.called("launch")[0].split) == (19, 15, 14)
