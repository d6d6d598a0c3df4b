"""Jump mode: letters over all that takes the focus or can be pressed."""

from __future__ import annotations

from itertools import combinations

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from tests.kit.console import Started
from tests.tui import scenes
from tests.tui.helpers import in_front, resize, screen_text, toasts, until
from tui.app.app import DllmApp
from tui.app.frame import KeyBar
from tui.dialogs.dialog import ChoiceDialog
from tui.dialogs.jump import JumpDialog, labels, targets_of
from tui.screens.cluster.chat_pane import Composer
from tui.screens.cluster.peers_pane import PeerList
from tui.screens.cluster.split_bar import SplitBar
from tui.screens.layers.table import LayerTable


@pytest.mark.parametrize("count", [0, 1, 26, 27, 300, 676])
def test_no_label_begins_another(count: int) -> None:
    found = labels(count)
    assert len(set(found)) == count
    assert not any(b.startswith(a) for a, b in combinations(sorted(found), 2))
    if count <= 26:
        assert all(len(one) == 1 for one in found)


async def shown(pilot: Pilot[None]) -> JumpDialog:
    """Open jump mode."""
    await pilot.press("f10")
    return await in_front(pilot, JumpDialog)


async def jump(pilot: Pilot[None], app: DllmApp, what: object, *, nth: int = 0) -> None:
    """Open jump mode and type the letters of a target by its kind of widget."""
    screen = await shown(pilot)
    named = [
        name
        for name, target in screen._targets.items()
        if isinstance(target.widget, what)  # type: ignore[arg-type]
    ]
    await pilot.press(*named[nth])
    await until(pilot, lambda: app.screen is not screen)


def seen(screen: JumpDialog) -> int:
    return len([one for one in screen.query(".jump-label") if one.display])


async def test_jumping_focuses_picks_and_presses(started: Started) -> None:
    async with started() as (pilot, app, cluster):
        await jump(pilot, app, PeerList, nth=2)
        peers = app.query_one(PeerList)
        await until(pilot, lambda: peers.has_focus and peers.selected == 2)
        # Its own target, then its two boundaries.
        bar = app._home.split.bar
        await jump(pilot, app, SplitBar, nth=2)
        await until(pilot, lambda: bar.has_focus and bar.picked == 1)
        assert app.mouse_captured is None
        assert bar.edit is not None
        assert bar.edit.counts == (26, 8, 14)
        await pilot.press("s")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
        screen = await shown(pilot)
        spots = [target.at for target in screen._targets.values()]
        text = screen_text(app).splitlines()
        # The answers, and the keys in the frame; nothing of the screen behind.
        box = [y for y, row in enumerate(text) if "Stop" in row]
        assert box
        assert all(box[0] <= at.y <= box[0] + 12 for at in spots)
        assert len(spots) >= 4
        cancel = next(iter(screen._targets))
        await pilot.press(cancel)
        await until(pilot, lambda: not app.screen.is_modal)
        assert not cluster.called("stop")
        screen = await shown(pilot)
        last = [n for n, t in screen._targets.items() if t.widget is peers][-1]
        scene = scenes.homelab_serving()
        cluster.push(replace(scene, seq=9, peers=scene.peers[:1]))
        await until(pilot, lambda: len(peers.peers) == 1)
        await pilot.press(*last)
        await until(pilot, lambda: toasts(app) == ["That is no longer there"])
        assert not peers.has_focus
        await jump(pilot, app, KeyBar, nth=1)
        await until(pilot, lambda: app.current_mode == "layers")


async def test_it_is_reached_from_a_text_field_and_left(started: Started) -> None:
    async with started(size=(200, 60)) as (pilot, app, _):
        await pilot.press("ctrl+j")
        screen = await in_front(pilot, JumpDialog)
        # Where there are many, they have two letters.
        long = next(name for name in screen._targets if len(name) == 2)
        before = seen(screen)
        await pilot.press(long[0])
        assert 0 < seen(screen) < before
        await pilot.press("backspace")
        assert seen(screen) == before
        await pilot.press("escape")
        await until(pilot, lambda: not app.screen.is_modal)
        app._home.go_to("chat")
        composer = app.query_one(Composer)
        await until(pilot, lambda: composer.has_focus)
        await pilot.press("ctrl+j")
        assert composer.text == "\n"
        await shown(pilot)
        await pilot.press("escape")
        await until(pilot, lambda: not app.screen.is_modal)
        assert composer.has_focus
        await shown(pilot)
        await resize(pilot, 100, 30)
        await until(pilot, lambda: not app.screen.is_modal)
        assert targets_of(app.screen)
        # The notice of the smallest size covers everything.
        await resize(pilot, 50, 15)
        assert not targets_of(app.screen)


async def test_a_row_of_a_table_is_jumped_to_wherever_it_is_scrolled(
    started: Started,
) -> None:
    async with started(size=(80, 24)) as (pilot, app, _):
        await pilot.press("f2")
        await until(pilot, lambda: app.screen.query(LayerTable))
        table = app.screen.query_one(LayerTable)
        await until(pilot, lambda: table.has_focus and table.row_count > 40)
        for key, hidden in (("home", False), ("end", True)):
            await pilot.press(key)
            await until(pilot, lambda: bool(table.scroll_y) is hidden)  # noqa: B023
            screen = await shown(pilot)
            rows = [t for t in screen._targets.items() if t[1].widget is table]
            in_sight = table.scrollable_content_region.height - table.header_height
            headings = len(table.column_keys)
            assert len(rows) == headings + in_sight
            name, target = rows[headings + 3]
            await pilot.press(*name)
            there = int(table.scroll_y) + 3
            assert target.at.y == table.content_region.y + table.header_height + 3
            await until(pilot, lambda: table.cursor_row == there)  # noqa: B023
            assert not app.screen.is_modal
