"""The waterfall: bars to scale, steps of the scale, pausing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace
from textual.app import ComposeResult
from textual.pilot import Pilot

from backends.link.figures import token_totals
from backends.state import ClusterSnapshot, Link, Pass, Share
from tests.tui import scenes
from tests.tui.helpers import resize, text_of
from tests.tui.stages import Stage
from tui.model.quantities import ms_text
from tui.model.token_time import (
    axis_text,
    cells_of,
    next_scale,
    scale_above,
    tokens_of,
    typical_ms,
    typical_of,
)
from tui.screens.cluster.live_figures import why_no_bar
from tui.widgets.waterfall import (
    NO_TOKEN,
    NO_TOKEN_NOW,
    NOTHING_RUNS,
    Waterfall,
    why_no_rows,
)

GLYPHS = "·░█▒─"


def token(*parts_ms: float, generated: bool = True) -> Pass:
    """A pass with these parts."""
    names = ("head_ms", "up_ms", "compute_ms", "down_ms", "wait_ms")
    parts: Any = dict(zip(names, parts_ms, strict=True))
    return Pass(at_ms=0, generated=generated, **parts)


def link(name: str, *passes: Pass) -> Link:
    return Link(worker=name, passes=passes)


USUAL = token(40, 10, 30, 10, 10)
"""A tenth of a second, in tenths."""


class WaterfallStage(Stage):
    """A waterfall alone."""

    def __init__(self) -> None:
        super().__init__()
        self.waterfall = Waterfall()

    def compose(self) -> ComposeResult:
        yield self.waterfall

    @property
    def lines(self) -> list[str]:
        return text_of(self.waterfall).splitlines()

    def row(self, name: str) -> str:
        return next(line for line in self.lines if line.startswith(name))

    def count(self, name: str) -> list[int]:
        return [self.row(name).count(glyph) for glyph in GLYPHS]


@asynccontextmanager
async def drawn(
    width: int, height: int, *links: Link
) -> AsyncIterator[tuple[WaterfallStage, Pilot[None]]]:
    app = WaterfallStage()
    async with app.run_test(size=(width, height)) as pilot:
        if links:
            app.waterfall.show(links)
            await pilot.pause()
        yield app, pilot


# --- arithmetic ----------------------------------------------------------------------


def test_cells_are_within_one_cell_of_their_times() -> None:
    every = (40, 10, 30, 10, 10), (0.1, 33.3, 0.4, 0.4, 61), (0, 0, 3, 0, 0)
    for times, room in product(every, (7, 20, 53, 101)):
        cells = cells_of(times, 100, room)
        for count, part_ms in zip(cells, times, strict=True):
            assert abs(count - part_ms / 100 * room) <= 1
        assert abs(sum(cells) - sum(times) / 100 * room) <= 0.5
    # What is longer than the scale ends with it.
    assert cells_of((80, 10, 30, 10, 10), 100, 50) == [40, 5, 5, 0, 0]


def test_scales_are_one_two_five_and_grow_at_once_but_shrink_late() -> None:
    scales = {0.01: 0.1, 0.11: 0.2, 1: 1, 1.1: 2, 46: 50, 50: 50, 51: 100}
    assert {one: scale_above(one) for one in scales} == pytest.approx(scales)
    later = {(50, 51): 100, (100, 49): 100, (100, 44): 100, (100, 42): 50, (100, 3): 5}
    assert {one: next_scale(*one) for one in later} == later


def test_figures_that_wander_around_a_step_change_the_scale_once() -> None:
    scale, seen = 20.0, []
    for longest in [19, 21, 19, 21, 18, 20.5, 19.9]:
        scale = next_scale(scale, longest)
        seen.append(scale)
    assert seen == [20, *[50] * 6]


def test_an_outlier_stretches_no_scale() -> None:
    tokens = tokens_of(link("a", *[USUAL] * 9, token(0, 0, 9000, 0, 0)))
    assert typical_ms(tokens) == 100


def test_a_token_after_a_pause_is_not_drawn() -> None:
    """Its time in the head would be that in which nobody asked."""
    tokens = tokens_of(link("a", *[USUAL] * 3, token(9000, 10, 30, 10, 10)))
    assert len(tokens) == 3


def test_a_typical_token() -> None:
    for what, others, head_ms in (
        ("median", (token(60, 10, 30, 10, 10),), 50),
        ("a pause is no part", (token(30_000, 10, 30, 10, 10), USUAL), 40),
        (
            "prompts are no tokens",
            (token(0, 1, 2, 3, 4, generated=False), token(60, 10, 30, 10, 10)),
            50,
        ),
    ):
        tokens = tokens_of(link("a", USUAL, *others))
        assert typical_of(tokens) == (head_ms, 10, 30, 10, 10), what


def test_the_axis_is_as_wide_as_the_bars() -> None:
    for scale, room in product((0.1, 0.5, 1, 20, 50, 200, 5000), (8, 20, 37, 80)):
        text = axis_text(scale, room)
        assert len(text) in {0, room}
        assert not text or text.endswith(f"{scale:g} ms╷")


def test_marks_stand_where_their_times_are() -> None:
    text = axis_text(50, 100)
    for label in range(0, 50, 10):
        assert text.index(f"╷{label}") == 2 * label


def test_times_have_one_width() -> None:
    values = (None, 0, 0.034, 9.99, 9.999, 46.5, 999.96, 12e3, 9e9)
    assert {len(ms_text(value)) for value in values} == {6}


# --- the widget ----------------------------------------------------------------------


async def test_rows_are_to_one_scale_and_one_worker_may_be_alone() -> None:
    links = link("mini", USUAL), link("box", token(20, 5, 15, 5, 5))
    async with drawn(119, 6, *links) as (app, pilot):
        assert app.waterfall.scale_ms == 100
        assert app.count("mini") == [24, 6, 18, 6, 6]
        assert app.count("box") == [12, 3, 9, 3, 3]
        figures = "40.0 10.0 30.0 10.0 10.0 100.0"
        assert app.row("mini").split()[-6:] == figures.split()
        strip = app.waterfall.render_line(2)
        assert strip.cell_length == 119
        assert sum("█" in segment.text for segment in strip) == 1
        assert app.waterfall.render_line(2) is strip
        for names in (["mini"], ["box"], ["mini", "box"]):
            app.waterfall.choose_next()
            await pilot.pause()
            assert [line.split()[0] for line in app.lines[2:4] if line] == names


async def test_the_median_stands_for_the_latest_tokens() -> None:
    tokens = USUAL, token(60, 10, 30, 10, 10)
    async with drawn(119, 8, link("mini", *tokens)) as (app, pilot):
        assert app.row("mini").endswith("120.0")
        assert app.lines[0].endswith("latest token")
        app.waterfall.median = True
        await pilot.pause()
        assert app.row("mini").endswith("110.0")
        assert app.lines[0].endswith("median of  2 tokens")
        app.waterfall.median = False
        many = (token(10 + n, 0, 5, 0, 0) for n in range(9))
        app.waterfall.show((link("mini", *many),))
        await pilot.pause()
        totals = [line.split()[-1] for line in app.lines[4:]]
        assert totals == ["19.0", "20.0", "21.0", "22.0"], "earlier ones, newest last"
        assert app.row("mini").endswith("23.0")


async def test_what_goes_past_the_scale_is_marked_and_totals_have_room() -> None:
    passes = *[USUAL] * 9, token(900, 0, 0, 0, 0)
    async with drawn(119, 5, link("mini", *passes)) as (app, pilot):
        assert app.waterfall.scale_ms == 100
        assert "·›" in app.row("mini")
        await resize(pilot, 56, 3)
        assert len(app.row("mini").split()) == 3
        await resize(pilot, 56, 1)
        await pilot.pause()
        assert len(app.lines) == 1


def test_a_head_alone_with_idle_workers_has_no_rows() -> None:
    plan = scenes.HOMELAB_PLAN
    shares = (Share(device=f"{plan.head}/CPU", layers=plan.split.n_layer + 1),)
    alone = replace(plan, split=replace(plan.split, shares=shares))
    serves = replace(scenes.homelab_serving(), links=(), plan=alone)
    said = why_no_rows(serves)
    assert (
        said == f"There is no link: {plan.head}, the head, runs alone, without workers."
    )
    assert f"{why_no_bar(serves, token_totals(()))}." == said
    assert "--relay off" in why_no_rows(
        replace(serves, plan=replace(plan, relay=False))
    )
    assert why_no_rows(ClusterSnapshot()) == NOTHING_RUNS


async def test_it_says_why_there_is_nothing() -> None:
    async with drawn(80, 5) as (app, pilot):
        before = replace(link("mini"), round_trips_per_token=1.0)
        for links, why, said in (
            ((), "There is no link: x", "There is no link: x"),
            ((link("mini"),), "", NO_TOKEN),
            ((before,), "", NO_TOKEN_NOW),
        ):
            app.waterfall.show(links, why)
            await pilot.pause()
            assert app.lines[0] == said
        plain = Link(worker="[b]", mode="plain", reason="command 23 is unknown")
        app.waterfall.show((plain,))
        await pilot.pause()
        assert app.row("[b]").split()[1:3] == ["not", "metered:"]
