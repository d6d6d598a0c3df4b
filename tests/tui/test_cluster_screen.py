"""Panes, sizes, keys and dialogs of the working screen."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from textual.widgets import DataTable

from backends.state import ClusterState
from tests.kit.console import Started
from tests.tui import scenes
from tests.tui.helpers import burst, resize, screen_text, toasts, until
from tui import actions
from tui.actions import ACTIONS
from tui.app.app import DllmApp
from tui.dialogs.add_peer import AddPeerDialog
from tui.dialogs.dialog import ChoiceDialog
from tui.dialogs.pick import ThemeDialog
from tui.model.files import BUILTIN_FOLDER
from tui.screens.cluster.chat_pane import Composer
from tui.screens.cluster.split_bar import SplitBar
from tui.screens.models.picker import ModelPicker
from tui.widgets.inputs import LineInput

PANES = ("Peers", "Split", "Live", "Chat")


def shown(app: DllmApp) -> list[str]:
    home = app._home
    panes = (home.peers, home.split, home.live, home.chat)
    return [
        name
        for name, pane in zip(PANES, panes, strict=True)
        if pane.display and pane.region.area and pane.parent and pane.parent.display
    ]


# --- sizes ------------------------------------------------------------------


async def test_panes_give_way_to_small_terminals(started: Started) -> None:
    async with started(size=(160, 48)) as (pilot, app, _):
        for width, height, panes, note in (
            (160, 48, ["Peers", "Split", "Live", "Chat"], ""),
            (100, 24, ["Peers", "Split", "Live", "Chat"], ""),
            (80, 24, ["Split", "Live", "Chat"], "+1 pane: tab"),
            (120, 20, ["Peers", "Split", "Chat"], "1 pane hidden: tab"),
            (60, 18, ["Split", "Chat"], "+2 panes: tab"),
        ):
            await resize(pilot, width, height)
            await until(pilot, lambda: shown(app) == panes)  # noqa: B023
            assert app._home.key_bar.note == note
            assert (note or "quit") in screen_text(app)
        for size in ((20, 5), (59, 30), (100, 17)):
            await resize(pilot, *size)
            await until(pilot, lambda: "60×18" in screen_text(app))
            text = screen_text(app)
            assert f"{size[0]}×{size[1]}" in text
            assert "Split" not in text
        await resize(pilot, 80, 24)
        await until(pilot, lambda: "60×18" not in screen_text(app))
        assert "Split" in screen_text(app)


async def test_tab_reaches_hidden_and_zoomed_panes(started: Started) -> None:
    async with started(size=(60, 18)) as (pilot, app, _):
        seen = []
        for _ in range(4):
            await pilot.press("tab")
            await until(pilot, lambda: app.focused is not None)
            seen.append(app._home._focused_pane())
            assert seen[-1].capitalize() in shown(app)
        assert sorted(seen) == ["chat", "live", "peers", "split"]
        await pilot.press("shift+tab")
        await pilot.pause()
        assert app._home._focused_pane() == seen[-2]
        focused = app.focused
        await resize(pilot, 120, 36)
        await until(pilot, lambda: len(shown(app)) == 4)
        assert app.focused is focused
        app._home.go_to("split")
        await pilot.press("z")
        await until(pilot, lambda: shown(app) == ["Split"])
        assert app._home.split.region.height == 34
        await pilot.press("tab")
        await until(pilot, lambda: shown(app) == ["Live"])
        await pilot.press("escape")
        await until(pilot, lambda: len(shown(app)) == 4)


# --- screens ----------------------------------------------------------------


async def test_numbers_and_function_keys_change_screens(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started() as (pilot, app, _):
        anew: list[str] = []
        monkeypatch.setattr(app, "refresh_css", lambda: anew.append(app.current_mode))
        assert isinstance(app.focused, SplitBar)
        assert "5 Logs" in screen_text(app)
        await pilot.press("5")
        await until(pilot, lambda: app.current_mode == "logs")
        assert "● serving" in screen_text(app)
        await pilot.press("6")
        await until(pilot, lambda: app.current_mode == "models")
        await pilot.press("escape")
        await until(pilot, lambda: app.current_mode == "cluster")
        assert anew == [], "all style sheets were read again"
        await pilot.press("equals_sign")
        await until(pilot, lambda: "F5 Logs" in screen_text(app))
        await pilot.press("5")
        assert app.current_mode == "cluster", "digits are typed"
        await pilot.press("f5")
        await until(pilot, lambda: app.current_mode == "logs")
        await pilot.press("f1")
        await until(pilot, lambda: app.current_mode == "cluster")
    # What comes while the console ends is for no screen.
    app.show_edit()
    app._show_link(True)


async def test_models_are_chosen_in_picker_and_screen(started: Started) -> None:
    async with started(scenes.idle(), wait=False) as (pilot, app, cluster):
        await until(pilot, lambda: app.is_running and app._home.is_mounted)
        await pilot.press("m")
        await until(pilot, lambda: isinstance(app.screen, ModelPicker))
        table = app.screen.query_one(DataTable)
        await until(pilot, lambda: table.row_count == 3)
        await pilot.press(*"glm", "enter")
        await until(pilot, lambda: cluster.called("propose") == [scenes.GLM.path])
        await pilot.press("f6")
        await until(pilot, lambda: "3 models" in screen_text(app))
        await pilot.press("up", "enter")
        await until(pilot, lambda: len(cluster.called("propose")) == 2)
        assert app.current_mode == "cluster"


# --- keys -------------------------------------------------------------------


async def test_keys_of_the_configuration_replace_ours(started: Started) -> None:
    async with started(
        keys={"split.more": "d", "split.nonsense": "x"}, size=(160, 36)
    ) as (pilot, app, _):
        assert any("split.nonsense" in toast for toast in toasts(app))
        await pilot.press("right")
        assert app.query_one(SplitBar).edit.counts == (26, 8, 14)  # type: ignore[union-attr]
        await pilot.press("d")
        assert app.query_one(SplitBar).edit.counts == (27, 7, 14)  # type: ignore[union-attr]
        assert "d move" in screen_text(app)


def test_keys_that_clash_with_those_of_a_pane_or_of_all_screens_are_said() -> None:
    assert actions.keymap_problems({"app.theme": "m"}) == [
        "The configuration gives m to app.theme: "
        "where cluster.model is offered it stays that"
    ]
    assert actions.keymap_problems({"split.undo": "t"}) == [
        "The configuration gives t to split.undo: app.theme lost it there"
    ]
    assert actions.keymap_problems({"split.undo": "right"}) == [
        "The configuration gives right to split.undo: split.more lost it"
    ]
    moved = {"app.theme": "m", "cluster.model": "M"}
    assert actions.keymap_problems(moved) == []
    assert actions.keymap_problems({"split.undo": "r", "peers.add": "u"}) == [
        "The configuration gives u to peers.add: peers.undo lost it"
    ]


def test_every_action_has_a_name_a_sentence_and_a_place() -> None:
    ids = [action.id for action in ACTIONS]
    assert len(ids) == len(set(ids))
    for action in ACTIONS:
        area, _, verb = action.id.partition(".")
        assert area
        assert verb
        assert action.label
        assert action.tooltip[0].isupper()
        assert not action.tooltip.endswith(".")


def test_no_default_key_is_one_a_multiplexer_takes() -> None:
    taken = {f"ctrl+{letter}" for letter in "abgostz"} | {"ctrl+enter"}
    for action in ACTIONS:
        keys = set(action.keys.split(","))
        assert not keys & taken, action.id
        assert not any(key.startswith("alt+") for key in keys), action.id


async def test_launch_is_offered_while_a_changed_plan_waits(started: Started) -> None:
    async with started(size=(60, 36)) as (pilot, app, _):
        for width in (60, 120):
            await resize(pilot, width, 36)
            assert "l launch" not in screen_text(app)
            assert "u undo" not in screen_text(app)
            await pilot.press("left")
            await until(pilot, lambda: "l launch" in screen_text(app).splitlines()[-1])
            text = screen_text(app).splitlines()[-1]
            assert "? help" in text
            assert "q quit" in text
            assert "u undo" in screen_text(app) or width < 120
            await pilot.press("u")
            await until(pilot, lambda: "l launch" not in screen_text(app))


# --- dialogs ----------------------------------------------------------------


async def test_help_theme_and_copies_are_of_the_focused_pane(started: Started) -> None:
    async with started(size=(120, 40)) as (pilot, app, _):
        await pilot.press("question_mark")
        await until(pilot, lambda: "Help · Split" in screen_text(app))
        text = screen_text(app)
        assert "counts as one layer" in text
        assert "Pick the next boundary" in text
        await pilot.press("escape", "tab", "question_mark")
        await until(pilot, lambda: "Help · Live" in screen_text(app))
        await pilot.press("escape")
        for count, (pane, text) in enumerate(
            (
                ("split", "llama-server -m /models/GLM-4.7-Flash-Q4_K_M.gguf --rpc"),
                ("live", "http://127.0.0.1:8090/v1"),
                ("peers", "studio head serving local studio/MTL0"),
            )
        ):
            app._home.go_to(pane)
            await pilot.pause()
            await pilot.press("y")
            await until(pilot, lambda: len(toasts(app)) > count)  # noqa: B023
            assert app.clipboard.startswith(text)
            assert toasts(app)[count].startswith("Copied")


async def test_a_theme_shows_at_once_and_escape_takes_it_back(
    started: Started, tmp_path: Path
) -> None:
    """A bad one of the user's is said by file and key."""
    folder = tmp_path / "themes"
    folder.mkdir()
    text = (BUILTIN_FOLDER / "dllm-dark.toml").read_text()
    (folder / "mine.toml").write_text(text.replace('"#7fc98f"', '"grren"', 1))
    running = started(theme_folders=[BUILTIN_FOLDER, folder], theme="mine")
    async with running as (pilot, app, _):
        assert app.theme == "dllm-dark"
        (toast,) = toasts(app)
        assert "mine.toml has a bad colour: success = 'grren'" in toast
        await pilot.press("t")
        await until(pilot, lambda: isinstance(app.screen, ThemeDialog))
        await pilot.press("down")
        await until(pilot, lambda: app.theme == "dllm-light")
        await pilot.press("escape")
        await pilot.pause()
        assert app.theme == "dllm-dark"
        await pilot.press("t", "down", "enter")
        await until(pilot, lambda: not isinstance(app.screen, ThemeDialog))
        assert app.theme == "dllm-light"


