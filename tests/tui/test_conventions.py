"""What users of such consoles expect: see docs/conventions.md."""

from __future__ import annotations

import ast
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from textual import events
from textual.keys import format_key
from textual.worker import Worker

from backends.state import ClusterSnapshot
from tests.kit.console import Started
from tests.tui import scenes
from tests.tui.helpers import screen_text, text_of, toasts, until
from tests.tui.scripted import ScriptedCluster
from tui.actions import ACTIONS
from tui.api.bridge import UNWATCHED_SLOWER
from tui.app.app import DllmApp
from tui.app.console import ascii_sign
from tui.model.facts import LiveFacts
from tui.screens.cluster.live_figures import columns_of
from tui.screens.logs.screen import LogsScreen
from tui.widgets.keys import spelled
from tui.widgets.safe_text import REPLACEMENT

ROOT = Path(__file__).parents[2]

VI = {"down": "j", "up": "k", "first": "g", "last": "G"}
TYPED_INTO = {
    "adding",
    "chats",
    "composer",
    "filter",
    "finder",
    "launching",
    "plans",
    "picker",
    "settings",
}
"""Where letters are text."""


def serving(seq: int, tok_per_s: float) -> ClusterSnapshot:
    scene = scenes.homelab_serving()
    speed = replace(scene.speed, tok_per_s=tok_per_s)
    return replace(scene, seq=seq, at=scene.at + seq, speed=speed)


def pictures(folder: Path) -> list[str]:
    return [path.read_text() for path in folder.glob("*.svg")]


def log_lines(app: DllmApp) -> int:
    screen = app.screen
    active = screen._active if isinstance(screen, LogsScreen) else None
    return active.view.standing.lines if active else 0


# --- moving ---------------------------------------------------------------------


GETS_MODELS = "models.first"
"""In Models ``g`` gets a model, and Home goes to the first."""


@pytest.mark.parametrize("way", list(VI))
def test_lists_are_moved_in_by_letters_too(way: str) -> None:
    found = [
        action
        for action in ACTIONS
        if action.id.partition(".")[2] == way and action.area not in TYPED_INTO
    ]
    assert len(found) >= 3
    without = [one.id for one in found if VI[way] not in one.keys.split(",")]
    assert without in ([], [GETS_MODELS])


# --- freezing -------------------------------------------------------------------


async def test_space_freezes_every_pane_while_data_come(started: Started) -> None:
    async with started(serving(1, 20.0)) as (pilot, app, cluster):
        line, now = app._home.status_line, [50.0]
        line._clock = lambda: now[0]
        await pilot.press("space")
        await until(pilot, lambda: "‖ frozen · 0 s old" in screen_text(app))
        before = text_of(app._home.live._figures)
        columns = len(app.editor.trends.rates.columns)
        cluster.push(serving(2, 33.3))
        await until(pilot, lambda: app.editor.snapshot and app.editor.snapshot.seq == 2)
        assert text_of(app._home.live._figures) == before
        assert "33.3" in text_of(app._home.status_line)
        now[0] = 57.2
        await until(pilot, lambda: "frozen · 7 s old" in text_of(line))
        await pilot.press("3")
        await until(pilot, lambda: app.current_mode == "traffic")
        assert "frozen" in screen_text(app)
        await pilot.press("1", "space")
        await until(pilot, lambda: "33.3" in text_of(app._home.live._figures))
        assert "frozen" not in screen_text(app)
        assert len(app.editor.trends.rates.columns) == columns + 1


# --- zoom, filter ------------------------------------------------------------------


async def test_zoom_on_every_screen(started: Started) -> None:
    async with started() as (pilot, app, _):
        for mode in ("traffic", "lab", "models"):
            await app.action_show_mode(mode)
            await until(pilot, lambda: app.screen.focused)
            await pilot.press("z")
            await until(pilot, lambda: "zoomed: z shows all" in screen_text(app))
            pane = app.screen.maximized
            assert pane is not None
            await until(pilot, lambda: pane.outer_size == (120, 34))  # noqa: B023
            assert "● serving" in screen_text(app)
            await pilot.press("escape")
            await until(pilot, lambda: app.screen.maximized is None)
            assert app.current_mode == mode


async def test_peers_are_filtered_by_words(started: Started) -> None:
    async with started() as (pilot, app, _):
        app._home.go_to("peers")
        names = [peer.name for peer in app._home.peers.peer_list.peers]
        await pilot.press("slash", *"ssh", "space", *"work", "enter")
        shown = app._home.peers.peer_list
        await until(pilot, lambda: [p.name for p in shown.peers] == ["mini", "box"])
        assert "2 of 4" in screen_text(app)
        assert shown.has_focus
        await pilot.press("escape")
        await until(pilot, lambda: [p.name for p in shown.peers] == names)
        # One more peer after a filter is no new machine to go to.
        await pilot.press("slash", *"mini", "enter")
        await until(pilot, lambda: [p.name for p in shown.peers] == ["mini"])
        await pilot.press("escape")
        await until(pilot, lambda: len(shown.peers) == len(names))
        assert shown.peer is not None
        assert shown.peer.name == "mini"
        await pilot.press("slash", *"zebra")
        await until(pilot, lambda: "no peer has these words" in screen_text(app))


# --- copying, saving, paging ---------------------------------------------------------


