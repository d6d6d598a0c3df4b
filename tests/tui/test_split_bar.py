"""The split bar: its columns, by mouse, by keys, and its picture."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from textual import events
from textual.app import ComposeResult
from textual.pilot import Pilot
from textual.screen import ModalScreen

from backends.split.layout import make_split
from backends.state import ClusterSnapshot, ClusterState, Device, Peer, Plan
from tests.tui import scenes
from tests.tui.helpers import resize, text_of, toasts, until
from tests.tui.stages import Stage
from tui.model.editor import PlanEditor
from tui.screens.cluster.split_bar import BarGeometry, SplitBar

DEVICES = (scenes.STUDIO, scenes.MINI, scenes.BOX)
IDS = tuple(device.id for device in DEVICES)


def plan_of(*layers: int, ids: tuple[str, ...] = IDS) -> Plan:
    split = make_split(47, ids[: len(layers)], layers)
    return replace(scenes.HOMELAB_PLAN, split=split)


def homelab(*devices: Device) -> ClusterSnapshot:
    peers = tuple(Peer(name=d.id.split("/")[0], devices=(d,)) for d in devices)
    return ClusterSnapshot(peers=peers)


class BarApp(Stage):
    def __init__(
        self, plan: Plan | None, height: int = 4, *, runs: bool = False
    ) -> None:
        super().__init__()
        self.editor = PlanEditor()
        self.editor.take(homelab(*DEVICES))
        if runs:
            self.editor.take(replace(scenes.homelab_serving(), seq=9))
        elif plan is not None:
            self.editor.put(plan, scenes.GLM)
        self.bar = SplitBar(self.editor, id="bar")
        self.bar.styles.height = height
        self.editor.changed = self._changed
        self.changes: list[tuple[tuple[int, ...], bool]] = []

    def compose(self) -> ComposeResult:
        yield self.bar

    def on_mount(self) -> None:
        super().on_mount()
        self.bar.follow()
        self.bar.focus()

    def _changed(self) -> None:
        assert self.editor.edit is not None
        self.changes.append((self.editor.edit.counts, not self.editor.dragging))
        # As the console does when it is told.
        self.bar.follow()

    def begin(self, *layers: int) -> None:
        """Again, with a split that nobody changed."""
        self.editor.put(plan_of(*layers), scenes.GLM)
        self.bar.follow()
        self.bar.picked = 0
        self.changes.clear()

    @property
    def layers(self) -> tuple[int, ...]:
        assert self.bar.edit is not None
        return self.bar.edit.counts

    @property
    def finals(self) -> list[tuple[int, ...]]:
        return [layers for layers, final in self.changes if final]


def x_of(bar: SplitBar, position: int) -> int:
    """The column at which the picked handle stands for so many layers before it."""
    geometry = bar.geometry
    return next(
        x
        for x in range(geometry.width)
        if geometry.position_at(bar.picked, x) == position
    )


async def grab(pilot: Pilot[None], bar: SplitBar) -> None:
    assert await pilot.mouse_down(bar, offset=(bar.handle_x, 1))


async def drop(pilot: Pilot[None], bar: SplitBar, position: int, y: int = 1) -> None:
    """Drag the handle to so many layers before it, and let go; y is the screen's."""
    at = x_of(bar, position), y
    await pilot.hover(offset=at)
    await pilot.mouse_up(offset=at)


@asynccontextmanager
async def bar_of(
    *layers: int, held: bool = False, runs: bool = False
) -> AsyncIterator[tuple[BarApp, SplitBar, Pilot[None]]]:
    """A bar of 100 columns; ``held``: the picked handle is under the pressed mouse."""
    app = BarApp(plan_of(*layers), runs=runs)
    async with app.run_test(size=(100, 12)) as pilot:
        if held:
            await grab(pilot, app.bar)
        yield app, app.bar, pilot


# --- columns --------------------------------------------------------------------------


counts = st.lists(st.integers(0, 60), min_size=1, max_size=9).map(tuple)
widths = st.integers(1, 220)


