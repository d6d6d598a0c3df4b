"""The waterfall: bars to scale, steps of the scale, pausing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from textual.app import ComposeResult
from textual.pilot import Pilot

from backends.state import Link, Pass
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
from tui.widgets.waterfall import NO_RELAYS, NO_TOKEN, NOTHING_RUNS, Waterfall

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


@pytest.mark.parametrize("room", [7, 20, 53, 101])
@pytest.mark.parametrize(
    "times", [(40, 10, 30, 10, 10), (0.1, 33.3, 0.4, 0.4, 61), (0, 0, 3, 0, 0)]
)
def test_cells_are_within_one_cell_of_their_times(
    times: tuple[float, ...], room: int
) -> None:
    cells = cells_of(times, 100, room)
    for count, part_ms in zip(cells, times, strict=True):
        assert abs(count - part_ms / 100 * room) <= 1
    assert abs(sum(cells) - sum(times) / 100 * room) <= 0.5


def test_what_is_longer_than_the_scale_ends_with_it() -> None:
    assert cells_of((80, 10, 30, 10, 10), 100, 50) == [40, 5, 5, 0, 0]


@pytest.mark.parametrize(
    ("longest", "scale"),
    [(0.01, 0.1), (0.11, 0.2), (1, 1), (1.1, 2), (46, 50), (50, 50), (51, 100)],
)
def test_scales_are_one_two_five(longest: float, scale: float) -> None:
    assert scale_above(longest) == pytest.approx(scale)


@pytest.mark.parametrize(
    ("present", "longest", "scale"),
    [(50, 51, 100), (100, 49, 100), (100, 44, 100), (100, 42, 50), (100, 3, 5)],
)
def test_a_scale_grows_at_once_and_shrinks_late(
    present: float, longest: float, scale: float
) -> None:
    assert next_scale(present, longest) == scale


def test_figures_that_wander_around_a_step_change_the_scale_once() -> None:
    scale, seen = 20.0, []
    for longest in [19, 21, 19, 21, 18, 20.5, 19.9]:
        scale = next_scale(scale, longest)
        seen.append(scale)
    assert seen == [20, *[50] * 6]


def test_an_outlier_stretches_no_scale() -> None:
    tokens = tokens_of(link("a", *[USUAL] * 9, token(9000, 0, 0, 0, 0)))
    assert typical_ms(tokens) == 100


@pytest.mark.parametrize(
    ("others", "head_ms"),
    [
        ((token(60, 10, 30, 10, 10),), 50),
        ((token(0, 1, 2, 3, 4, generated=False), token(60, 10, 30, 10, 10)), 50),
        ((token(30_000, 10, 30, 10, 10), USUAL), 40),
    ],
    ids=["median", "prompts are no tokens", "a pause is no part"],
)
def test_a_typical_token(others: tuple[Pass, ...], head_ms: float) -> None:
    tokens = tokens_of(link("a", USUAL, *others))
    assert typical_of(tokens) == (head_ms, 10, 30, 10, 10)


@pytest.mark.parametrize("room", [8, 20, 37, 80])
@pytest.mark.parametrize("scale", [0.1, 0.5, 1, 20, 50, 200, 5000])
def test_the_axis_is_as_wide_as_the_bars(scale: float, room: int) -> None:
    text = axis_text(scale, room)
    assert len(text) in {0, room}
    if text:
        assert text.endswith(f"{scale:g} ms╷")


def test_marks_stand_where_their_times_are() -> None:
    text = axis_text(50, 100)
    for label in range(0, 50, 10):
        assert text.index(f"╷{label}") == 2 * label


@pytest.mark.parametrize(
    "value", [None, 0, 0.034, 9.99, 9.999, 46.5, 999.96, 12e3, 9e9]
)
def test_times_have_one_width(value: float | None) -> None:
    assert len(ms_text(value)) == 6


# --- the widget ----------------------------------------------------------------------


async def test_rows_are_to_one_scale() -> None:
    links = link("mini", USUAL), link("box", token(20, 5, 15, 5, 5))
    async with drawn(119, 5, *links) as (app, _):
        assert app.waterfall.scale_ms == 100
        assert app.count("mini") == [24, 6, 18, 6, 6]
        assert app.count("box") == [12, 3, 9, 3, 3]
        figures = "40.0 10.0 30.0 10.0 10.0 100.0"
        assert app.row("mini").split()[-6:] == figures.split()


async def test_equal_neighbours_are_one_segment() -> None:
    async with drawn(119, 5, link("mini", USUAL)) as (app, _):
        strip = app.waterfall.render_line(2)
        assert strip.cell_length == 119
        assert sum("█" in segment.text for segment in strip) == 1
        assert app.waterfall.render_line(2) is strip


async def test_the_median_stands_for_the_latest_tokens() -> None:
    tokens = USUAL, token(60, 10, 30, 10, 10)
    async with drawn(119, 5, link("mini", *tokens)) as (app, pilot):
        assert app.row("mini").endswith("120.0")
        assert app.lines[0].endswith("latest token")
        app.waterfall.median = True
        await pilot.pause()
        assert app.row("mini").endswith("110.0")
        assert app.lines[0].endswith("median of  2 tokens")


async def test_earlier_tokens_are_below_the_newest_last() -> None:
    tokens = (token(10 + n, 0, 5, 0, 0) for n in range(9))
    async with drawn(119, 8, link("mini", *tokens)) as (app, _):
        totals = [line.split()[-1] for line in app.lines[4:]]
        assert totals == ["19.0", "20.0", "21.0", "22.0"]
        assert app.row("mini").endswith("23.0")


async def test_one_worker_alone() -> None:
    async with drawn(119, 6, link("mini", USUAL), link("box", USUAL)) as (app, pilot):
        for names in (["mini"], ["box"], ["mini", "box"]):
            app.waterfall.choose_next()
            await pilot.pause()
            assert [line.split()[0] for line in app.lines[2:] if line] == names


async def test_what_goes_past_the_scale_is_marked() -> None:
    passes = *[USUAL] * 9, token(900, 0, 0, 0, 0)
    async with drawn(119, 5, link("mini", *passes)) as (app, _):
        assert app.waterfall.scale_ms == 100
        assert "·›" in app.row("mini")


async def test_little_room_keeps_bars_and_totals() -> None:
    async with drawn(56, 3, link("mini", USUAL)) as (app, pilot):
        assert len(app.row("mini").split()) == 3
        await resize(pilot, 56, 1)
        await pilot.pause()
        assert len(app.lines) == 1


async def test_it_says_why_there_is_nothing() -> None:
    async with drawn(80, 5) as (app, pilot):
        for links, running, said in (
            ((), False, NOTHING_RUNS),
            ((), True, NO_RELAYS),
            ((link("mini"),), True, NO_TOKEN),
        ):
            app.waterfall.show(links, running=running)
            await pilot.pause()
            assert app.lines[0] == said
        plain = Link(worker="[b]", mode="plain", reason="command 23 is unknown")
        app.waterfall.show((plain,))
        await pilot.pause()
        assert app.row("[b]").split()[1:3] == ["not", "metered:"]