@pytest.mark.trial
async def test_every_theme_can_draw_every_pane(started: Started) -> None:
    async with started() as (pilot, app, _):
        app._load_all_themes()
        for name in app.available_themes:
            app.theme = name
            await pilot.pause()
            assert "as planned" in screen_text(app)


# --- typing to the model ----------------------------------------------------


async def test_one_key_leads_to_the_question(started: Started) -> None:
    async with started(size=(80, 24)) as (pilot, app, _):
        for pane in ("peers", "split", "live"):
            app._home.go_to(pane)
            await pilot.pause()
            assert app._home._focused_pane() == pane
            await burst(pilot, "i", "s")
            await until(pilot, lambda: isinstance(app.focused, Composer))
        await pilot.press(*"lq5")
        assert isinstance(app.focused, Composer)
        assert app.focused.text == "ssslq5"
        assert app.current_mode == "cluster"
        await resize(pilot, 120, 36)
        await until(pilot, lambda: "F6 Models" in screen_text(app))
        assert "^q quit" in screen_text(app)
        # Textual's TextArea has a use of its own for it.
        await pilot.press("f6")
        await until(pilot, lambda: app.current_mode == "models")


async def test_a_restart_leaves_the_focus_in_the_composer(started: Started) -> None:
    serving = scenes.homelab_serving()
    async with started(serving) as (pilot, app, cluster):
        app._home.go_to("chat")
        await until(pilot, lambda: isinstance(app.focused, Composer))
        composer, seq = app.query_one(Composer), serving.seq
        for state in (s for s in ClusterState if s is not ClusterState.SERVING):
            composer.clear()
            seq += 2
            cluster.push(replace(serving, seq=seq - 1, state=state))
            await until(pilot, lambda: not composer.ready)
            await pilot.press(*"quest")
            assert app.focused is composer
            assert composer.text == "quest"
            assert app.screen is app._home
            assert cluster.called("stop") == []
            await pilot.press("enter")
            cluster.push(replace(serving, seq=seq))
            await until(pilot, lambda: composer.ready)
            assert app.focused is composer
            assert composer.text == "quest"