@given(width=widths, counts=counts)
def test_segments_and_handles_fill_the_bar_without_overlap(
    width: int, counts: tuple[int, ...]
) -> None:
    bar = BarGeometry(width, counts)
    edge = 0
    for index in range(len(counts)):
        start, end = bar.span(index)
        assert start == edge
        assert end >= start
        edge = end + 1 if index < len(counts) - 1 else end
    assert edge == max(width, len(counts) - 1)


@given(width=st.integers(17, 220), counts=counts)
def test_every_device_keeps_a_column(width: int, counts: tuple[int, ...]) -> None:
    bar = BarGeometry(width, counts)
    spans = [bar.span(index) for index in range(len(counts))]
    assert all(end > start for start, end in spans)


@given(width=st.integers(20, 220), counts=counts, data=st.data())
def test_a_handle_let_go_where_it_is_stays(
    width: int, counts: tuple[int, ...], data: st.DataObject
) -> None:
    bar = BarGeometry(width, counts)
    if not bar.positions or not bar.total:
        return
    index = data.draw(st.integers(0, len(bar.positions) - 1))
    back = bar.position_at(index, bar.handle_x(index))
    moved = list(bar.positions)
    # A narrow bar cannot tell neighbouring layers apart: the column must agree.
    assert bar._scaled(back) == bar._scaled(moved[index])
    if bar.spare >= bar.total:
        assert back == moved[index]


@pytest.mark.parametrize("x", [-50, 0, 40, 79, 500])
def test_positions_stay_within_the_layers(x: int) -> None:
    bar = BarGeometry(80, (26, 8, 14))
    assert 0 <= bar.position_at(0, x) <= 48


def test_neighbouring_columns_move_by_one_layer_at_most_on_a_wide_bar() -> None:
    bar = BarGeometry(120, (24, 24))
    positions = [bar.position_at(0, x) for x in range(120)]
    steps = [b - a for a, b in pairwise(positions)]
    assert set(steps) <= {0, 1}
    assert positions[0] == 0
    assert positions[-1] == 48


def test_the_nearest_handle_within_reach_is_found() -> None:
    bar = BarGeometry(80, (26, 8, 14))
    first, second = bar.handle_x(0), bar.handle_x(1)
    assert bar.boundary_near(first + 1) == 0
    assert bar.boundary_near(second - 1) == 1
    assert bar.boundary_near(first + 4) is None


def test_a_segment_is_found_by_its_columns() -> None:
    bar = BarGeometry(80, (26, 8, 14))
    for index in range(3):
        start, end = bar.span(index)
        assert {bar.segment_at(x) for x in range(start, end)} == {index}


def test_layers_are_marked_where_each_has_two_columns() -> None:
    wide, narrow = BarGeometry(60, (6, 7)), BarGeometry(20, (6, 7))
    assert len(wide.layer_edges(0)) == 5
    assert not narrow.layer_edges(1)


def test_one_device_has_no_handle() -> None:
    bar = BarGeometry(40, (13,))
    assert bar.positions == ()
    assert bar.span(0) == (0, 40)
    assert bar.boundary_near(20) is None


# --- mouse -----------------------------------------------------------------


async def test_drag_moves_the_boundary_and_counts_when_let_go() -> None:
    async with bar_of(26, 8, 14, held=True) as (app, bar, pilot):
        assert app.mouse_captured is bar
        for position in (25, 23, 20):
            await pilot.hover(bar, offset=(x_of(bar, position), 1))
            assert app.layers == (position, 34 - position, 14)
        assert app.finals == []
        await drop(pilot, bar, 20)
        assert app.mouse_captured is None
        assert not bar.dragging
        assert app.finals == [(20, 14, 14)]
        await pilot.hover(bar, offset=(70, 1))
        assert app.layers == (20, 14, 14)
        await pilot.press("u")
        assert app.layers == (26, 8, 14), "a drag is one step"


