"""A race in the console: what is chosen, the panes, the verdict, and leaving it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from textual.pilot import Pilot

from backends.errors import PlanError
from backends.split.layout import counts, devices, is_head_cpu
from backends.state import NGRAM_DRAFT
from backends.state.races import (
    Race,
    RaceFigures,
    RacePiece,
    RaceRequest,
    RaceSide,
    RaceStage,
)
from tests.kit.console import Started
from tests.tui import scenes
from tests.tui.helpers import screen_text, until
from tests.tui.pictures import Snap, seen
from tests.tui.scripted import ScriptedCluster, homelab
from tui.app.app import DllmApp
from tui.model.contestants import offered, with_split
from tui.screens.cluster.race_dialog import (
    ContestantRows,
    RaceDialog,
    RaceSetup,
    doing_text,
)


async def begin(pilot: Pilot[None], app: DllmApp) -> None:
    await until(pilot, lambda: app.editor.edit and app.editor.edit.forecast)
    app._home.split.bar.focus()
    await pilot.press("V")
    await until(pilot, lambda: isinstance(app.screen, RaceSetup))
    await pilot.press("enter")
    await until(pilot, lambda: isinstance(app.screen, RaceDialog))


@asynccontextmanager
async def racing(
    started: Started, cluster: ScriptedCluster
) -> AsyncIterator[tuple[Pilot[None], DllmApp]]:
    async with started(cluster, size=(120, 36)) as (pilot, app, _):
        await begin(pilot, app)
        yield pilot, app


async def test_what_serves_races_the_plan_under_the_cursor(
    started: Started, snap_compare: Snap
) -> None:
    cluster = homelab()
    async with racing(started, cluster) as (pilot, app):
        await until(pilot, lambda: "replays" in screen_text(app))
        assert "B is 1.20 times as fast" in screen_text(app)
        await seen(snap_compare, pilot)
        asked: RaceRequest = cluster.called("race")[0]
        one, two = asked.contestants
        assert one.plan == scenes.HOMELAB_PLAN
        assert two.plan is not None
        assert two.plan.server.draft == NGRAM_DRAFT
        await pilot.press("y")
        await until(pilot, lambda: "1.20 times as fast" in app.clipboard)
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, RaceDialog))
        # It closes the stream, so that the cluster goes back.
        cluster.gate.clear()
        cluster.calls.clear()
        await begin(pilot, app)
        await until(pilot, lambda: "Air scatters." in screen_text(app))
        await pilot.press("escape")
        await until(pilot, lambda: cluster.called("race closed"))


async def test_a_race_that_fails_keeps_saying_why(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(asked: RaceRequest) -> AsyncIterator[Race]:
        yield Race.of(asked)
        yield Race.of(asked)
        raise PlanError("The link broke")

    cluster = homelab()
    monkeypatch.setattr(cluster, "race", fails)
    async with started(cluster, size=(120, 36)) as (pilot, app, _):
        await until(pilot, lambda: app.editor.edit and app.editor.edit.forecast)
        await pilot.press("V")
        await until(pilot, lambda: isinstance(app.screen, RaceSetup))
        rows = app.screen.query_one(ContestantRows)
        await pilot.click(rows, offset=(4, 2))
        assert isinstance(app.screen, RaceSetup)
        assert rows.selected == 2
        await pilot.click(rows, offset=(4, 1), times=2)
        await until(pilot, lambda: isinstance(app.screen, RaceDialog))
        dialog = app.screen
        assert isinstance(dialog, RaceDialog)
        await until(pilot, lambda: dialog._drawing._timer is None)
        assert "The link broke" in screen_text(app)


def test_counts_may_leave_out_the_heads_cpu() -> None:
    plan = scenes.DEMO_PLAN
    whole = counts(plan.split)
    names = devices(plan.split)
    assert is_head_cpu(names[0], plan.head)
    last = sum(whole) - 1
    short = with_split(plan, f"1,{last}").plan
    full = with_split(plan, f"0,1,{last}").plan
    assert short is not None
    assert short == full
    assert counts(short.split) == (0, 1, last)
    with pytest.raises(PlanError):
        with_split(plan, f"1,{last + 1}")


def test_what_runs_is_offered_once() -> None:
    plan = scenes.HOMELAB_PLAN
    other = with_split(plan, ",".join(map(str, reversed(counts(plan.split))))).plan
    names = [one.name for one in offered(plan, plan, plan)]
    assert names == ["now", "draft ngram"]
    assert [one.name for one in offered(plan, other, plan)][:2] == ["now", "edit"]
    assert next(one.name for one in offered(plan, plan, None)) == "edit"


PIECES = tuple(RacePiece(at / 10, "a") for at in range(1, 12))
FIGURES = RaceFigures(tok_per_s=10.0, tokens=11, first_token_s=0.1)


def test_a_side_tells_what_it_does() -> None:
    answering = RaceSide(name="now", stage=RaceStage.ANSWERING, pieces=PIECES)
    done = RaceSide(name="now", stage=RaceStage.DONE, figures=FIGURES, pieces=PIECES)
    for side, at_s, text in (
        (RaceSide(name="now"), None, "waits for its turn"),
        (answering, None, "answers · 10.0 tok/s"),
        (done, None, "10.0 tok/s · first token 0.10 s · 11 tokens"),
        (done, 0.55, "0.55 s · 5 pieces · 10.0 tok/s"),
    ):
        assert doing_text(side, at_s) == text
