"""The settings of config.toml in the console: found, changed, refused, followed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from backends.config import Config, SettingsFile, load_config
from backends.errors import DllmError
from backends.paths import Paths
from tests.tui import peer_scenes as people
from tests.tui import scenes
from tests.tui.helpers import resize, screen_text, settled, toasts, until
from tests.tui.peering import on_peers
from tests.tui.scripted import ScriptedCluster
from tests.tui.snapshot_sizes import MakeApp
from tui.app.app import DllmApp
from tui.dialogs.dialog import LineDialog
from tui.dialogs.help_and_events import HelpDialog
from tui.dialogs.settings import SettingsDialog

SIZE = (120, 36)
GIVEN = """\
# mine
workers = 3  # as many as cores

[keys]
"cluster.launch" = "f9"
"""


@pytest.fixture
def paths(paths: Paths) -> Paths:
    paths.config_dir.mkdir()
    paths.config_file.write_text(GIVEN)
    return paths


@pytest.fixture
def app(make_app: MakeApp, paths: Paths) -> DllmApp:
    """A console with these settings."""
    config = load_config(paths)
    cluster = ScriptedCluster(scenes.idle())
    return make_app(
        cluster,
        initial_model=scenes.DEMO.path,
        keys=config.keys,
        settings=SettingsFile(paths),
    )


async def opened(pilot: Pilot[None]) -> SettingsDialog:
    await settled(pilot)
    await pilot.press("comma")
    await until(pilot, lambda: isinstance(pilot.app.screen, SettingsDialog))
    assert isinstance(pilot.app.screen, SettingsDialog)
    return pilot.app.screen


async def found(pilot: Pilot[None], name: str) -> None:
    dialog = pilot.app.screen
    assert isinstance(dialog, SettingsDialog)
    dialog.query_one("#settings-find", Input).value = name
    await until(pilot, lambda: dialog.selected and dialog.selected.name == name)


async def put(pilot: Pilot[None], name: str, text: str) -> None:
    await found(pilot, name)
    await pilot.press("enter")
    pilot.app.screen.query_one("#settings-text", Input).value = text
    await pilot.press("enter")


def done(app: DllmApp, name: str) -> Callable[[], bool]:
    return lambda: f"{name} is set" in screen_text(app)


async def test_a_setting_is_written_or_refused_and_comments_stay(
    app: DllmApp, paths: Paths
) -> None:
    cluster = app.cluster
    assert isinstance(cluster, ScriptedCluster)
    async with app.run_test(size=SIZE) as pilot:
        dialog = await opened(pilot)
        shown = screen_text(app)
        assert "workers                        3" in shown
        assert "config.toml:2" in shown
        for name, text, sentence in (
            ("workers", "99", "workers cannot be 99. Allowed: a number, 1 to 15"),
            ("workers", "many", "workers cannot be 'many'"),
            ("theme", "nope", "There is no theme nope"),
            ("keys.cluster.stop", "f9", "gives f9 to cluster.launch"),
        ):
            await put(pilot, name, text)
            await until(pilot, lambda said=sentence: said in screen_text(app))  # type: ignore[misc]
            assert dialog.focused is dialog.query_one("#settings-text")
            await pilot.press("escape")
        assert paths.config_file.read_text() == GIVEN
        await put(pilot, "ctx_size", "8192")
        await until(pilot, done(app, "ctx_size"))
        assert "takes effect for the next model picked" in screen_text(app)
        assert len(cluster.called("settings_taken")) == 1
        cluster.errors["settings_taken"] = DllmError("It did not answer within 5 s")
        await put(pilot, "workers", "4")
        await until(pilot, done(app, "workers"))
        assert load_config(paths).ctx_size == 8192
        text = paths.config_file.read_text()
        assert text.startswith("# mine\nworkers = 4  # as many as cores\n")
        await until(pilot, lambda: toasts(app))
        assert "has not applied this yet: It did not answer" in toasts(app)[-1]
        await put(pilot, "workers", "")
        await until(pilot, lambda: "workers is at its default" in screen_text(app))
        assert load_config(paths).workers == 2
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is not dialog)


async def test_theme_and_keys_count_at_once(app: DllmApp, paths: Paths) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        await put(pilot, "theme", "dllm-light")
        await until(pilot, done(app, "theme"))
        assert app.theme == "dllm-light"
        await put(pilot, "keys.cluster.balance", "f11")
        await until(pilot, done(app, "keys.cluster.balance"))
        await put(pilot, "keys.cluster.launch", "")
        await until(pilot, lambda: "launch is at its default" in screen_text(app))
        assert load_config(paths).keys == {"cluster.balance": "f11"}
        await pilot.press("escape")
        assert app.editor.plan is not None
        given = app.editor.plan.split
        app.editor.move(1, 3)
        app.show_edit()
        await pilot.press("b")
        assert app.editor.plan.split != given
        await pilot.press("f11")
        assert app.editor.plan.split == given
        cluster = app.cluster
        assert isinstance(cluster, ScriptedCluster)
        await pilot.press("f9")
        assert not cluster.called("launch")
        await pilot.press("l")
        await until(pilot, lambda: cluster.called("launch"))


def row(setting: str) -> int:
    return Config.__struct_fields__.index(setting)


async def test_the_mouse_picks_and_help_is_at_hand(app: DllmApp) -> None:
    async with app.run_test(size=SIZE) as pilot:
        dialog = await opened(pilot)
        assert await pilot.click("OptionList", offset=(4, row("ctx_size")))
        await until(pilot, lambda: dialog.query_one("#settings-text").has_focus)
        assert dialog.selected is not None
        assert dialog.selected.name == "ctx_size"
        await pilot.press("escape", "question_mark")
        await until(pilot, lambda: isinstance(app.screen, HelpDialog))
        assert "Settings" in screen_text(app)
        await pilot.press("escape", "down")
        assert dialog.selected.name == Config.__struct_fields__[row("ctx_size") + 1]
        await resize(pilot, 60, 18)
        field = dialog.query_one("#settings-text")
        assert dialog.region.contains_region(field.region)
        assert field.region.height == 1


async def test_a_file_with_a_slip_is_told_of(app: DllmApp, paths: Paths) -> None:
    paths.config_file.write_text("workers = 'x'\n")
    async with app.run_test(size=SIZE) as pilot:
        await settled(pilot)
        await pilot.press("comma")
        await until(pilot, lambda: toasts(app))
        assert "line 1: workers cannot be 'x'" in toasts(app)[-1]
        assert not isinstance(app.screen, SettingsDialog)


async def test_how_data_go_to_a_peer_is_set_from_the_peers(
    make_app: MakeApp, paths: Paths
) -> None:
    paths.config_file.write_text('[peers.ada]\nssh = "ada@ada.lan"  # mine\n')
    cluster = ScriptedCluster(people.here(people.ADA))
    app = make_app(cluster, settings=SettingsFile(paths))

    async def chosen(pilot: Pilot[None], text: str, before: str) -> None:
        await pilot.press("d")
        await until(pilot, lambda: isinstance(app.screen, LineDialog))
        field = app.screen.query_one(Input)
        assert field.value == before
        field.value = text
        await pilot.press("enter")

    async with app.run_test(size=SIZE) as pilot:
        await on_peers(pilot)
        await pilot.press("G")
        await chosen(pilot, "10.0.0.7:50060", before="auto")
        await until(pilot, lambda: cluster.called("settings_taken"))
        assert load_config(paths).peers["ada"].data == "10.0.0.7:50060"
        assert "# mine" in paths.config_file.read_text()
        await until(pilot, lambda: "by 10.0.0.7:50060: the peer" in toasts(app)[-1])
        await chosen(pilot, "127.0.0.1", before="10.0.0.7:50060")
        await until(pilot, lambda: "a loopback address" in toasts(app)[-1])
        assert load_config(paths).peers["ada"].data == "10.0.0.7:50060"
        # It can be taken back though the peer, in use, goes by "auto" all the time.
        await chosen(pilot, "auto", before="10.0.0.7:50060")
        await until(pilot, lambda: load_config(paths).peers["ada"].data == "auto")


async def test_a_dialog_closed_during_a_change_does_not_break_it_off(
    app: DllmApp, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = app.cluster
    assert isinstance(cluster, ScriptedCluster)
    writing, change = threading.Event(), SettingsFile.change

    def slow(*args: Any) -> None:
        writing.wait()
        change(*args)

    monkeypatch.setattr(SettingsFile, "change", slow)
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        await put(pilot, "theme", "dllm-light")
        await pilot.press("escape", "escape")
        await until(pilot, lambda: not isinstance(app.screen, SettingsDialog))
        writing.set()
        await until(pilot, lambda: app.theme == "dllm-light")
        await until(pilot, lambda: cluster.called("settings_taken"))