async def test_drag_goes_on_outside_the_bar_and_stops_at_neighbours() -> None:
    async with bar_of(26, 8, 14) as (app, bar, pilot):
        there = bar.geometry.position_at(0, 20)
        for at, layers in (
            ((20, 9), (there, 34 - there, 14)),
            ((99, 1), (34, 0, 14)),
            ((99, 9), (34, 0, 14)),
        ):
            app.begin(26, 8, 14)
            await grab(pilot, bar)
            await pilot.hover(offset=at)
            await pilot.mouse_up(offset=at)
            assert app.finals == [layers]
            assert app.mouse_captured is None
            assert not bar.dragging


async def test_escape_a_dialog_or_a_lost_release_end_a_drag_where_it_began() -> None:
    """Moves still in the queue when the capture is lost change nothing."""
    async with bar_of(26, 8, 14) as (app, bar, pilot):
        for end in (
            lambda: pilot.press("escape"),
            lambda: app.push_screen(ModalScreen()),
            lambda: pilot.pause(),
        ):
            await grab(pilot, bar)
            await pilot.hover(bar, offset=(20, 1))
            assert app.layers != (26, 8, 14)
            await end()
            if bar.dragging:
                app.capture_mouse(None)
            await pilot.pause()
            assert app.mouse_captured is None
            assert not bar.dragging
            if app.screen.is_modal:
                await app.pop_screen()
            await pilot.hover(bar, offset=(40, 1))
            await pilot.mouse_up(bar, offset=(40, 1))
            assert app.layers == (26, 8, 14)
            assert app.finals[-1] == (26, 8, 14)
            assert not app.editor.can_undo


async def test_news_and_a_resize_in_mid_drag_leave_it_alone() -> None:
    async with bar_of(26, 8, 14, held=True) as (app, bar, pilot):
        await pilot.hover(bar, offset=(x_of(bar, 20), 1))
        fuller = replace(scenes.MINI, free_bytes=scenes.GIB)
        app.editor.take(homelab(scenes.STUDIO, fuller, scenes.BOX))
        bar.follow()
        assert bar.dragging
        assert app.layers == (20, 14, 14)
        assert bar.edit is not None
        assert bar.edit.misfits == {"mini/MTL0"}
        await resize(pilot, 70, 12)
        assert bar.dragging
        assert app.mouse_captured is bar
        await drop(pilot, bar, 15)
        assert app.finals == [(15, 19, 14)]


async def test_a_release_outside_the_window_is_noticed() -> None:
    """The driver sends the missing MouseUp itself when a move comes unpressed."""
    async with bar_of(26, 8, 14) as (app, bar, pilot):
        driver = app._driver
        assert driver is not None
        at, to = (bar.handle_x, bar.region.y + 1), x_of(bar, 20)
        for kind, x, button in (
            (events.MouseDown, at[0], 1),
            (events.MouseMove, to, 1),
            (events.MouseMove, to, 0),
        ):
            event = kind(None, x, at[1], 0, 0, button, False, False, False)
            driver.process_message(event)
        await pilot.pause()
        assert app.mouse_captured is None
        assert not bar.dragging
        assert app.finals == [(20, 14, 14)]


