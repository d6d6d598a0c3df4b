"""The split bar by mouse, and everything that can go wrong with a drag; its picture."""

from __future__ import annotations

import msgspec
import pytest
from textual import events
from textual.screen import ModalScreen

from tests.tui import scenes
from tests.tui.bar_app import BarApp, grab, homelab, plan_of, x_of
from tests.tui.helpers import text_of

# --- mouse ------------------------------------------------------------------


async def test_drag_moves_the_boundary_and_counts_when_let_go() -> None:
    app = BarApp(plan_of(26, 8, 14))
    async with app.run_test(size=(100, 10)) as pilot:
        bar = app.bar
        await grab(pilot, bar)
        assert app.mouse_captured is bar
        for position in (25, 23, 20):
            await pilot.hover(bar, offset=(x_of(bar, position), 1))
            assert app.layers == (position, 34 - position, 14)
        assert app.finals == []
        await pilot.mouse_up(bar, offset=(x_of(bar, 20), 1))
        assert app.mouse_captured is None
        assert not bar.dragging
        assert app.finals == [(20, 14, 14)]


async def test_drag_goes_on_outside_the_bar() -> None:
    app = BarApp(plan_of(26, 8, 14))
    async with app.run_test(size=(100, 12)) as pilot:
        bar = app.bar
        await grab(pilot, bar)
        await pilot.hover(offset=(x_of(bar, 10), 9))
        assert app.layers == (10, 24, 14)
        await pilot.mouse_up(offset=(x_of(bar, 10), 9))
        assert app.mouse_captured is None
        assert not bar.dragging
        assert app.finals == [(10, 24, 14)]


async def test_a_boundary_stops_at_its_neighbours() -> None:
    app = BarApp(plan_of(26, 8, 14))
    async with app.run_test(size=(100, 10)) as pilot:
        await grab(pilot, app.bar)
        await pilot.hover(app.bar, offset=(99, 1))
        assert app.layers == (34, 0, 14)
        await pilot.mouse_up(app.bar, offset=(99, 1))
        assert app.finals == [(34, 0, 14)]


async def test_escape_ends_a_drag_where_it_began() -> None:
    app = BarApp(plan_of(26, 8, 14))
    async with app.run_test(size=(100, 10)) as pilot:
        bar = app.bar
        await grab(pilot, bar)
        await pilot.hover(bar, offset=(20, 1))
        assert app.layers != (26, 8, 14)
        await pilot.press("escape")
        assert app.layers == (26, 8, 14)
        assert app.mouse_captured is None
        await pilot.hover(bar, offset=(40, 1))
        await pilot.mouse_up(bar, offset=(40, 1))
        assert app.layers == (26, 8, 14)
        assert app.finals[-1] == (26, 8, 14)
        assert not bar.can_undo


@pytest.mark.parametrize("button", [2, 3])
async def test_other_buttons_drag_nothing(button: int) -> None:
    app = BarApp(plan_of(26, 8, 14))
    async with app.run_test(size=(100, 10)) as pilot:
        bar = app.bar
        at = (bar.handle_x, 1)
        await pilot._post_mouse_events([events.MouseDown], bar, at, button=button)
        assert app.mouse_captured is None
        await pilot.hover(bar, offset=(20, 1))
        assert app.layers == (26, 8, 14)
        assert app.changes == []


async def test_moving_after_the_release_drags_nothing() -> None:
    app = BarApp(plan_of(26, 8, 14))
    async with app.run_test(size=(100, 10)) as pilot:
        bar = app.bar
        await grab(pilot, bar)
        await pilot.hover(bar, offset=(x_of(bar, 20), 1))
        await pilot.mouse_up(bar, offset=(x_of(bar, 20), 1))
        await pilot.hover(bar, offset=(70, 1))
        assert app.layers == (20, 14, 14)


async def test_resize_in_mid_drag_keeps_dragging() -> None:
    app = BarApp(plan_of(26, 8, 14))
    async with app.run_test(size=(100, 10)) as pilot:
        bar = app.bar
        await grab(pilot, bar)
        await pilot.hover(bar, offset=(x_of(bar, 20), 1))
        await pilot.resize_terminal(70, 12)
        assert bar.dragging
        assert app.mouse_captured is bar
        await pilot.hover(bar, offset=(x_of(bar, 15), 1))
        await pilot.mouse_up(bar, offset=(x_of(bar, 15), 1))
        assert app.finals == [(15, 19, 14)]


async def test_a_dialog_in_mid_drag_puts_the_boundary_back() -> None:
    app = BarApp(plan_of(26, 8, 14))
    async with app.run_test(size=(100, 10)) as pilot:
        bar = app.bar
        await grab(pilot, bar)
        await pilot.hover(bar, offset=(20, 1))
        await app.push_screen(ModalScreen())
        await pilot.pause()
        assert app.mouse_captured is None
        assert not bar.dragging
        assert app.layers == (26, 8, 14)


