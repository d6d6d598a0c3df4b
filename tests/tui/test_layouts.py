"""Layouts by name, and borders between panes that one moves: both are kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot

from tests.kit.console import Started
from tests.tui.helpers import resize, toasts, until
from tui.app import frame
from tui.app.app import DllmApp
from tui.model.files import recall
from tui.screens.cluster.chat_pane import Composer
from tui.screens.machines.table import ProcessTable
from tui.widgets.panes import PaneRow, first_cells

PANES = ("peers", "split", "live", "chat")


def test_a_share_leaves_both_panes_their_least() -> None:
    widths = {(0.5, 120): 60, (0.05, 120): 24, (0.9, 120): 80, (0.5, 64): 24}
    assert {one: first_cells(*one, (24, 40)) for one in widths} == widths
    assert first_cells(0.5, 63, (24, 40)) is None


def shown(app: DllmApp) -> list[str]:
    return [name for name in PANES if getattr(app._home, name).region]


async def drag(pilot: Pilot[None], row: PaneRow, to: int) -> None:
    """Take hold of the border at its left column, and move to a column."""
    assert row.border_at is not None
    y = row.region.y + 2
    assert await pilot.mouse_down(offset=(row.border_at - 1, y))
    assert row.dragging
    await pilot.hover(offset=(to, y))
    # Beyond the row: a drag goes on there.
    await pilot.hover(offset=(to, y + 20))


async def test_a_border_is_dragged_and_kept(
    started: Started, memory_file: Path
) -> None:
    async with started() as (pilot, app, _):
        row, pane = app._home._top, app._home.peers.styles
        await drag(pilot, row, 50)
        assert app._home.peers.region.width == 51
        assert pane.border_right != pane.border_left
        await pilot.press("escape")
        await until(pilot, lambda: app._home.peers.region.width == 36)
        assert app.mouse_captured is None
        assert pane.border_right == pane.border_left
        await drag(pilot, row, 50)
        await app.action_show_mode("traffic")
        assert app.mouse_captured is None
        await app.action_show_mode("cluster")
        await until(pilot, lambda: app._home.peers.region.width == 36)
        await drag(pilot, row, 59)
        await pilot.mouse_up(offset=(59, 25))
        assert not row.dragging
        assert app._home.peers.region.width == 60
        assert app.screen.get_selected_text() is None
        at = app._home._body.border_at
        assert at is not None
        assert await pilot.mouse_down(offset=(60, at))
        await pilot.hover(offset=(60, at - 1))
        await pilot.mouse_up(offset=(60, at - 1))
        await until(pilot, lambda: app._home.chat.region.y == at - 1)
    heights = {"cluster.body.rows": (at - 2) / 34}
    assert recall(memory_file).shares == {"cluster.top": 0.5, **heights}
    async with started(size=(140, 36)) as (pilot, app, _):
        assert app._home.peers.region.width == 70
        x = app._home._top.border_at
        assert x is not None
        await pilot.click(offset=(x, 4), times=2)
        await until(pilot, lambda: app._home.peers.region.width == 36)
    assert recall(memory_file).shares == heights


async def test_borders_are_moved_by_keys_on_every_screen_that_has_one(
    started: Started, memory_file: Path
) -> None:
    moves = {
        False: ("left_parenthesis", "ctrl+right", "right_parenthesis", 2),
        True: ("ctrl+up", "ctrl+down", "ctrl+down", 1),
    }
    found: list[str | None] = []
    async with started() as (pilot, app, _):
        for mode in ("cluster", "layers", "models", "lab", "traffic"):
            await app.action_show_mode(mode)
            await until(pilot, lambda: app.screen.focused)
            for row in app.screen.query(PaneRow):
                at = row.border_at
                if at is None:
                    continue
                found.append(row.id)
                less, more, again, cells = moves[row.stacked]
                await pilot.press(less)
                await until(pilot, lambda: row.border_at == at - cells)  # noqa: B023
                await pilot.press(more, again)
                await until(pilot, lambda: row.border_at == at + cells)  # noqa: B023
                await pilot.press("backslash")
                await until(pilot, lambda: row.border_at == at)  # noqa: B023
    others = "layers-body", "models-body", "lab-top", "traffic-body"
    assert found == ["body", "top", *others]
    assert recall(memory_file).shares == {}


async def test_layouts_take_turns_and_the_last_is_kept(
    started: Started, memory_file: Path
) -> None:
    async with started() as (pilot, app, _):
        home = app._home
        await pilot.press("vertical_line")
        await until(pilot, lambda: home.chat.region.x > home.live.region.x)
        assert shown(app) == [*PANES]
        await pilot.press("vertical_line")
        await until(pilot, lambda: shown(app) == ["live", "chat"])
        assert home.chat.region.height > 30
        await pilot.press("vertical_line")
        await until(pilot, lambda: shown(app) == ["peers", "split", "live"])
        # A hidden pane that gets the focus is seen.
        home.go_to("chat")
        await until(pilot, lambda: shown(app) == ["peers", "split", "chat"])
    assert recall(memory_file).layouts == {"cluster": "plan"}
    async with started() as (pilot, app, _):
        assert shown(app) == ["peers", "split", "live"]
        await resize(pilot, 80, 24)
        await until(pilot, lambda: shown(app) == ["split", "live"])


async def test_a_layout_that_needs_more_room_is_left_out(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame, "LAYOUT_SAID_S", 3600.0)
    async with started(size=(80, 24)) as (pilot, app, _):
        await pilot.press("vertical_line")
        await until(pilot, lambda: shown(app) == ["live", "chat"])
        assert toasts(app) == ["Layout: chat (2 of 3)"]
        app.clear_notifications()
        # The keys of layouts are text where one types.
        app._home.go_to("chat")
        composer = app.query_one(Composer)
        await until(pilot, lambda: composer.has_focus)
        await pilot.press("vertical_line", "left_parenthesis", "full_stop", "backslash")
        assert composer.text == "|(.\\"
        assert not toasts(app)
        # One that hides the focus moves it.
        await resize(pilot, 120, 36)
        await app.action_show_mode("machines")
        usage = app.screen.query_one("#machines-usage")
        usage.focus()
        await until(pilot, lambda: usage.has_focus)
        await pilot.press("vertical_line")
        await until(pilot, lambda: not usage.region)
        assert isinstance(app.focused, ProcessTable)
