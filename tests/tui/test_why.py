"""What a token waits for stands in the live pane, and one key makes the change."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from backends.split.layout import counts
from backends.state import Bottleneck, PlanChange
from tests.kit.console import Started
from tests.tui import scenes
from tests.tui.helpers import settled, text_of, until
from tests.tui.scripted import ScriptedCluster
from tui.app.app import DllmApp
from tui.screens.cluster.live_figures import LiveLine
from tui.screens.cluster.live_pane import WhyLine

SERVING = scenes.homelab_serving()
WHY = (
    "72 % of a token is mini's link; 2 layers from mini/MTL0 to studio/MTL0: +3.1 tok/s"
)


def found() -> Bottleneck:
    plan = SERVING.plan
    assert plan is not None
    one, two, *rest = plan.split.shares
    moved = replace(one, layers=one.layers + 2), replace(two, layers=two.layers - 2)
    split = replace(plan.split, shares=(*moved, *rest))
    change = PlanChange(
        text="2 layers", plan=replace(plan, split=split), gain=3.1, low=2.0, high=4.0
    )
    return Bottleneck(text=f"{WHY} (predicted, +2.0 to +4.0).", change=change)


def held(app: DllmApp) -> tuple[int, ...]:
    return counts(app.editor.split) if app.editor.split else ()


async def test_the_change_is_an_edit_that_undo_takes_back(started: Started) -> None:
    cluster = ScriptedCluster(SERVING)
    cluster.bottleneck = found()
    async with started(cluster, size=(140, 40)) as (pilot, app, _):
        await settled(pilot)
        why = app.query_one(WhyLine)
        await until(pilot, lambda: WHY in text_of(why))
        assert "W does it" in text_of(why)
        before = held(app)
        await pilot.press("W")
        await until(pilot, lambda: held(app) != before)
        assert held(app)[:2] == (before[0] + 2, before[1] - 2)
        await until(pilot, lambda: "l launches it" in text_of(why))
        await pilot.press("u")
        await until(pilot, lambda: held(app) == before)
        # While an answer comes there is nothing new to ask.
        speed = replace(SERVING.speed, tok_per_s=9.0, last_tok_per_s=9.0, tokens=5)
        cluster.push(replace(SERVING, seq=SERVING.seq + 1, speed=speed))
        await until(pilot, lambda: app.editor.facts.snapshot.speed.tokens == 5)
        assert [name for name, _ in cluster.calls].count("why") == 1
        assert len(cluster.called("speeds")) == 1


async def test_other_words_in_as_many_rows_arrange_nothing(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = ScriptedCluster(SERVING)
    cluster.bottleneck = found()
    async with started(cluster, size=(140, 40)) as (pilot, app, _):
        why = app.query_one(WhyLine)
        await until(pilot, lambda: WHY in text_of(why) and why.size.height > 0)
        arranged: list[object] = []
        monkeypatch.setattr(why, "refresh", lambda *_, **how: arranged.append(how))
        other = found().text.replace("+4.0", "+9.0")
        app.editor.learn_bottleneck(replace(found(), text=other))
        await until(pilot, lambda: "+9.0" in text_of(why))
        assert {"layout": True} not in arranged
        # It was asked before the answer of which the bar tells already.
        app.editor.learn_bottleneck(Bottleneck(text="Nothing is measured yet."))
        await until(pilot, lambda: "Told after this answer." in text_of(why))
        app.editor.learn_bottleneck(None)
        await until(pilot, lambda: {"layout": True} in arranged)


async def test_it_stands_in_the_one_line_of_few_rows_between_answers(
    started: Started,
) -> None:
    cluster = ScriptedCluster(SERVING)
    cluster.bottleneck = found()
    async with started(cluster, size=(80, 24)) as (pilot, app, _):
        live = app.query_one(LiveLine)
        await until(pilot, lambda: app.query_one(WhyLine).found)
        assert "pass p50" in text_of(live)
        speed = replace(SERVING.speed, tok_per_s=None)
        cluster.push(replace(SERVING, seq=SERVING.seq + 1, speed=speed))
        told = "why  72 % of a token is mini's link  W does it"
        await until(pilot, lambda: told in text_of(live))
        assert "tok/s" in text_of(live)
        longer = found().text.replace("mini's link", "worker1's compute")
        app.editor.learn_bottleneck(replace(found(), text=longer))
        told = "why  72 % worker1's compute  W does it"
        await until(pilot, lambda: told in text_of(live))
        longer = longer.replace(";", ", slowed by the lab;")
        app.editor.learn_bottleneck(replace(found(), text=longer))
        await settled(pilot)
        assert told in text_of(live)
        app.editor.learn_bottleneck(None)
        await until(pilot, lambda: "pass p50" in text_of(live))
