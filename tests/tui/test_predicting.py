"""The predicted speed follows the split; a device with little room left is told."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from backends.split.cost import band_text, forecast, workload
from backends.split.layout import with_counts
from backends.state import (
    Lab,
    LastRun,
    Plan,
    SpeedSource,
)
from tests.kit.console import Started
from tests.tui import scenes
from tests.tui.helpers import screen_text, text_of, until
from tests.tui.pictures import NORMAL, SMALL, Snap, seen
from tests.tui.scripted import homelab
from tests.unit.state.scene import busy_scene
from tui.app.app import DllmApp
from tui.flows import background_queries
from tui.model.edit import Edit, Prospect
from tui.model.editor import PlanEditor
from tui.model.names import device_label
from tui.model.plan_words import faster_text, speed_texts
from tui.widgets.sources import OVER, TIGHT

GIB = 1 << 30


def edit_of(app: DllmApp) -> Edit:
    assert app.editor.edit is not None
    return app.editor.edit


async def predicts(pilot: Pilot[None], app: DllmApp) -> None:
    await until(pilot, lambda: app.editor.edit and app.editor.edit.forecast)


def told_of(plan: Plan) -> str:
    told = forecast(scenes.GLM, plan, scenes.pace(plan), workload(plan))
    return band_text(told)


async def test_it_follows_a_drag_without_asking_and_answers(started: Started) -> None:
    async with started(homelab()) as (pilot, app, cluster):
        await predicts(pilot, app)
        bar, standing = app._home.split.bar, app._home.split.standing
        seen = {text_of(standing).splitlines()[0]}
        await pilot.mouse_down(bar, offset=(bar.handle_x, 1))
        for x in (10, 14, 18):
            await pilot.hover(bar, offset=(x, 1))
            assert bar.dragging
            shown = text_of(standing).splitlines()[0]
            assert told_of(edit_of(app).plan) in shown
            seen.add(shown)
        assert len(seen) == 4
        drawn = bar.edit
        bar.drag_to(24)
        assert bar.edit is drawn, "bar and figures follow in one paint"
        await pilot.mouse_up(bar, offset=(18, 1))
        assert len(cluster.called("speeds")) == 1
        # A finished answer is learnt from.
        before = edit_of(app).forecast
        cluster.pace = lambda plan: replace(scenes.pace(plan), noise=0.5)
        now = cluster.now
        assert now is not None
        speed = replace(now.speed, tok_per_s=None, last_tok_per_s=33.3)
        cluster.push(replace(now, seq=now.seq + 1, speed=speed))
        await until(pilot, lambda: edit_of(app).forecast != before)
        assert len(cluster.called("speeds")) == 2


async def test_before_a_launch_a_faster_plan_is_sought_once(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_queries, "SETTLE_S", 0.05)
    async with started(homelab()) as (pilot, app, cluster):
        await predicts(pilot, app)
        await pilot.pause()
        split = app._home.split
        assert not cluster.called("best"), "what runs is not compared"
        split.bar.focus()
        for _ in range(3):
            await pilot.press("right")
            await until(pilot, lambda: "a best ~" in str(split.border_subtitle))
        assert len(cluster.called("best")) == 1
        await pilot.press("u", "u", "u")
        await until(pilot, lambda: "best" not in str(split.border_subtitle))


def test_under_a_steady_load_each_run_that_is_kept_is_learnt_from() -> None:
    editor, scene = PlanEditor(), scenes.homelab_serving()
    assert scene.speed.tok_per_s
    grounds = []
    for seq, (at, last_tok_per_s) in enumerate([(1.0, 9.0), (1.0, 8.0), (2.0, 7.0)]):
        speed = replace(scene.speed, last_tok_per_s=last_tok_per_s)
        run = LastRun(at=at, parts=())
        editor.take(replace(scene, seq=seq, speed=speed, last_run=run))
        grounds.append(editor.speeds_ground)
    assert grounds[0] == grounds[1] != grounds[2]


async def test_without_speeds_nothing_is_predicted(started: Started) -> None:
    async with started() as (pilot, app, cluster):
        await until(pilot, lambda: cluster.called("speeds"))
        await pilot.pause()
        assert edit_of(app).forecast is None
        assert "predicted" not in text_of(app._home.split.standing)
        assert not list(app.event_log)


async def test_layers_says_it_too(started: Started) -> None:
    async with started(homelab(), size=(80, 24)) as (pilot, app, _):
        await predicts(pilot, app)
        await pilot.press("2")
        plan = edit_of(app).plan
        await until(pilot, lambda: told_of(plan) in screen_text(app))
        await pilot.press("g", "C")
        await until(pilot, lambda: edit_of(app).plan != plan)
        await until(pilot, lambda: told_of(edit_of(app).plan) in screen_text(app))


async def test_it_stands_beside_the_verdict_where_rows_are_few(
    started: Started,
) -> None:
    scene = busy_scene(0, tuple(f"worker{n}" for n in range(1, 9)))
    async with started(homelab(scene), size=(80, 24)) as (pilot, app, _):
        await predicts(pilot, app)
        await pilot.pause()
        assert app._home.split.standing.size.height == 1
        said = text_of(app._home.split.standing)
        told = edit_of(app).forecast
        assert told is not None
        assert said.endswith(band_text(told))
        assert said.startswith("does not fit: worker1")


# --- in words ------------------------------------------------------------------------


def an_edit(plan: Plan = scenes.HOMELAB_PLAN) -> Edit:
    return Edit(
        plan=plan,
        model=scenes.GLM,
        devices=(scenes.STUDIO, scenes.MINI, scenes.BOX),
        marks=(),
        prospect=Prospect(scenes.GLM, plan, scenes.pace(plan)),
    )


def test_the_texts_get_shorter_and_end_with_the_band() -> None:
    edit = an_edit()
    texts = speed_texts(edit, None)
    assert edit.forecast is not None
    assert edit.forecast.source is SpeedSource.PRIOR
    assert sorted(texts, key=len, reverse=True) == list(texts)
    assert texts[0].endswith("from usual speeds")
    assert "2 trips" in texts[0]
    assert "first token ~0.51 s (" in texts[2]
    assert texts[3].endswith("first token ~0.51 s")
    assert texts[-1] == band_text(edit.forecast)
    assert texts[-1].startswith("~")


def test_the_last_answer_stands_beside_what_was_predicted() -> None:
    snapshot, edit = scenes.homelab_serving(), an_edit()
    told = edit.forecast
    assert told is not None
    rate = told.tok_per_s * 1.25
    now = replace(snapshot, speed=replace(snapshot.speed, last_tok_per_s=rate))
    assert f"measured {rate:.1f} tok/s (+25 %)" in speed_texts(edit, now)[0]
    moved = with_counts(edit.split, (25, 9, 14))
    other = replace(edit, plan=replace(edit.plan, split=moved))
    assert "measured" not in speed_texts(other, now)[0]
    slow = [replace(link, lab=Lab(latency_ms=5)) for link in now.links]
    behind_lab = speed_texts(edit, replace(now, links=tuple(slow)))[0]
    assert "measured" not in behind_lab
    assert f" at depth {told.depth} without the lab" in behind_lab


def test_the_last_answer_is_compared_at_its_own_depth() -> None:
    snapshot, edit = scenes.homelab_serving(), an_edit()
    assert edit.prospect is not None
    deep = edit.prospect.of(edit.plan, 3000).tok_per_s
    assert deep < edit.prospect.of(edit.plan).tok_per_s * 0.99
    speed = replace(snapshot.speed, last_tok_per_s=deep, last_depth=3000)
    text = speed_texts(edit, replace(snapshot, speed=speed))[0]
    assert " at depth 512 · " in text
    assert f"measured {deep:.1f} tok/s at 3000 (+0 %)" in text


def test_a_faster_plan_is_told_before_the_launch() -> None:
    edit = an_edit()
    now, fastest, *others = scenes.bests(edit.plan)
    assert fastest.forecast is not None
    rate = fastest.forecast.tok_per_s
    # It is the same as one device alone.
    solo = f"solo on {device_label('studio/MTL0')}"
    told = f"best ~{rate:.1f} tok/s, {solo}"
    assert faster_text(edit, (now, fastest, *others)) == told
    quick = replace(fastest.forecast, tok_per_s=rate * 1.2)
    both = replace(fastest, forecast=quick, counts=(24, 24, 0))
    told = f"best ~{rate * 1.2:.1f} tok/s · {solo} ~{rate:.1f} tok/s"
    assert faster_text(edit, (now, both, *others)) == told
    alone = with_counts(edit.split, (48, 0, 0))
    plan = replace(edit.plan, split=alone)
    assert not faster_text(replace(edit, plan=plan), (now, fastest, *others))


@pytest.mark.parametrize(
    ("left_part", "sign"), [(0.2, ""), (0.01, TIGHT), (-0.01, OVER)]
)
def test_a_device_with_next_to_nothing_left_is_tight(
    left_part: float, sign: str
) -> None:
    edit = an_edit()
    load = edit.loads[1]
    mini = replace(scenes.MINI, free_bytes=round(load.total_bytes / (1 - left_part)))
    found = replace(edit, devices=(scenes.STUDIO, mini, scenes.BOX))
    assert (load.device in found.tight) is (sign == TIGHT)
    assert (load.device in found.misfits) is (sign == OVER)


# --- looks ---------------------------------------------------------------------------


async def test_the_split_with_its_prediction(
    started: Started, snap_compare: Snap
) -> None:
    """One device is tight, another has too much."""
    cluster = homelab()
    now = cluster.now
    assert now is not None
    mini = replace(scenes.MINI, free_bytes=round(4.6 * GIB))
    box = replace(scenes.BOX, free_bytes=5 * GIB)
    rooms = {"mini": (mini,), "box": (box,)}
    peers = (replace(p, devices=rooms.get(p.name, p.devices)) for p in now.peers)
    cluster.now = replace(now, peers=tuple(peers))

    async with started(cluster) as (pilot, app, _):
        await predicts(pilot, app)
        app._home.split.bar.focus()
        await pilot.press("left", "left", "left", "left")
        await seen(snap_compare, pilot, NORMAL, SMALL)