async def test_the_launch_command_and_a_picture_are_taken_from_anywhere(
    started: Started, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("platformdirs.user_downloads_dir", lambda: str(tmp_path))
    kept: list[str] = []
    running = started(keep_copy=kept.append, kept_where="/tmp/copied.txt")
    async with running as (pilot, app, cluster):
        await pilot.press("3", "Y")
        await until(pilot, lambda: kept)
        assert app.clipboard.startswith("llama-server -m /")
        assert kept == [app.clipboard]
        said = "Copied the launch command; a copy is in /tmp/copied.txt"
        assert toasts(app) == [said]
        await pilot.press("1", "f12")
        await until(pilot, lambda: len(toasts(app)) == 2)
        assert toasts(app)[1].startswith(f"Saved the screen to {tmp_path}")
        (picture,) = pictures(tmp_path)
        assert "GLM-4.7-Flash" in picture
        idle = replace(scenes.idle(), seq=9)
        cluster.push(idle)
        await until(pilot, lambda: app.editor.snapshot == idle)
        await pilot.press("Y")
        await until(pilot, lambda: "no command to copy" in toasts(app)[-1])


async def test_a_log_is_frozen_and_opens_in_the_users_pager(
    started: Started, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pager, seen = tmp_path / "pager", tmp_path / "seen"
    pager.write_text(f"#!/bin/sh\ncat > {seen}.part && mv {seen}.part {seen}\n")
    pager.chmod(0o755)
    monkeypatch.setenv("PAGER", str(pager))
    cluster = ScriptedCluster(scenes.demo_serving())
    cluster.logs["llama-server"] = "first\n\x1b]52;c;b3duZWQ=\x07last\n"
    async with started(cluster) as (pilot, app, _):

        def reading() -> list[Worker[Any]]:
            return [w for w in app.workers if w.group == "logs" and not w.is_finished]

        await pilot.press("5")
        await until(pilot, lambda: log_lines(app))
        await pilot.press("space")
        await until(pilot, lambda: "frozen" in screen_text(app))
        assert not reading()
        await pilot.press("space")
        await until(pilot, lambda: [w for w in reading() if w.is_running])
        # There is no terminal for a pager.
        await pilot.press("P")
        await until(pilot, lambda: "S saves the log" in "".join(toasts(app)))
        monkeypatch.setattr(app, "suspend", nullcontext)
        monkeypatch.setattr("click._termui_impl.isatty", lambda _: True)
        await pilot.press("P")
        await until(pilot, seen.exists)
        text = seen.read_text()
        assert text.startswith("first\n")
        assert "\x1b" not in text


# --- drawing -----------------------------------------------------------------------


async def test_ascii_alone_where_it_is_wanted(started: Started) -> None:
    async with started(ascii_only=True, size=(160, 48)) as (_, app, _):
        strips = app.screen._compositor.render_strips()
        assert all(strip.text.isascii() for strip in strips)
        lines = [strip.text for strip in strips]
        assert {len(line) for line in lines} == {160}
        assert "+- Split --" in "\n".join(lines)


@pytest.mark.parametrize(
    ("sign", "plain"),
    [
        ("a", "a"),
        ("█", "#"),
        ("▁", "_"),
        ("é", "e"),
        ("│", "|"),
        ("漢", "??"),
        ("4.0 µs", "4.0 us"),
    ],
)
def test_a_sign_keeps_its_width(sign: str, plain: str) -> None:
    assert "".join(map(ascii_sign, sign)) == plain


APART = ("✓✗▼↓", "┃▕·", "●•◇·", "●•○◌", "·◆✗●", "˙·", "·█░▒─")
"""Signs that stand beside each other and mean different things."""


@pytest.mark.parametrize("signs", APART)
def test_signs_that_differ_do_so_in_ascii(signs: str) -> None:
    assert len({*map(ascii_sign, signs)}) == len(signs)


def test_no_sign_that_is_drawn_has_none_in_ascii() -> None:
    texts = [
        node.value
        for folder in ("tui", "backends")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    signs = {sign for sign in "".join(texts) if sign.isprintable()} - {REPLACEMENT}
    assert len(signs) > 150
    assert {sign for sign in signs if ascii_sign(sign) == "?"} == {"?"}


@pytest.mark.parametrize("key", ["enter", "left,right", "up"])
def test_no_key_is_written_as_another_in_ascii(key: str) -> None:
    """``⏎`` and ``←→`` would be ``<`` and ``<>``, which are keys."""
    shown = "".join(map(format_key, key.split(",")))
    written = spelled(SimpleNamespace(ascii_only=True), shown)  # type: ignore[arg-type]
    assert written == key.replace(",", "/")


async def test_a_terminal_without_focus_is_painted_rarely(started: Started) -> None:
    async with started() as (pilot, app, _):
        bridge = app._bridge
        assert bridge is not None
        app.post_message(events.AppBlur())
        await until(pilot, lambda: bridge._pace == UNWATCHED_SLOWER)
        app.post_message(events.AppFocus())
        await until(pilot, lambda: bridge._pace == 1.0)


def test_figures_have_fixed_places_whatever_they_are() -> None:
    small, large = serving(1, 0.1), serving(2, 4321.0)
    places = [
        [
            (c.label_cells, c.value_cells)
            for c in columns_of(LiveFacts.of(scene), 118, 3)
        ]
        for scene in (small, large)
    ]
    assert places[0] == places[1]