# --- keys in a burst --------------------------------------------------------


async def test_keys_in_a_burst_do_what_they_do_one_by_one(started: Started) -> None:
    order = ("split", "live", "chat", "peers")
    async with started() as (pilot, app, _):
        for tabs in (1, 2, 3, 4, 5, 8):
            app._home.go_to("split")
            await pilot.pause()
            letters = "question" if tabs % 4 == 2 else ""
            await burst(pilot, *["tab"] * tabs, *letters)
            assert app._home._focused_pane() == order[tabs % 4]
            assert app.query_one(Composer).text == letters
            app.query_one(Composer).clear()
        app._home.go_to("peers")
        await pilot.pause()
        await burst(pilot, *"atom")
        assert isinstance(app.screen, AddPeerDialog)
        assert len(app.screen_stack) == 2
        assert app.screen.query(LineInput).first().value == "tom"
        await pilot.press("escape")
        await until(pilot, lambda: not app.screen.is_modal)
        app._home.go_to("split")
        await pilot.pause()
        await burst(pilot, *"qTm")
        assert len(app.screen_stack) == 2, "dialogs are not stacked"
        assert isinstance(app.screen, ChoiceDialog)
        await pilot.press("escape")
        await until(pilot, lambda: not app.screen.is_modal)
        # A click on a key does what the key does.
        bar = app._home.key_bar
        x = bar.lines()[0].text.index("s stop") + 1
        await pilot.click(bar, offset=(x + 1, 0))
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
