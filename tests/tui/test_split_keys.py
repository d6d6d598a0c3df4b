"""The split bar by keys, and the split that runs beside the one shown."""

from __future__ import annotations

import msgspec
import pytest

from backends.state import ClusterState
from tests.tui import scenes
from tests.tui.bar_app import BarApp, grab, plan_of, x_of
from tests.tui.helpers import text_of, toasts

# --- keys -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "layers"),
    [
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
    ],
)
async def test_keys(keys: list[str], layers: tuple[int, ...]) -> None:
    app = BarApp(plan_of(26, 8, 14))
    async with app.run_test(size=(100, 10)) as pilot:
        await pilot.press(*keys)
        assert app.layers == layers
        assert app.finals[-1] == layers


async def test_a_number_being_typed_shows_and_escape_forgets_it() -> None:
    app = BarApp(plan_of(26, 8, 14))
    async with app.run_test(size=(100, 10)) as pilot:
        await pilot.press("equals_sign")
        assert "A gets ▏ of 34 layers" in text_of(app.bar)
        await pilot.press("1", "2")
        assert "A gets 12▏ of 34 layers" in text_of(app.bar)
        await pilot.press("escape")
        assert app.bar.typed is None
        assert app.layers == (26, 8, 14)
        assert app.changes == []


async def test_digits_alone_type_nothing() -> None:
    app = BarApp(plan_of(26, 8, 14))
    async with app.run_test(size=(100, 10)) as pilot:
        await pilot.press("1", "2", "x", "enter", "enter")
        assert app.bar.typed is None
        assert app.changes == []


async def test_more_layers_than_there_are_is_said() -> None:
    app = BarApp(plan_of(26, 8, 14))
    async with app.run_test(size=(100, 10)) as pilot:
        await pilot.press("equals_sign", "6", "1", "enter")
        assert app.layers == (34, 0, 14)
        assert toasts(app) == ["At most 34 layers here: set to 34"]


# --- what runs --------------------------------------------------------------


def ghosts(app: BarApp) -> set[int]:
    text = app.bar.lines()[1].text
    return {x for x, cell in enumerate(text) if cell == "┊"}


async def test_the_split_that_runs_stays_on_the_bar_while_dragging() -> None:
    app = BarApp(plan_of(26, 8, 14))
    app.editor.take(msgspec.structs.replace(scenes.homelab_serving(), seq=9))
    async with app.run_test(size=(100, 10)) as pilot:
        bar = app.bar
        assert ghosts(app) == set()
        stood = bar.handle_x
        await grab(pilot, bar)
        await pilot.hover(bar, offset=(x_of(bar, 20), 1))
        assert ghosts(app) == {stood}
        await pilot.mouse_up(bar, offset=(x_of(bar, 20), 1))
        assert ghosts(app) == {stood}
        await pilot.press("right_square_bracket", "left")
        assert len(ghosts(app)) == 2
        ended = msgspec.structs.replace(scenes.idle(), seq=10)
        app.editor.take(ended)
        bar.follow()
        assert ghosts(app) == set()


async def test_the_split_that_runs_again_has_no_ghost() -> None:
    app = BarApp(plan_of(26, 8, 14))
    app.editor.take(msgspec.structs.replace(scenes.homelab_serving(), seq=9))
    async with app.run_test(size=(100, 10)) as pilot:
        await pilot.press("left")
        assert len(ghosts(app)) == 1
        await pilot.press("u")
        assert ghosts(app) == set()


@pytest.mark.parametrize(
    "state", [ClusterState.IDLE, ClusterState.FAILED, ClusterState.STOPPING]
)
async def test_what_does_not_run_leaves_no_ghost(state: ClusterState) -> None:
    app = BarApp(plan_of(26, 8, 14))
    ended = msgspec.structs.replace(scenes.homelab_serving(), seq=9, state=state)
    app.editor.take(ended)
    async with app.run_test(size=(100, 10)) as pilot:
        await pilot.press("shift+left")
        assert ghosts(app) == set()


async def test_another_order_of_devices_has_no_ghost() -> None:
    app = BarApp(plan_of(26, 8, 14))
    app.editor.take(msgspec.structs.replace(scenes.homelab_serving(), seq=9))
    async with app.run_test(size=(100, 10)) as pilot:
        await pilot.press("greater_than_sign")
        assert ghosts(app) == set()


async def test_a_reorder_keeps_letters_and_follows_the_device() -> None:
    app = BarApp(plan_of(26, 8, 14))
    async with app.run_test(size=(100, 10)) as pilot:
        await pilot.press("greater_than_sign")
        names = text_of(app.bar).splitlines()[0]
        assert names.index("B mini MTL0") < names.index("A studio MTL0")
        assert app.bar.picked == 1
        await pilot.press("less_than_sign")
        assert app.layers == (26, 8, 14)


async def test_the_boundary_most_likely_meant_is_picked_first() -> None:
    app = BarApp(plan_of(0, 34, 14))
    async with app.run_test(size=(100, 10)):
        assert app.bar.picked == 1


async def test_the_head_cpu_stays_first() -> None:
    ids = ("studio/CPU", "mini/MTL0", "box/CUDA0")
    app = BarApp(plan_of(6, 20, 22, ids=ids))
    async with app.run_test(size=(100, 10)) as pilot:
        await pilot.press("greater_than_sign")
        assert app.layers == (6, 20, 22)
        assert app.changes == []


async def test_undo_at_the_beginning_changes_nothing() -> None:
    app = BarApp(plan_of(26, 8, 14))
    async with app.run_test(size=(100, 10)) as pilot:
        await pilot.press("u", "U")
        assert app.changes == []


async def test_a_drag_is_one_step_of_undo() -> None:
    app = BarApp(plan_of(26, 8, 14))
    async with app.run_test(size=(100, 10)) as pilot:
        bar = app.bar
        await grab(pilot, bar)
        for position in (25, 20, 15, 10):
            await pilot.hover(bar, offset=(x_of(bar, position), 1))
        await pilot.mouse_up(bar, offset=(x_of(bar, 10), 1))
        await pilot.press("u")
        assert app.layers == (26, 8, 14)


async def test_a_plan_for_other_devices_is_a_step_of_undo_like_any_other() -> None:
    app = BarApp(plan_of(26, 8, 14))
    async with app.run_test(size=(100, 10)) as pilot:
        await pilot.press("right")
        app.editor.put(plan_of(24, 24), scenes.GLM)
        app.bar.follow()
        assert app.bar.n_boundaries == 1
        await pilot.press("u")
        assert app.layers == (27, 7, 14)
        await pilot.press("u", "U", "U")
        assert app.bar.n_boundaries == 1


async def test_one_device_alone_has_nothing_to_move() -> None:
    app = BarApp(plan_of(48))
    async with app.run_test(size=(100, 10)) as pilot:
        await pilot.press("right", "end", "equals_sign", "3", "enter", "u")
        await pilot.click(app.bar, offset=(20, 1))
        assert app.layers == (48,)
        assert app.changes == []


async def test_an_empty_bar_takes_any_key() -> None:
    app = BarApp(None)
    async with app.run_test(size=(100, 10)) as pilot:
        await pilot.press("right", "equals_sign", "3", "enter", "u", "escape")
        assert app.changes == []
        assert text_of(app.bar) == ""
