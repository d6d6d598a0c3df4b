"""The best plans as a list: what each gains and costs, and the bar that shows it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from backends.errors import PlanError
from backends.server_settings import BY_TENSOR
from backends.split.by_tensor import NAME
from backends.split.layout import counts
from backends.split.moved_experts import NAME as MOVED_NAME
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
from tests.tui.helpers import screen_text, text_of, until
from tests.tui.looks import Look, Size
from tests.tui.scripted import ScriptedCluster
from tui.app.app import DllmApp
from tui.model.best_choices import AS_IT_IS, candidate, change, choices_of
from tui.screens.cluster.best_dialog import BestDialog, BestRows

PLAN = scenes.HOMELAB_PLAN


def homelab() -> ScriptedCluster:
    cluster = ScriptedCluster(scenes.homelab_serving())
    cluster.pace = scenes.pace
    return cluster


@asynccontextmanager
async def opened(
    started: Started, cluster: ScriptedCluster, size: tuple[int, int] = (120, 36)
) -> AsyncIterator[tuple[Pilot[None], DllmApp, BestRows]]:
    async with started(cluster, size=size) as (pilot, app, _):
        await until(pilot, lambda: app.editor.edit and app.editor.edit.forecast)
        app._home.split.bar.focus()
        await pilot.press("a")
        await until(pilot, lambda: isinstance(app.screen, BestDialog))
        yield pilot, app, app.screen.query_one(BestRows)


def drawn(app: DllmApp) -> tuple[int, ...]:
    """The layers that the bar shows."""
    edit = app._home.split.bar.edit
    assert edit is not None
    return counts(edit.split)


async def whole(pilot: Pilot[None], app: DllmApp) -> None:
    await until(pilot, lambda: "predicted for one client" in screen_text(app))


async def test_the_cursor_previews_and_escape_restores(started: Started) -> None:
    async with opened(started, homelab()) as (pilot, app, rows):
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


async def test_enter_takes_it_as_one_step(started: Started) -> None:
    async with opened(started, homelab()) as (pilot, app, _):
        await whole(pilot, app)
        await pilot.press("down", "down", "enter")
        await until(pilot, lambda: not isinstance(app.screen, BestDialog))
        assert app.editor.split is not None
        assert counts(app.editor.split) == (40, 0, 8)
        assert not app.cluster.called("launch")  # type: ignore[attr-defined]
        await pilot.press("u")
        await until(pilot, lambda: app.editor.split == PLAN.split)


async def test_gains_and_costs_stand_beside_each(started: Started) -> None:
    async with opened(started, homelab()) as (pilot, app, rows):
        await whole(pilot, app)
        now, best = rows.rows[0].forecast, rows.rows[1].forecast
        part = best.tok_per_s / now.tok_per_s - 1
        shown = screen_text(app).splitlines()
        line = next(line for line in shown if "most tok/s" in line)
        assert "most tok/s, least network" in line
        assert f"~{best.tok_per_s:.1f}  {part * 100:+.0f} %" in line
        assert "−100 %" in line, "nothing crosses the network"


async def test_experts_elsewhere_are_taken_with_their_layers(started: Started) -> None:
    """The bar predicts with them; undo brings the plan before back."""
    runs = (LayerRange("box/CUDA0", 0, 3),)

    def bests(plan: Plan) -> tuple[Alternative, ...]:
        now, *_ = scenes.bests(plan)
        moved = replace(now, name=MOVED_NAME, experts=runs, why="experts of 0–3")
        return now, moved

    cluster = homelab()
    cluster.bests = bests
    async with opened(started, cluster) as (pilot, app, rows):
        await whole(pilot, app)
        plain = app.editor.edit
        await pilot.press("down")
        await until(pilot, lambda: rows.chosen.name == MOVED_NAME)
        await until(pilot, lambda: app.editor.edit is not plain)
        edit = app.editor.edit
        assert plain
        assert edit
        assert edit.forecast
        assert edit.forecast != plain.forecast, "it is predicted with its experts"
        await pilot.press("enter")
        await until(pilot, lambda: not isinstance(app.screen, BestDialog))
        assert app.editor.plan is not None
        assert app.editor.plan.experts == runs
        assert app.editor.split == PLAN.split
        await pilot.press("u")
        await until(pilot, lambda: app.editor.plan == PLAN)


async def test_what_is_not_there_cannot_be_taken(started: Started) -> None:
    async with opened(started, homelab()) as (pilot, app, rows):
        await whole(pilot, app)
        names = [choice.name for choice in rows.rows if choice.plan is None]
        assert names == [
            "solo on mini/MTL0",
            "with 2.5 GbE links",
            "solo on box/CUDA0",
            NAME,
        ]
        await pilot.press(*["down"] * 20, "enter")
        await pilot.pause()
        assert isinstance(app.screen, BestDialog)
        assert drawn(app) == (26, 8, 14)
        assert "not worth it: 95 trips a token" in screen_text(app)
        await pilot.press("up")
        await until(pilot, lambda: "needs mini as the head" in screen_text(app))


async def test_one_request_answers_for_all_aims(started: Started) -> None:
    cluster = homelab()
    cluster.searching.clear()
    async with opened(started, cluster) as (pilot, app, rows):
        await until(pilot, lambda: "looking for the best plans" in screen_text(app))
        assert [choice.name for choice in rows.rows] == [AS_IT_IS]
        cluster.searching.set()
        await whole(pilot, app)
        assert len(rows.rows) == 9
        assert cluster.called("best") == [PLAN]
        assert "and a prompt of 512 tokens" in screen_text(app)


async def test_an_error_is_one_sentence(started: Started) -> None:
    cluster = homelab()

    def found(plan: Plan) -> tuple[Alternative, ...]:
        raise PlanError("No split of these devices fits", "Add a peer.")

    cluster.bests = found
    async with opened(started, cluster) as (pilot, app, rows):
        says = "No split of these devices fits. Add a peer."
        await until(pilot, lambda: says in screen_text(app))
        assert len(rows.rows) == 1


async def test_parts_of_tensors_are_taken_where_they_win(started: Started) -> None:
    """They are predicted on the bar, too, without asking for other speeds."""
    cluster = homelab()
    ids = tuple(share.device for share in PLAN.split.shares)

    def found(plan: Plan) -> tuple[Alternative, ...]:
        now, best, *_ = scenes.bests(plan)
        parts = replace(best, counts=(16, 16, 16), by_tensor=True, devices=ids)
        return now, replace(parts, name=NAME)

    cluster.bests = found
    async with opened(started, cluster) as (pilot, app, _):
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
        assert len(cluster.called("speeds")) == 1


async def test_answers_in_all_slots_have_a_column(started: Started) -> None:
    several = replace(PLAN, server=ServerSettings(slots=4))
    cluster = ScriptedCluster(replace(scenes.homelab_serving(), plan=several))
    cluster.pace = scenes.pace
    async with opened(started, cluster) as (pilot, app, rows):
        await whole(pilot, app)
        assert "4 clients" in screen_text(app)
        together = rows.rows[1].all_slots
        assert together is not None
        assert f"~{together:.1f}" in screen_text(app)


async def test_titles_end_where_their_figures_end(started: Started) -> None:
    async with opened(started, homelab()) as (pilot, app, _):
        await whole(pilot, app)
        shown = screen_text(app).splitlines()
        title = next(line for line in shown if "first token" in line and "plan" in line)
        row = next(line for line in shown if AS_IT_IS in line)
        ends = [found.end() for found in re.finditer(r"~\S+( [A-Za-z]+)?", row)]
        titles = ("tok/s", "first token", "per token")
        assert [title.index(name) + len(name) for name in titles] == ends[:3]


async def test_a_plan_with_a_draft_is_compared_without_it(started: Started) -> None:
    drafting = replace(PLAN, server=ServerSettings(draft=NGRAM_DRAFT))
    cluster = ScriptedCluster(replace(scenes.homelab_serving(), plan=drafting))
    cluster.pace = scenes.pace
    async with opened(started, cluster) as (pilot, app, _):
        await whole(pilot, app)
        assert "512 tokens, without the draft" in screen_text(app)


async def test_a_plan_of_another_console_ends_the_preview(started: Started) -> None:
    cluster = homelab()
    async with opened(started, cluster) as (pilot, app, _):
        await whole(pilot, app)
        await pilot.press("down")
        await until(pilot, lambda: drawn(app) == (48, 0, 0))
        now = cluster.now
        assert now is not None
        other = replace(PLAN, ctx_size=4096)
        cluster.push(replace(now, seq=now.seq + 1, plan=other, generation=9))
        await until(pilot, lambda: app.editor.plan == other)
        await until(pilot, lambda: drawn(app) == (26, 8, 14))


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


@pytest.mark.parametrize("size", [(120, 36), (80, 24)], ids=["normal", "small"])
def test_the_list_of_plans(look: Look, size: Size) -> None:
    async def pointed(pilot: Pilot[None]) -> None:
        app: Any = pilot.app
        await until(pilot, lambda: app.editor.edit and app.editor.edit.forecast)
        app._home.split.bar.focus()
        await pilot.press("a")
        await whole(pilot, app)
        await pilot.press("down", "down")
        await pilot.pause()

    look(homelab(), size, pointed)
