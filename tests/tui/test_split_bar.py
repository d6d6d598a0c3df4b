"""The split bar: mouse and keys, and everything that can go wrong with a drag."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from textual import events, on
from textual.screen import ModalScreen

from backends.split.layout import counts, make_split
from tests.tui import scenes
from tests.tui.helpers import text_of
from tui.console import ConsoleApp
from tui.theming import BUILTIN_FOLDER, DEFAULT_THEME
from tui.widgets.draft import Draft
from tui.widgets.split_bar import SplitBar

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.pilot import Pilot

    from backends.state import Split

DEVICES = (scenes.STUDIO, scenes.MINI, scenes.BOX)
IDS = tuple(device.id for device in DEVICES)


def draft_of(*layers: int, ids: tuple[str, ...] = IDS) -> Draft:
    """The homelab's model over the first of its devices."""
    ids = ids[: len(layers)]
    return Draft(
        model=scenes.GLM,
        split=make_split(47, ids, layers),
        ctx_size=8192,
        devices=DEVICES,
        marks=ids,
        head="studio",
    )


class BarApp(ConsoleApp):
    """Nothing but a bar."""

    def __init__(self, draft: Draft | None, height: int = 4) -> None:
        super().__init__(
            theme_folders=[BUILTIN_FOLDER],
            theme=DEFAULT_THEME,
            keys={},
            clock=lambda: scenes.NOW,
        )
        self.bar = SplitBar(id="bar")
        self.bar.styles.height = height
        self.start = draft
        self.changes: list[tuple[tuple[int, ...], bool]] = []

    def compose(self) -> ComposeResult:
        yield self.bar

    def on_mount(self) -> None:
        self.bar.show_draft(self.start)
        self.bar.focus()

    @on(SplitBar.Changed, "#bar")
    def _changed(self, message: SplitBar.Changed) -> None:
        assert message.control is self.bar
        self.changes.append((counts(message.split), message.final))

    @property
    def layers(self) -> tuple[int, ...]:
        assert self.bar.draft is not None
        return self.bar.draft.counts

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
    """Press on the picked handle."""
    assert await pilot.mouse_down(bar, offset=(bar.handle_x, 1))


# --- mouse ------------------------------------------------------------------


async def test_drag_moves_the_boundary_and_counts_when_let_go() -> None:
    app = BarApp(draft_of(26, 8, 14))
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
    app = BarApp(draft_of(26, 8, 14))
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
    app = BarApp(draft_of(26, 8, 14))
    async with app.run_test(size=(100, 10)) as pilot:
        await grab(pilot, app.bar)
        await pilot.hover(app.bar, offset=(99, 1))
        assert app.layers == (34, 0, 14)
        await pilot.mouse_up(app.bar, offset=(99, 1))
        assert app.finals == [(34, 0, 14)]


async def test_escape_ends_a_drag_where_it_began() -> None:
    app = BarApp(draft_of(26, 8, 14))
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
    app = BarApp(draft_of(26, 8, 14))
    async with app.run_test(size=(100, 10)) as pilot:
        bar = app.bar
        at = (bar.handle_x, 1)
        await pilot._post_mouse_events([events.MouseDown], bar, at, button=button)
        assert app.mouse_captured is None
        await pilot.hover(bar, offset=(20, 1))
        assert app.layers == (26, 8, 14)
        assert app.changes == []


async def test_moving_after_the_release_drags_nothing() -> None:
    app = BarApp(draft_of(26, 8, 14))
    async with app.run_test(size=(100, 10)) as pilot:
        bar = app.bar
        await grab(pilot, bar)
        await pilot.hover(bar, offset=(x_of(bar, 20), 1))
        await pilot.mouse_up(bar, offset=(x_of(bar, 20), 1))
        await pilot.hover(bar, offset=(70, 1))
        assert app.layers == (20, 14, 14)


async def test_resize_in_mid_drag_keeps_dragging() -> None:
    app = BarApp(draft_of(26, 8, 14))
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
    app = BarApp(draft_of(26, 8, 14))
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
    app = BarApp(draft_of(26, 8, 14))
    async with app.run_test(size=(100, 10)) as pilot:
        bar = app.bar
        await grab(pilot, bar)
        await pilot.hover(bar, offset=(60, 1))
        app.capture_mouse(None)
        await pilot.hover(bar, offset=(8, 1))
        assert app.layers == (26, 8, 14)