async def test_what_is_no_drag_moves_nothing() -> None:
    async with bar_of(26, 8, 14) as (app, bar, pilot):
        at = (bar.handle_x, 1)
        for button in (2, 3):
            await pilot._post_mouse_events([events.MouseDown], bar, at, button=button)
            assert app.mouse_captured is None
            await pilot.hover(bar, offset=(20, 1))
        start, end = bar.geometry.span(1)
        await pilot.click(bar, offset=((start + end) // 2, 1))
        assert bar.picked == 1, "a click beside the handles picks a boundary"
        app.begin(25, 9, 14)
        await resize(pilot, 22, 12)
        await grab(pilot, bar)
        await pilot.hover(bar, offset=(bar.handle_x, 1))
        await pilot.mouse_up(bar, offset=(bar.handle_x, 1))
        assert app.layers == (25, 9, 14)
        assert app.changes == []


async def test_a_device_without_layers_can_be_given_some_by_mouse() -> None:
    async with bar_of(0, 34, 14) as (app, bar, pilot):
        assert bar.geometry.span(0) == (0, 1)
        assert bar.picked == 1, "which is most likely meant"
        await pilot.press("left_square_bracket")
        await grab(pilot, bar)
        await drop(pilot, bar, 5)
        assert app.layers == (5, 29, 14)


# --- picture ---------------------------------------------------------------


async def test_every_line_is_as_wide_as_the_bar() -> None:
    ids = tuple(f"peer{n}/CUDA0" for n in range(8))
    app = BarApp(plan_of(0, 20, 0, 8, 0, 19, 1, 0, ids=ids))
    async with app.run_test(size=(80, 10)) as pilot:
        for width in (20, 21, 33, 60, 120, 200):
            await resize(pilot, width, 10)
            for height in (1, 2, 3, 4, 6):
                app.bar.styles.height = height
                await until(pilot, lambda: app.bar.size == (width, height))  # noqa: B023
                lines = app.bar.lines()
                assert len(lines) == height
                assert {line.cell_length for line in lines} == {width}
                row = 0 if height == 1 else 1 + max(height - 3, 0) // 2
                assert lines[row].text.count("┃") == 7


async def test_changes_are_drawn_and_misfits_show_without_colour() -> None:
    async with bar_of(20, 14, 14) as (app, bar, pilot):
        first = bar.lines()
        bar.follow()
        await pilot.pause()
        assert bar.lines() is first
        app.theme = "textual-light"
        await pilot.pause()
        assert bar.lines()[1] != first[1]
        app.begin(0, 48, 0)
        assert {"A", "B", "C"} <= set(bar.lines()[1].text)
        assert {"✗", "╱"} <= set(text_of(bar))
        app.begin(20, 14, 14)
        await resize(pilot, 140, 10)
        ranges = text_of(bar).splitlines()[-1]
        assert "0–19 · 7.5 of 55.0 GiB ~" in ranges
        assert "34–46+o" in ranges


# --- keys ------------------------------------------------------------------


KEYS: list[tuple[list[str], tuple[int, ...]]] = [
    (["right"], (27, 7, 14)),
    (["left", "left"], (24, 10, 14)),
    (["plus", "plus", "minus"], (27, 7, 14)),
    (["shift+right"], (30, 4, 14)),
    (["shift+left"], (22, 12, 14)),
    (["home"], (0, 34, 14)),
    (["end"], (34, 0, 14)),
    (["right_square_bracket", "right"], (26, 9, 13)),
    (["left_square_bracket", "left"], (26, 7, 15)),
    (["right_square_bracket", "right_square_bracket", "left"], (25, 9, 14)),
    (["equals_sign", "3", "0", "enter"], (30, 4, 14)),
    (["enter", "3", "0", "equals_sign"], (30, 4, 14)),
    (["equals_sign", "9", "9", "9", "enter"], (34, 0, 14)),
    (["equals_sign", "0", "enter"], (0, 34, 14)),
    (["equals_sign", "3", "0", "backspace", "enter"], (3, 31, 14)),
    (["right_square_bracket", "enter", "5", "enter"], (26, 5, 17)),
    (["greater_than_sign"], (8, 26, 14)),
    (["right_square_bracket", "less_than_sign"], (8, 26, 14)),
    (["right", "u"], (26, 8, 14)),
    (["right", "right", "u", "U"], (28, 6, 14)),
    (["right", "u", "ctrl+y"], (27, 7, 14)),
]


async def test_keys() -> None:
    async with bar_of(26, 8, 14) as (app, _, pilot):
        for keys, layers in KEYS:
            app.begin(26, 8, 14)
            await pilot.press(*keys)
            assert app.layers == layers, keys
            assert app.finals[-1] == layers, keys


async def test_a_number_being_typed_shows_and_keys_that_change_nothing() -> None:
    async with bar_of(26, 8, 14) as (app, bar, pilot):
        await pilot.press("equals_sign")
        assert "A gets ▏ of 34 layers" in text_of(bar)
        await pilot.press("1", "2")
        assert "A gets 12▏ of 34 layers" in text_of(bar)
        await pilot.press("escape")
        for keys in ("1 2 x enter enter", "u U", "escape"):
            assert bar.typed is None
            await pilot.press(*keys.split())
            assert app.changes == [], keys
        assert app.layers == (26, 8, 14)
        await pilot.press("equals_sign", "6", "1", "enter")
        assert app.layers == (34, 0, 14)
        assert toasts(app) == ["At most 34 layers here: set to 34"]


# --- what runs -------------------------------------------------------------


def ghosts(app: BarApp) -> set[int]:
    text = app.bar.lines()[1].text
    return {x for x, cell in enumerate(text) if cell == "┊"}


async def test_the_split_that_runs_stays_on_the_bar_while_dragging() -> None:
    async with bar_of(26, 8, 14, runs=True) as (app, bar, pilot):
        assert ghosts(app) == set()
        stood = bar.handle_x
        await grab(pilot, bar)
        await pilot.hover(bar, offset=(x_of(bar, 20), 1))
        assert ghosts(app) == {stood}
        await drop(pilot, bar, 20)
        assert ghosts(app) == {stood}
        await pilot.press("right_square_bracket", "left")
        assert len(ghosts(app)) == 2
        await pilot.press("u", "u")
        assert ghosts(app) == set()
        await pilot.press("greater_than_sign")
        assert ghosts(app) == set(), "another order has no place for them"


async def test_what_does_not_run_any_more_leaves_no_ghost() -> None:
    async with bar_of(26, 8, 14, runs=True) as (app, bar, pilot):
        await pilot.press("shift+left")
        scene = scenes.homelab_serving()
        ended = (ClusterState.IDLE, ClusterState.FAILED, ClusterState.STOPPING)
        for seq, state in enumerate((*ended, ClusterState.SERVING), 10):
            app.editor.take(replace(scene, seq=seq, state=state))
            bar.follow()
            assert bool(ghosts(app)) is (state not in ended), state


async def test_a_reorder_keeps_letters_and_follows_the_device() -> None:
    async with bar_of(26, 8, 14) as (app, bar, pilot):
        await pilot.press("greater_than_sign")
        names = text_of(bar).splitlines()[0]
        assert names.index("B mini MTL0") < names.index("A studio MTL0")
        assert bar.picked == 1
        await pilot.press("less_than_sign")
        assert app.layers == (26, 8, 14)
        cpu = plan_of(6, 20, 22, ids=("studio/CPU", "mini/MTL0", "box/CUDA0"))
        app.editor.put(cpu, scenes.GLM)
        bar.follow()
        bar.picked = 0
        app.changes.clear()
        await pilot.press("greater_than_sign")
        assert app.layers == (6, 20, 22), "the head's CPU stays first"
        assert app.changes == []


async def test_a_plan_for_other_devices_is_a_step_of_undo_like_any_other() -> None:
    async with bar_of(26, 8, 14) as (app, bar, pilot):
        await pilot.press("right")
        app.editor.put(plan_of(24, 24), scenes.GLM)
        bar.follow()
        assert bar.n_boundaries == 1
        await pilot.press("u")
        assert app.layers == (27, 7, 14)
        await pilot.press("u", "U", "U")
        assert bar.n_boundaries == 1


async def test_one_device_alone_or_none_has_nothing_to_move() -> None:
    async with bar_of(48) as (app, bar, pilot):
        await pilot.press("right", "end", "equals_sign", "3", "enter", "u")
        await pilot.click(bar, offset=(20, 1))
        assert app.layers == (48,)
        assert app.changes == []
    app = BarApp(None)
    async with app.run_test(size=(100, 10)) as pilot:
        await pilot.press("right", "equals_sign", "3", "enter", "u", "escape")
        assert app.changes == []
        assert text_of(app.bar) == ""
