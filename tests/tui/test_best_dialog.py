"""The best plans as a list: what each gains and costs, and the bar that shows it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace
from textual.app import App
from textual.pilot import Pilot

from backends.errors import PlanError
from backends.server_settings import BY_TENSOR
from backends.split.layout import counts
from backends.split.moved_experts import NAME as MOVED_NAME
from backends.split.tensor_parallel import NAME
from backends.state import (
    NGRAM_DRAFT,
    Alternative,
    LayerRange,
    Objective,
    Plan,
    ServerSettings,
)
from tests.kit.console import Started
from tests.tui import scenes
from tests.tui.helpers import in_front, screen_text, text_of, until
from tests.tui.scripted import ScriptedCluster, homelab
from tests.tui.snapshot_sizes import Look
from tui.app.app import DllmApp
from tui.model.best_choices import AS_IT_IS, candidate, change, choices_of
from tui.screens.cluster.best_dialog import BestDialog, BestRows

PLAN = scenes.HOMELAB_PLAN


@asynccontextmanager
async def predicted(
    started: Started, cluster: ScriptedCluster
) -> AsyncIterator[tuple[Pilot[None], DllmApp]]:
    async with started(cluster) as (pilot, app, _):
        await until(pilot, lambda: app.editor.edit and app.editor.edit.forecast)
        yield pilot, app


async def opened(pilot: Pilot[None], app: DllmApp) -> BestRows:
    app._home.split.bar.focus()
    await pilot.press("a")
    return (await in_front(pilot, BestDialog)).query_one(BestRows)


def drawn(app: DllmApp) -> tuple[int, ...]:
    """The layers that the bar shows."""
    edit = app._home.split.bar.edit
    assert edit is not None
    return counts(edit.split)


async def whole(pilot: Pilot[None], app: App[None]) -> None:
    await until(pilot, lambda: "predicted for one client" in screen_text(app))


async def closed(pilot: Pilot[None], app: DllmApp) -> None:
    await until(pilot, lambda: not isinstance(app.screen, BestDialog))


async def test_gains_and_costs_stand_beside_each(started: Started) -> None:
    cluster = homelab()
    cluster.searching.clear()
    async with predicted(started, cluster) as (pilot, app):
        rows = await opened(pilot, app)
        await until(pilot, lambda: "looking for the best plans" in screen_text(app))
        assert [choice.name for choice in rows.rows] == [AS_IT_IS]
        cluster.searching.set()
        await whole(pilot, app)
        assert len(rows.rows) == 9
        assert cluster.called("best") == [PLAN], "one request answers for all aims"
        assert "and a prompt of 512 tokens" in screen_text(app)
        now, best = rows.rows[0].forecast, rows.rows[1].forecast
        assert now
        assert best
        part = best.tok_per_s / now.tok_per_s - 1
        shown = screen_text(app).splitlines()
        line = next(line for line in shown if "most tok/s" in line)
        assert "most tok/s, least network" in line
        assert f"~{best.tok_per_s:.1f}  {part * 100:+.0f} %" in line
        assert "−100 %" in line, "nothing crosses the network"
        title = next(line for line in shown if "first token" in line and "plan" in line)
        row = next(line for line in shown if AS_IT_IS in line)
        ends = [found.end() for found in re.finditer(r"~\S+( [A-Za-z]+)?", row)]
        titles = ("tok/s", "first token", "per token")
        assert [title.index(name) + len(name) for name in titles] == ends[:3]
        names = [choice.name for choice in rows.rows if choice.plan is None]
        assert names == [
            "solo on mini/MTL0",
            "with 2.5 GbE links",
            "solo on box/CUDA0",
            NAME,
        ]
        await pilot.press(*["down"] * 20, "enter")
        await pilot.pause()
        assert isinstance(app.screen, BestDialog), "what is not there is not taken"
        assert drawn(app) == (26, 8, 14)
        assert "not worth it: 95 trips a token" in screen_text(app)
        await pilot.press("up")
        await until(pilot, lambda: "needs mini as the head" in screen_text(app))


async def test_the_cursor_previews_and_enter_takes(started: Started) -> None:
    cluster = homelab()
    async with predicted(started, cluster) as (pilot, app):
        rows = await opened(pilot, app)
        await whole(pilot, app)
        assert drawn(app) == (26, 8, 14)
        await pilot.press("down")
        await until(pilot, lambda: drawn(app) == (48, 0, 0))
        standing = text_of(app._home.split.standing)
        assert rows.chosen.forecast is not None
        assert f"~{rows.chosen.forecast.tok_per_s:.1f} tok/s" in standing
        await pilot.press("down")
        await until(pilot, lambda: drawn(app) == (40, 0, 8))
        assert app.editor.split == PLAN.split, "what is shown is not taken yet"
        await pilot.press("escape")
        await until(pilot, lambda: drawn(app) == (26, 8, 14))
        assert not app.editor.can_undo
        await opened(pilot, app)
        await whole(pilot, app)
        await pilot.press("down", "down", "enter")
        await closed(pilot, app)
        assert app.editor.split is not None
        assert counts(app.editor.split) == (40, 0, 8)
        assert not cluster.called("launch")
        await pilot.press("u")
        await until(pilot, lambda: app.editor.split == PLAN.split)
        # A plan of another console ends the preview.
        await opened(pilot, app)
        await whole(pilot, app)
        await pilot.press("down")
        await until(pilot, lambda: drawn(app) == (48, 0, 0))
        now = cluster.now
        assert now is not None
        other = replace(PLAN, ctx_size=4096)
        cluster.push(replace(now, seq=now.seq + 1, plan=other, generation=9))
        await until(pilot, lambda: app.editor.plan == other)
        await until(pilot, lambda: drawn(app) == (26, 8, 14))


async def test_experts_and_parts_of_tensors_are_taken(started: Started) -> None:
    """The bar predicts with them; undo brings the plan before back."""
    runs = (LayerRange("box/CUDA0", 0, 3),)
    ids = tuple(share.device for share in PLAN.split.shares)
    now, best, *_ = scenes.bests(PLAN)
    moved = replace(now, name=MOVED_NAME, experts=runs, why="experts of 0–3")
    parts = replace(best, counts=(16, 16, 16), by_tensor=True, devices=ids, name=NAME)
    cluster = homelab()
    async with predicted(started, cluster) as (pilot, app):
        plain = app.editor.edit
        cluster.bests = lambda _: (now, moved)
        rows = await opened(pilot, app)
        await whole(pilot, app)
        await pilot.press("down")
        await until(pilot, lambda: rows.chosen.name == MOVED_NAME)
        await until(pilot, lambda: app.editor.edit is not plain)
        edit = app.editor.edit
        assert plain
        assert edit
        assert edit.forecast
        assert edit.forecast != plain.forecast, "it is predicted with its experts"
        await pilot.press("enter")
        await closed(pilot, app)
        assert app.editor.plan is not None
        assert app.editor.plan.experts == runs
        assert app.editor.split == PLAN.split
        await pilot.press("u")
        await until(pilot, lambda: app.editor.plan == PLAN)
        cluster.bests = lambda _: (now, parts)
        asked = len(cluster.called("speeds"))
        await opened(pilot, app)
        await whole(pilot, app)
        await pilot.press("down")
        await until(pilot, lambda: drawn(app) == (16, 16, 16))
        edit = app._home.split.bar.edit
        assert edit is not None
        assert edit.forecast is not None
        assert edit.forecast.trips_per_token > 90
        await pilot.press("enter")
        await until(pilot, lambda: app.editor.split != PLAN.split)
        plan = app.editor.plan
        assert plan is not None
        assert plan.extra_args == BY_TENSOR
        assert plan.asked is not None
        assert plan.asked.extra_args == BY_TENSOR
        assert len(cluster.called("speeds")) == asked, "no other speeds are asked for"


async def test_slots_drafts_and_errors_are_told(started: Started) -> None:
    server = ServerSettings(slots=4, draft=NGRAM_DRAFT)
    serving = replace(scenes.homelab_serving(), plan=replace(PLAN, server=server))
    cluster = homelab(serving)
    async with predicted(started, cluster) as (pilot, app):
        rows = await opened(pilot, app)
        await whole(pilot, app)
        assert "4 clients" in screen_text(app)
        together = rows.rows[1].all_slots
        assert together is not None
        assert f"~{together:.1f}" in screen_text(app)
        assert "512 tokens, without the draft" in screen_text(app)
        await pilot.press("escape")
        await closed(pilot, app)

        def none(plan: Plan) -> tuple[Alternative, ...]:
            raise PlanError("No split of these devices fits", "Add a peer.")

        cluster.bests = none
        rows = await opened(pilot, app)
        says = "No split of these devices fits. Add a peer."
        await until(pilot, lambda: says in screen_text(app))
        assert len(rows.rows) == 1


# --- choices -------------------------------------------------------------------------


def test_a_plan_found_twice_is_one_row_with_both_names() -> None:
    ids = ("studio/MTL0", "mini/MTL0", "box/CUDA0")
    now = Alternative(
        name=AS_IT_IS, devices=ids, counts=(26, 8, 14), head="studio", ctx_size=8192
    )
    same = replace(now, name="x", objectives=(Objective.DECODE,))
    (only,) = choices_of(PLAN, (now, same))
    assert only.name == "as it is, most tok/s"
    fewer = replace(
        same, counts=(48,), devices=ids[:1], objectives=tuple(Objective)[:2]
    )
    other = replace(fewer, name="2 devices, decode", counts=(40, 8), objectives=())
    solo = replace(fewer, name="solo", devices=ids[:1], objectives=())
    both = choices_of(PLAN, (now, fewer, replace(other, devices=ids[:2]), solo))
    assert [one.name for one in both] == [
        AS_IT_IS,
        "most tok/s, first token",
        "2 devices, decode",
    ]


def test_a_candidate_keeps_every_device_and_the_heads_cpu_first() -> None:
    ids = ("studio/CPU", "mini/MTL0", "box/CUDA0")
    split = replace(
        PLAN.split,
        shares=tuple(
            replace(share, device=name)
            for share, name in zip(PLAN.split.shares, ids, strict=True)
        ),
    )
    plan = replace(PLAN, split=split)
    solo = Alternative(
        name="solo",
        devices=("box/CUDA0",),
        counts=(48,),
        head="studio",
        ctx_size=8192,
    )
    taken = candidate(plan, solo)
    assert taken is not None
    assert [(s.device, s.layers) for s in taken.split.shares] == [
        ("studio/CPU", 0),
        ("box/CUDA0", 48),
        ("mini/MTL0", 0),
    ]
    assert taken.asked == plan.asked
    longer = candidate(plan, replace(solo, ctx_size=65536))
    assert longer is not None
    assert longer.asked is not None
    assert (longer.ctx_size, longer.asked.ctx_size) == (65536, 65536)


@pytest.mark.parametrize(
    "other",
    [
        {"imagined": True},
        {"head": "mini"},
        {"counts": ()},
        {"devices": ("x/CPU",)},
    ],
)
def test_what_needs_other_machines_is_no_candidate(other: dict[str, object]) -> None:
    one = Alternative(
        name="x", devices=("box/CUDA0",), counts=(48,), head="studio", ctx_size=8192
    )
    assert candidate(PLAN, one) is not None
    changes = {"devices": ()} | other if other == {"counts": ()} else other
    assert candidate(PLAN, replace(one, **changes)) is None


def test_a_difference_that_rounds_to_nothing_is_none() -> None:
    assert change(100.4, 100) is None
    assert change(5, 0) is None
    assert change(112, 100) == pytest.approx(0.12)


def test_the_list_of_plans(look: Look) -> None:
    async def pointed(pilot: Pilot[None]) -> None:
        app: Any = pilot.app
        await until(pilot, lambda: app.editor.edit and app.editor.edit.forecast)
        await opened(pilot, app)
        await whole(pilot, app)
        await pilot.press("down", "down")
        await pilot.pause()

    look(homelab(), run=pointed)