async def test_a_lost_release_cannot_make_the_handle_jump() -> None:
    """Moves still in the queue when the capture is lost change nothing."""
    app = BarApp(plan_of(26, 8, 14))
    async with app.run_test(size=(100, 10)) as pilot:
        bar = app.bar
        await grab(pilot, bar)
        await pilot.hover(bar, offset=(60, 1))
        app.capture_mouse(None)
        await pilot.hover(bar, offset=(8, 1))
        assert app.layers == (26, 8, 14)


async def test_a_release_outside_the_window_is_noticed() -> None:
    """The driver sends the missing MouseUp itself when a move comes unpressed."""
    app = BarApp(plan_of(26, 8, 14))
    async with app.run_test(size=(100, 10)) as pilot:
        bar = app.bar
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


async def test_a_click_beside_the_handles_picks_a_boundary_and_moves_nothing() -> None:
    app = BarApp(plan_of(26, 8, 14))
    async with app.run_test(size=(100, 10)) as pilot:
        start, end = app.bar.geometry.span(1)
        await pilot.click(app.bar, offset=((start + end) // 2, 1))
        assert app.bar.picked == 1
        assert app.changes == []


async def test_a_grab_without_a_move_changes_nothing_on_a_narrow_bar() -> None:
    app = BarApp(plan_of(25, 9, 14))
    async with app.run_test(size=(22, 10)) as pilot:
        await grab(pilot, app.bar)
        await pilot.hover(app.bar, offset=(app.bar.handle_x, 1))
        await pilot.mouse_up(app.bar, offset=(app.bar.handle_x, 1))
        assert app.layers == (25, 9, 14)
        assert app.changes == []


async def test_a_device_without_layers_can_be_given_some_by_mouse() -> None:
    app = BarApp(plan_of(0, 34, 14))
    async with app.run_test(size=(100, 10)) as pilot:
        bar = app.bar
        assert bar.geometry.span(0) == (0, 1)
        await pilot.press("left_square_bracket")
        await grab(pilot, bar)
        await pilot.hover(bar, offset=(x_of(bar, 5), 1))
        await pilot.mouse_up(bar, offset=(x_of(bar, 5), 1))
        assert app.layers == (5, 29, 14)


async def test_news_of_the_devices_leave_a_drag_alone() -> None:
    app = BarApp(plan_of(26, 8, 14))
    async with app.run_test(size=(100, 10)) as pilot:
        bar = app.bar
        await grab(pilot, bar)
        await pilot.hover(bar, offset=(x_of(bar, 20), 1))
        fuller = msgspec.structs.replace(scenes.MINI, free_bytes=scenes.GIB)
        app.editor.take(homelab(scenes.STUDIO, fuller, scenes.BOX))
        bar.follow()
        assert bar.dragging
        assert app.layers == (20, 14, 14)
        assert bar.edit is not None
        assert bar.edit.misfits == {"mini/MTL0"}


# --- picture ----------------------------------------------------------------


@pytest.mark.parametrize("width", [20, 21, 33, 60, 80, 120, 200])
@pytest.mark.parametrize("height", [1, 2, 3, 4, 6])
async def test_every_line_is_as_wide_as_the_bar(width: int, height: int) -> None:
    ids = tuple(f"peer{n}/CUDA0" for n in range(8))
    layers = (0, 20, 0, 8, 0, 19, 1, 0)
    app = BarApp(plan_of(*layers, ids=ids), height)
    async with app.run_test(size=(width, 10)):
        lines = app.bar.lines()
        assert len(lines) == height
        assert {line.cell_length for line in lines} == {width}
        bar = lines[0 if height == 1 else 1 + (height - 3) // 2 if height > 2 else 1]
        assert bar.text.count("┃") == 7


async def test_every_device_shows_its_letter_also_without_layers() -> None:
    app = BarApp(plan_of(0, 48, 0))
    async with app.run_test(size=(60, 10)):
        assert {"A", "B", "C"} <= set(app.bar.lines()[1].text)


async def test_too_much_shows_without_colour() -> None:
    app = BarApp(plan_of(0, 48, 0))
    async with app.run_test(size=(100, 10)):
        text = text_of(app.bar)
        assert "✗" in text
        assert "╱" in text
        assert "✓" in text_of(app.bar) or "—" in text


async def test_ranges_say_bytes_and_output() -> None:
    app = BarApp(plan_of(20, 14, 14))
    async with app.run_test(size=(140, 10)):
        ranges = text_of(app.bar).splitlines()[-1]
        assert "0–19 · 7.5 of 55.0 GiB ~" in ranges
        assert "34–46+o" in ranges


async def test_a_theme_change_recolours_the_bar() -> None:
    app = BarApp(plan_of(20, 14, 14))
    async with app.run_test(size=(100, 10)) as pilot:
        before = app.bar.lines()[1]
        app.theme = "textual-light"
        await pilot.pause()
        assert app.bar.lines()[1] != before


async def test_nothing_is_drawn_again_while_nothing_changes() -> None:
    app = BarApp(plan_of(20, 14, 14))
    async with app.run_test(size=(100, 10)) as pilot:
        first = app.bar.lines()
        app.bar.follow()
        await pilot.pause()
        assert app.bar.lines() is first