async def test_a_release_outside_the_window_is_noticed() -> None:
    """The driver sends the missing MouseUp itself when a move comes unpressed."""
    app = BarApp(draft_of(26, 8, 14))
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
    app = BarApp(draft_of(26, 8, 14))
    async with app.run_test(size=(100, 10)) as pilot:
        start, end = app.bar.geometry.span(1)
        await pilot.click(app.bar, offset=((start + end) // 2, 1))
        assert app.bar.picked == 1
        assert app.changes == []


async def test_a_grab_without_a_move_changes_nothing_on_a_narrow_bar() -> None:
    """Where several layers share a column, touching a handle must not move it."""
    app = BarApp(draft_of(25, 9, 14))
    async with app.run_test(size=(22, 10)) as pilot:
        await grab(pilot, app.bar)
        await pilot.hover(app.bar, offset=(app.bar.handle_x, 1))
        await pilot.mouse_up(app.bar, offset=(app.bar.handle_x, 1))
        assert app.layers == (25, 9, 14)
        assert app.changes == []


async def test_a_device_without_layers_can_be_given_some_by_mouse() -> None:
    app = BarApp(draft_of(0, 34, 14))
    async with app.run_test(size=(100, 10)) as pilot:
        bar = app.bar
        assert bar.geometry.span(0) == (0, 1)
        await pilot.press("left_square_bracket")
        await grab(pilot, bar)
        await pilot.hover(bar, offset=(x_of(bar, 5), 1))
        await pilot.mouse_up(bar, offset=(x_of(bar, 5), 1))
        assert app.layers == (5, 29, 14)


async def test_news_of_the_devices_leave_a_drag_alone() -> None:
    app = BarApp(draft_of(26, 8, 14))
    async with app.run_test(size=(100, 10)) as pilot:
        bar = app.bar
        await grab(pilot, bar)
        await pilot.hover(bar, offset=(x_of(bar, 20), 1))
        fuller = msgspec.structs.replace(scenes.MINI, free_bytes=scenes.GIB)
        assert app.start is not None
        bar.show_draft(
            Draft(
                model=scenes.GLM,
                split=app.start.split,
                ctx_size=8192,
                devices=(scenes.STUDIO, fuller, scenes.BOX),
                marks=IDS,
            )
        )
        assert bar.dragging
        assert app.layers == (20, 14, 14)
        assert bar.draft is not None
        assert bar.draft.misfits == {"mini/MTL0"}


# --- keys -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "layers"),
    [
        (["right"], (27, 7, 14)),
        (["left", "left"], (24, 10, 14)),
        (["shift+right"], (30, 4, 14)),
        (["shift+left"], (22, 12, 14)),
        (["home"], (0, 34, 14)),
        (["end"], (34, 0, 14)),
        (["right_square_bracket", "right"], (26, 9, 13)),
        (["left_square_bracket", "left"], (26, 7, 15)),
        (["right_square_bracket", "right_square_bracket", "left"], (25, 9, 14)),
        (["3", "0", "enter"], (30, 4, 14)),
        (["9", "9", "9", "enter"], (34, 0, 14)),
        (["0", "enter"], (0, 34, 14)),
        (["3", "0", "backspace", "enter"], (3, 31, 14)),
        (["right_square_bracket", "5", "enter"], (26, 5, 17)),
        (["greater_than_sign"], (8, 26, 14)),
        (["right_square_bracket", "less_than_sign"], (8, 26, 14)),
        (["right", "u"], (26, 8, 14)),
        (["right", "right", "u", "U"], (28, 6, 14)),
        (["right", "u", "ctrl+y"], (27, 7, 14)),
    ],
)
async def test_keys(keys: list[str], layers: tuple[int, ...]) -> None:
    app = BarApp(draft_of(26, 8, 14))
    async with app.run_test(size=(100, 10)) as pilot:
        await pilot.press(*keys)
        assert app.layers == layers
        assert app.finals[-1] == layers


async def test_a_number_being_typed_shows_and_escape_forgets_it() -> None:
    app = BarApp(draft_of(26, 8, 14))
    async with app.run_test(size=(100, 10)) as pilot:
        await pilot.press("1", "2")
        assert "A gets 12▏ layers" in text_of(app.bar)
        await pilot.press("escape")
        assert app.bar.typed == ""
        assert app.layers == (26, 8, 14)
        assert app.changes == []


async def test_a_reorder_keeps_letters_and_follows_the_device() -> None:
    app = BarApp(draft_of(26, 8, 14))
    async with app.run_test(size=(100, 10)) as pilot:
        await pilot.press("greater_than_sign")
        names = text_of(app.bar).splitlines()[0]
        assert names.index("B mini MTL0") < names.index("A studio MTL0")
        assert app.bar.picked == 1
        await pilot.press("less_than_sign")
        assert app.layers == (26, 8, 14)


async def test_the_boundary_most_likely_meant_is_picked_first() -> None:
    app = BarApp(draft_of(0, 34, 14))
    async with app.run_test(size=(100, 10)):
        assert app.bar.picked == 1


async def test_the_head_cpu_stays_first() -> None:
    ids = ("studio/CPU", "mini/MTL0", "box/CUDA0")
    app = BarApp(draft_of(6, 20, 22, ids=ids))
    async with app.run_test(size=(100, 10)) as pilot:
        await pilot.press("greater_than_sign")
        assert app.layers == (6, 20, 22)
        assert app.changes == []


async def test_undo_at_the_beginning_changes_nothing() -> None:
    app = BarApp(draft_of(26, 8, 14))
    async with app.run_test(size=(100, 10)) as pilot:
        await pilot.press("u", "U")
        assert app.changes == []


async def test_a_drag_is_one_step_of_undo() -> None:
    app = BarApp(draft_of(26, 8, 14))
    async with app.run_test(size=(100, 10)) as pilot:
        bar = app.bar
        await grab(pilot, bar)
        for position in (25, 20, 15, 10):
            await pilot.hover(bar, offset=(x_of(bar, position), 1))
        await pilot.mouse_up(bar, offset=(x_of(bar, 10), 1))
        await pilot.press("u")
        assert app.layers == (26, 8, 14)


async def test_other_devices_begin_a_new_history() -> None:
    app = BarApp(draft_of(26, 8, 14))
    async with app.run_test(size=(100, 10)) as pilot:
        await pilot.press("right")
        assert app.bar.can_undo
        app.bar.show_draft(draft_of(24, 24))
        assert not app.bar.can_undo


async def test_one_device_alone_has_nothing_to_move() -> None:
    app = BarApp(draft_of(48))
    async with app.run_test(size=(100, 10)) as pilot:
        await pilot.press("right", "end", "3", "enter", "greater_than_sign")
        await pilot.click(app.bar, offset=(20, 1))
        assert app.layers == (48,)
        assert app.changes == []


async def test_an_empty_bar_takes_any_key() -> None:
    app = BarApp(None)
    async with app.run_test(size=(100, 10)) as pilot:
        await pilot.press("right", "3", "enter", "u", "greater_than_sign", "escape")
        assert app.changes == []
        assert text_of(app.bar) == ""


# --- picture ----------------------------------------------------------------


@pytest.mark.parametrize("width", [20, 21, 33, 60, 80, 120, 200])
@pytest.mark.parametrize("height", [1, 2, 3, 4, 6])
async def test_every_line_is_as_wide_as_the_bar(width: int, height: int) -> None:
    ids = tuple(f"peer{n}/CUDA0" for n in range(8))
    layers = (0, 20, 0, 8, 0, 19, 1, 0)
    app = BarApp(draft_of(*layers, ids=ids), height)
    async with app.run_test(size=(width, 10)):
        lines = app.bar.lines()
        assert len(lines) == height
        assert {line.cell_length for line in lines} == {width}
        bar = lines[0 if height == 1 else 1 + (height - 3) // 2 if height > 2 else 1]
        assert bar.text.count("┃") == 7


async def test_every_device_shows_its_letter_also_without_layers() -> None:
    app = BarApp(draft_of(0, 48, 0))
    async with app.run_test(size=(60, 10)):
        assert {"A", "B", "C"} <= set(app.bar.lines()[1].text)


async def test_too_much_shows_without_colour() -> None:
    app = BarApp(draft_of(0, 48, 0))
    async with app.run_test(size=(100, 10)):
        text = text_of(app.bar)
        assert "✗" in text
        assert "╱" in text
        assert "✓" in text_of(app.bar) or "—" in text


async def test_ranges_say_bytes_and_output() -> None:
    app = BarApp(draft_of(20, 14, 14))
    async with app.run_test(size=(140, 10)):
        ranges = text_of(app.bar).splitlines()[-1]
        assert "0–19 · 7.5 of 55.0 GiB ✓" in ranges
        assert "34–46+o" in ranges


async def test_a_theme_change_recolours_the_bar() -> None:
    app = BarApp(draft_of(20, 14, 14))
    async with app.run_test(size=(100, 10)) as pilot:
        before = app.bar.lines()[1]
        app.theme = "textual-light"
        await pilot.pause()
        assert app.bar.lines()[1] != before


async def test_nothing_is_drawn_again_while_nothing_changes() -> None:
    app = BarApp(draft_of(20, 14, 14))
    async with app.run_test(size=(100, 10)) as pilot:
        first = app.bar.lines()
        app.bar.show_draft(app.start)
        await pilot.pause()
        assert app.bar.lines() is first


def test_only_an_unfinished_change_of_the_same_bar_gives_way() -> None:
    bar, other = SplitBar(), SplitBar()
    split: Split = make_split(47, IDS, (26, 8, 14))
    moving = SplitBar.Changed(bar, split, final=False)
    done = SplitBar.Changed(bar, split, final=True)
    elsewhere = SplitBar.Changed(other, split, final=False)
    assert moving.can_replace(done)
    assert not done.can_replace(moving)
    assert not moving.can_replace(elsewhere)
