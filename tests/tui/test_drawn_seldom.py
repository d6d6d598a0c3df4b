"""Drawn seldom, painted in few cells: a terminal may be far away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from textual._compositor import Compositor
from textual.color import Color
from textual.css.stylesheet import Stylesheet
from textual.dom import DOMNode
from textual.geometry import Region, Size
from textual.pilot import Pilot
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget

from backends.state import ClusterSnapshot
from backends.units import format_rate
from tests.kit.console import Started
from tests.tui import scenes
from tests.tui.helpers import screen_text, text_of, until
from tests.tui.scripted import ScriptedCluster
from tests.unit.state.scene import busy_scene
from tui.app.app import DllmApp
from tui.screens.cluster.screen import TokenPane
from tui.widgets.strips import StripWidget
from tui.widgets.waterfall import Waterfall

pytestmark = pytest.mark.frames

SNAPSHOTS = 10


async def push(
    cluster: ScriptedCluster, app: DllmApp, pilot: Pilot[None], tick: int
) -> None:
    scene = busy_scene(tick)
    cluster.push(scene)
    await until(pilot, lambda: app.editor.snapshot == scene)


async def test_tokens_are_drawn_once_for_many_snapshots(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[Callable[[], None]] = []
    drawn: list[Waterfall] = []
    draw = Waterfall.draw

    def counted(waterfall: Waterfall, width: int, height: int) -> list[Strip]:
        drawn.append(waterfall)
        return draw(waterfall, width, height)

    def wait(pane: TokenPane, gap_s: float, over: Callable[[], None]) -> object:
        waits.append(over)
        return over

    monkeypatch.setattr(TokenPane, "set_timer", wait)
    monkeypatch.setattr(Waterfall, "draw", counted)
    async with started(busy_scene(0), size=(160, 50)) as (pilot, app, cluster):
        waterfall = app.screen.query_one(Waterfall)
        await until(pilot, lambda: "latest token" in text_of(waterfall))
        drawn.clear()
        for tick in range(1, SNAPSHOTS):
            await push(cluster, app, pilot, tick)
        assert not drawn
        waits[-1]()
        assert waterfall.shown == list(busy_scene(SNAPSHOTS - 1).links)
        await until(pilot, lambda: drawn)
        drawn.clear()
        waits[-1]()
        await pilot.pause()
        assert not drawn


async def test_hidden_panes_do_not_have_the_screen_arranged(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    arranged: list[Compositor] = []
    arrange = Compositor._arrange_root

    def counted(compositor: Compositor, *args: Any, **kwargs: Any) -> Any:
        arranged.append(compositor)
        return arrange(compositor, *args, **kwargs)

    async with started(busy_scene(0), size=(80, 22)) as (pilot, app, cluster):
        await push(cluster, app, pilot, 1)
        monkeypatch.setattr(Compositor, "_arrange_root", counted)
        for tick in range(2, SNAPSHOTS):
            await push(cluster, app, pilot, tick)
        assert len(arranged) < SNAPSHOTS / 2
        app._home.go_to("live")
        speed = format_rate(busy_scene(SNAPSHOTS - 1).speed.tok_per_s)
        await until(pilot, lambda: f"{speed} tok/s" in screen_text(app))


async def test_what_lies_between_two_changes_is_not_drawn(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: set[Widget] = set()
    draw = Widget.render_lines

    def counted(self: Widget, crop: Region) -> list[Strip]:
        drawn.add(self)
        return draw(self, crop)

    async with started(scenes.homelab_serving()) as (pilot, app, _):
        home = app._home
        monkeypatch.setattr(Widget, "render_lines", counted)
        home.status_line.redraw()
        home.key_bar.redraw()
        await until(pilot, lambda: home.key_bar in drawn)
        assert home.status_line in drawn
        assert not {home, home.live} & drawn


async def test_a_start_draws_what_runs_and_styles_each_widget_once(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames: list[object] = []
    done: list[str] = []

    def frame(self: DllmApp, screen: Screen[Any], drawn: object) -> None:
        if drawn is not None:
            frames.append(self.editor.snapshot)

    def update(self: DllmApp, node: DOMNode, **_: bool) -> None:
        if isinstance(node, Screen) and len(node.children):
            done.append(f"style all of {node}")

    monkeypatch.setattr(DllmApp, "_display", frame)
    monkeypatch.setattr(DllmApp, "update_styles", update)
    monkeypatch.setattr(Stylesheet, "reparse", lambda _: done.append("parse again"))
    async with started(scenes.homelab_serving()) as (_, app, _):
        assert app.screen.has_class("-normal", "-tall")
        assert frames[0] == scenes.homelab_serving()
        assert not done


async def test_a_little_less_memory_paints_a_few_cells(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Free memory changes all the time; over a slow link whole panes cost seconds."""
    painted: list[tuple[Widget, Region]] = []
    refresh = Widget.refresh

    def refreshed(self: Widget, *regions: Region, **options: bool) -> Widget:
        painted.extend((self, one) for one in regions or [Region(0, 0, *self.size)])
        return refresh(self, *regions, **options)

    serving = scenes.homelab_serving()
    async with started(serving) as (pilot, app, cluster):
        for widget in app.screen.query(StripWidget):
            widget.lines()
        monkeypatch.setattr(StripWidget, "refresh", refreshed)
        for seq, (less, most) in enumerate(((1, 0), (scenes.GIB, 100)), 9):
            painted.clear()
            later = with_less_memory(serving, seq, less)
            cluster.push(later)
            await until(pilot, lambda: app.editor.snapshot == later)  # noqa: B023
            assert sum(region.area for _, region in painted) <= most, painted
            assert bool(painted) is bool(most)


def with_less_memory(snapshot: ClusterSnapshot, seq: int, less: int) -> ClusterSnapshot:
    """The same with so many bytes less free on every device."""
    peers = (
        replace(
            peer,
            devices=tuple(
                replace(device, free_bytes=device.free_bytes - less)
                for device in peer.devices
            ),
        )
        for peer in snapshot.peers
    )
    return replace(snapshot, seq=seq, peers=tuple(peers))


class Rows(StripWidget):
    """Draws as many rows as it has room for."""

    content_size = Size(4, 1)
    background_colors = Color(0, 0, 0), Color(0, 0, 0)

    def draw(self, width: int, height: int) -> list[Strip]:
        return [Strip.blank(width)] * height


def test_another_height_is_drawn_before_the_resize_is_told() -> None:
    rows = Rows()
    assert len(rows.lines()) == 1
    rows.content_size = Size(4, 2)
    assert len(rows.lines()) == 2
