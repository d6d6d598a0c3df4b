"""The slider: mouse, keys and typing. What may disturb a drag: see the split bar."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf

import pytest
from textual import events, on
from textual.app import ComposeResult
from textual.pilot import Pilot

from tests.tui.helpers import resize, text_of, until
from tests.tui.stages import Stage
from tui.screens.lab.links import LATENCY, RATE
from tui.widgets.slider import LABEL_WIDTH, Scale, Slider


class SliderApp(Stage):
    def __init__(self, scale: Scale = LATENCY) -> None:
        super().__init__()
        self.slider = Slider("latency", scale, id="slider")
        self.changes: list[tuple[float, bool]] = []

    def compose(self) -> ComposeResult:
        yield self.slider

    def on_mount(self) -> None:
        super().on_mount()
        self.slider.focus()

    @on(Slider.Changed)
    def _changed(self, message: Slider.Changed) -> None:
        assert message.slider is self.slider
        self.changes.append((message.value, message.final))

    @property
    def finals(self) -> list[float]:
        return [value for value, final in self.changes if final]


def x_of(slider: Slider, value: float) -> int:
    span = slider.track_width - 1
    return LABEL_WIDTH + round(slider.scale.fraction(value) * span)


async def grab(pilot: Pilot[None], slider: Slider) -> None:
    assert await pilot.mouse_down(slider, offset=(slider.thumb_x, 0))


@asynccontextmanager
async def sliding(
    *, held: bool = False
) -> AsyncIterator[tuple[SliderApp, Slider, Pilot[None]]]:
    app = SliderApp()
    async with app.run_test(size=(100, 10)) as pilot:
        if held:
            await grab(pilot, app.slider)
        yield app, app.slider, pilot


# --- mouse --------------------------------------------------------------------


async def test_drag_also_outside_the_slider_and_escape_takes_it_back() -> None:
    async with sliding(held=True) as (app, slider, pilot):
        for value in (5, 10, 50):
            await pilot.hover(slider, offset=(x_of(slider, value), 0))
            slider.show_value(1)
            assert slider.value == pytest.approx(value, rel=0.15), "news leave it"
        for x, value in ((0, 0), (99, 500)):
            await pilot.hover(offset=(x, 8))
            assert slider.value == value
        assert app.finals == []
        await pilot.mouse_up(offset=(99, 8))
        assert app.finals == [500]
        await grab(pilot, slider)
        await pilot.hover(slider, offset=(60, 0))
        assert slider.value != 500
        await pilot.press("escape")
        assert slider.value == 500
        assert app.finals == [500, 500]


async def test_only_a_click_on_the_track_jumps() -> None:
    async with sliding() as (app, slider, pilot):
        for button in (2, 3):
            at = (50, 0)
            await pilot._post_mouse_events(
                [events.MouseDown], slider, at, button=button
            )
            assert app.mouse_captured is None
            await pilot.hover(slider, offset=(20, 0))
        for x in (2, 97):
            await pilot.click(slider, offset=(x, 0))
        slider.show_value(7.3)
        await grab(pilot, slider)
        await pilot.hover(slider, offset=(slider.thumb_x, 0))
        await pilot.mouse_up(slider, offset=(slider.thumb_x, 0))
        assert slider.value == 7.3, "between two steps, and not moved"
        assert app.changes == []
        await pilot.click(slider, offset=(x_of(slider, 20), 0))
        assert slider.value == pytest.approx(20, rel=0.1)
        assert app.finals == [slider.value]


# --- keys ---------------------------------------------------------------------


KEYS: list[tuple[list[str], float]] = [
    (["right"], 11),
    (["left"], 9.5),
    (["shift+right"], 14),
    (["shift+left"], 8),
    (["home"], 0),
    (["end"], 500),
    (["end", "right"], 500),
    (["equals_sign", "7", "enter"], 7),
    (["equals_sign", "0", ".", "1", "5", "enter"], 0.15),
    (["equals_sign", "1", ".", ".", "5", "enter"], 1.5),
    (["equals_sign", ".", "enter"], 10),
    (["equals_sign", "9", "9", "9", "9", "9", "enter"], 10_000),
]


async def test_keys() -> None:
    async with sliding() as (app, slider, pilot):
        for keys, value in KEYS:
            slider.show_value(10)
            await pilot.press(*keys)
            assert slider.value == pytest.approx(value), keys
        assert all(final for _, final in app.changes)
        await pilot.press("equals_sign", "1", "2")
        assert "12▏ms" in text_of(slider)


async def test_a_scale_with_no_limit_at_its_end_in_any_width() -> None:
    app = SliderApp(RATE)
    async with app.run_test(size=(100, 4)) as pilot:
        assert "no limit" in text_of(app.slider)
        for keys, value in (
            ("left", 1000),
            ("equals_sign 0 enter", inf),
            ("equals_sign 3 0 enter", 30),
        ):
            await pilot.press(*keys.split())
            assert app.slider.value == value
        for width in (20, 26, 27, 40, 56, 80, 160):
            await resize(pilot, width, 4)
            await until(pilot, lambda: app.slider.size.width == width)  # noqa: B023
            for value in RATE.grid:
                app.slider.show_value(value)
                (line,) = app.slider.lines()
                assert line.cell_length == width
                assert line.text.count("●") == (width >= 27)


# --- scale ----------------------------------------------------------------------


@pytest.mark.parametrize("scale", [LATENCY, RATE])
def test_every_step_of_a_scale_can_be_reached(scale: Scale) -> None:
    value, seen = scale.stops[0], [scale.stops[0]]
    while value != scale.stops[-1]:
        value = scale.step(value, 1)
        seen.append(value)
    assert tuple(seen) == scale.grid
    assert seen == sorted(set(seen))
    for value in reversed(seen[:-1]):
        assert scale.step(scale.step(value, 1), -1) == value
    assert all(scale.at(scale.fraction(value)) == value for value in scale.grid)


def test_a_value_between_two_steps_goes_to_the_next() -> None:
    assert LATENCY.step(10.4, 1) == 11
    assert LATENCY.step(10.4, -1) == 10
    assert LATENCY.step(9000, -1) == 500


def test_only_an_unfinished_change_of_the_same_slider_gives_way() -> None:
    one, other = Slider("a", LATENCY), Slider("b", LATENCY)
    moving = Slider.Changed(one, 1, final=False)
    done = Slider.Changed(one, 2, final=True)
    elsewhere = Slider.Changed(other, 1, final=False)
    assert moving.can_replace(done)
    assert not done.can_replace(moving)
    assert not moving.can_replace(elsewhere)
