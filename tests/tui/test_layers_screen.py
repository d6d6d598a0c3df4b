"""The Layers screen: rows, marks, moves between devices, what is said of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from msgspec.structs import replace
from textual.pilot import Pilot

from backends.split.experts import with_given
from backends.split.layout import counts, make_split, move_layers
from backends.state import ClusterSnapshot, Layer, LayerBytes, LayerRange
from tests.kit.console import Started
from tests.tui import scenes
from tests.tui.helpers import screen_text, toasts, until
from tests.tui.scripted import ScriptedCluster, homelab
from tui.app.app import DllmApp
from tui.dialogs.dialog import ChoiceDialog
from tui.screens.layers.screen import LayersScreen
from tui.screens.layers.table import LayerTable, quants_text, taken_along

MIB = 1 << 20


def test_a_device_takes_what_lies_between() -> None:
    split = make_split(12, ["a", "b", "c"], [5, 2, 6])
    for first, last, device, expected, along in (
        (3, 4, "b", (3, 4, 6), ""),
        (7, 8, "b", (5, 4, 4), ""),
        (6, 6, "a", (7, 0, 6), "5"),
        (12, 12, "b", (5, 8, 0), "7–11"),
        (0, 0, "c", (0, 0, 13), "1–6"),
        (1, 2, "a", (5, 2, 6), ""),
    ):
        moved = move_layers(split, first, last, device)
        assert counts(moved) == expected
        given = range(first, last + 1)
        assert taken_along(split, moved, given, device) == along


def test_the_types_of_a_layer_begin_with_the_largest() -> None:
    assert quants_text(Layer(index=0, bytes=4, quants={"F32": 1, "Q4_K": 3})) == (
        "Q4_K 75 %, F32 25 %"
    )
    three = {"F32": 1, "Q4_K": 6, "Q6_K": 3}
    assert quants_text(Layer(index=0, bytes=9, quants=three)).endswith("Q6_K 30 %, …")
    assert quants_text(Layer(index=0, bytes=9, quants={"Q8_0": 9})) == "Q8_0"
    norms = {"Q4_1": 2_200_000, "F32": 4_600}
    assert quants_text(Layer(index=0, bytes=9, quants=norms)) == "Q4_1"


@asynccontextmanager
async def on_layers(
    started: Started, snapshot: ClusterSnapshot | None = None, *, width: int = 120
) -> AsyncIterator[tuple[Pilot[None], DllmApp, LayerTable]]:
    """The console of the homelab, on its Layers screen."""
    async with started(homelab(snapshot), size=(width, 36)) as (pilot, app, _):
        await pilot.press("2")
        await until(pilot, lambda: isinstance(app.screen, LayersScreen))
        table = app.screen.query_one(LayerTable)
        await until(pilot, lambda: table.row_count == 48)
        yield pilot, app, table


def shares(app: DllmApp) -> tuple[int, ...]:
    assert app.editor.split is not None
    return counts(app.editor.split)


async def test_layers_go_to_the_device_of_a_letter_and_back(started: Started) -> None:
    async with on_layers(started) as (pilot, app, table):
        assert shares(app) == (26, 8, 14)
        table.move_cursor(row=24)
        await pilot.press("v", "down", "B")
        await until(pilot, lambda: shares(app) == (24, 10, 14))
        assert not table.marking
        assert "B mini MTL0" in screen_text(app)
        await pilot.press("up", "C")
        await until(pilot, lambda: shares(app) == (24, 0, 24))
        await until(pilot, lambda: "~1 round trip a token" in screen_text(app))
        await pilot.press("u", "u")
        await until(pilot, lambda: shares(app) == (26, 8, 14))
        await pilot.press("U")
        await until(pilot, lambda: shares(app) == (24, 10, 14))
        await pilot.press("F", "x")
        await pilot.pause()
        assert shares(app) == (24, 10, 14)
        # Experts are offered only where there are any.
        assert "Layers: experts" not in screen_text(app)
        assert "x experts" not in screen_text(app)


async def test_marked_layers_have_a_price_and_go_where_one_picks(
    started: Started,
) -> None:
    async with on_layers(started) as (pilot, app, table):
        await until(pilot, lambda: "given to   trips" in screen_text(app))
        table.move_cursor(row=26)
        await pilot.press("shift+down", "shift+down")
        assert [row.number for row in table.selected] == [26, 27, 28]
        for mark, letter in enumerate("ABC"):
            plan = app.editor.plan
            assert plan is not None
            device = app.editor.marks[mark]
            split = move_layers(plan.split, 26, 28, device)
            there = app.editor.drawn(replace(plan, split=split))
            assert there is not None
            assert there.forecast is not None
            trips = f"~{there.forecast.trips_per_token:.0f}"
            speed = f"~{there.forecast.tok_per_s:.1f} tok/s"
            shown = f"{letter} {trips:>8}  {speed}"
            await until(pilot, lambda: shown in screen_text(app))  # noqa: B023
        await pilot.press("escape")
        table.move_cursor(row=30)
        await pilot.press("shift+down", "shift+down", "enter")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
        assert "Give layers 30–32 to" in screen_text(app)
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, LayersScreen))
        assert shares(app) == (26, 8, 14)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
        await pilot.press("c")
        await until(pilot, lambda: shares(app) == (26, 4, 18))
        # Escape unmarks, then leaves.
        table.move_cursor(row=2)
        await pilot.press("v", "j", "j")
        await until(pilot, lambda: len(table.selected) == 3)
        assert "3 layers marked" in screen_text(app)
        await pilot.press("escape")
        assert len(table.selected) == 1
        await pilot.press("escape")
        await until(pilot, lambda: app.current_mode == "cluster")


async def test_selected_layers_are_summed_by_part_and_type(started: Started) -> None:
    groups = LayerBytes(attention=100 * MIB, ffn=200 * MIB)
    quants = {"Q4_K": 250 * MIB, "Q6_K": 50 * MIB}
    found = tuple(
        replace(one, bytes=301 * MIB, groups=groups, quants=quants)
        for one in scenes.GLM.layers
    )
    serving = scenes.homelab_serving()
    model = replace(scenes.GLM, layers=found)
    async with on_layers(started, replace(serving, model=model), width=160) as (
        pilot,
        app,
        table,
    ):
        text = screen_text(app)
        assert "attention" in text
        assert "Q4_K 83 %, Q6_K 17 %" in text
        await pilot.press("v", "down")
        await until(pilot, lambda: "layers 0–1" in screen_text(app))
        text = screen_text(app)
        for figure in ("602 MiB", "400 MiB", "500 MiB", "100 MiB"):
            assert figure in text
        table.move_cursor(row=47)
        await pilot.press("v")
        await until(pilot, lambda: "─ output ─" in screen_text(app))


async def test_without_a_plan_it_says_where_models_are(
    make_app: Callable[..., DllmApp],
) -> None:
    app = make_app(ScriptedCluster(scenes.idle()))
    async with app.run_test(size=(120, 36)) as pilot:
        await until(pilot, lambda: app.editor.snapshot is not None)
        await pilot.press("2")
        await until(pilot, lambda: "No model is picked" in screen_text(app))
        await pilot.press("A", "enter", "v", "down")
        assert isinstance(app.screen, LayersScreen)


def with_experts() -> ClusterSnapshot:
    groups = LayerBytes(attention=60 * MIB, experts=300 * MIB)
    layers = tuple(replace(one, groups=groups) for one in scenes.GLM.layers)
    model = replace(scenes.GLM, layers=layers, n_expert=64, n_expert_used=4)
    return replace(scenes.homelab_serving(), model=model)


def moved(app: DllmApp) -> tuple[LayerRange, ...]:
    assert app.editor.plan is not None
    return app.editor.plan.experts


async def test_experts_go_to_the_device_of_a_letter_and_back(started: Started) -> None:
    """Whole layers stay where they are, and the price is that of the experts alone."""
    async with on_layers(started, with_experts()) as (pilot, app, table):
        await until(pilot, lambda: "given to   trips" in screen_text(app))
        table.move_cursor(row=24)
        before = app.editor.plan
        await pilot.press("x")
        await until(pilot, lambda: "experts to trips a token" in screen_text(app))
        assert "Layers: experts" in screen_text(app)
        edit = app.editor.edit
        assert before
        assert edit
        assert edit.forecast
        mini = app.editor.marks[1]
        there = app.editor.drawn(with_given(before, [24], mini))
        assert there
        assert there.forecast
        assert there.forecast.trips_per_token > edit.forecast.trips_per_token
        trips = f"B {f'~{there.forecast.trips_per_token:.0f}':>8}"
        await until(pilot, lambda: trips in screen_text(app))
        await pilot.press("v", "down", "B")
        await until(pilot, lambda: moved(app) == (LayerRange(mini, 24, 25),))
        assert shares(app) == (26, 8, 14)
        await until(pilot, lambda: "experts B" in screen_text(app))
        await pilot.press("A")
        await until(pilot, lambda: moved(app) == (LayerRange(mini, 24, 24),))
        await pilot.press("u", "u")
        await until(pilot, lambda: app.editor.plan == before)
        await pilot.press("x", "B")
        await until(pilot, lambda: shares(app) != (26, 8, 14))


async def test_experts_leave_a_device_with_its_last_layer(started: Started) -> None:
    async with on_layers(started, with_experts()) as (pilot, app, table):
        table.move_cursor(row=24)
        mini = app.editor.marks[1]
        await pilot.press("x", "B")
        await until(pilot, lambda: moved(app) == (LayerRange(mini, 24, 24),))
        app.editor.set_split(make_split(47, app.editor.marks, [34, 0, 14]))
        assert moved(app) == ()
        await pilot.press("B")
        await until(pilot, lambda: toasts(app))
        assert "has no layers, so that llama.cpp gives it no experts" in toasts(app)[0]
        assert moved(app) == ()
        app.editor.undo()
        assert moved(app) == (LayerRange(mini, 24, 24),)
