"""``:`` finds everything by name, takes one there, and keeps up with typing."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from backends.config import SettingsFile
from backends.paths import Paths
from backends.state import ModelCatalogue, ModelFile
from tests.kit.console import Started
from tests.tui import scenes
from tests.tui.helpers import in_front, screen_text, toasts, until, wheel_down
from tests.tui.scripted import ScriptedCluster
from tui import actions
from tui.actions import ACTIONS
from tui.app.app import DllmApp
from tui.dialogs.peers import PeerDialog
from tui.dialogs.pick import NOTHING, PERHAPS, FinderDialog, FoundList
from tui.dialogs.settings import SettingsDialog
from tui.model.finding import Entry, found, near
from tui.screens.logs.screen import LogsScreen


async def find(pilot: Pilot[None], text: str) -> FinderDialog:
    """Open the finder and type."""
    await pilot.press("colon")
    dialog = await in_front(pilot, FinderDialog)
    await until(pilot, lambda: dialog.input.has_focus)
    await pilot.press(*typed(text))
    return dialog


def typed(text: str) -> list[str]:
    names = {" ": "space", ":": "colon", "-": "minus", "_": "underscore"}
    return [names.get(letter, letter) for letter in text]


def entry(name: str) -> Entry:
    return Entry("model", name, lambda: None)


# --- matching ------------------------------------------------------------------


def test_the_best_match_comes_first() -> None:
    names = ["Chat: stop", "stop", "Split: set", "unstoppable", "Stop the music"]
    ranked = [one.name for one in found("stop", [entry(name) for name in names])]
    assert ranked[0] == "stop"
    assert ranked[1] == "Stop the music"
    assert set(ranked) == set(names) - {"Split: set"}


def test_every_word_must_be_somewhere() -> None:
    entries = [entry("GLM-4.7-Flash-Q4_K_M"), entry("GLM-4.7-Flash-Q8_0")]
    assert [one.name for one in found("q8 glm", entries)] == ["GLM-4.7-Flash-Q8_0"]
    assert found("glm q5", entries) == []


def test_what_nothing_has_may_be_meant_otherwise() -> None:
    entries = [entry("Launch"), entry("Theme"), entry("Balance")]
    assert found("lanuch", entries) == []
    assert [one.name for one in near("lanuch", entries)] == ["Launch"]
    assert near("zzz", entries) == []
    assert near("", entries) == []


def test_a_pathological_name_costs_no_more_than_another() -> None:
    assert [e.name for e in found("a" * 20 + "b", [entry("ab" * 40)])] == ["ab" * 40]


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("temperature", "app.machines"),
        ("quant", "models.get"),
        ("quant", "cluster.model"),
        ("draft", "cluster.settings"),
    ],
)
def test_things_are_found_by_the_words_of_their_users(word: str, wanted: str) -> None:
    offered = [Entry("action", a.label, a.id.split, a.tooltip) for a in ACTIONS]
    ids = {a.tooltip: a.id for a in ACTIONS}
    assert wanted in {ids[one.detail] for one in found(word, offered)}


# --- in the console ---------------------------------------------------------------


def test_every_action_has_a_place_or_belongs_to_a_dialog() -> None:
    dialogs = {
        *("chats", "settings", "path"),
        *("sampling", "choice", "dialog", "dialogs", "adding", "tick", "picker"),
        *("launching", "option", "best", "plans", "racing", "race"),
        *("finder", "reading", "events", "evidence", "filter"),
        # A text to search, wherever it is.
        *("json", "raw", "search"),
        # Of a border being dragged.
        "panes",
        "jumping",
        # The keys of a console that replays a record, and of no other.
        "replay",
    }
    assert not dialogs & set(actions.PLACES)
    assert {action.area for action in ACTIONS} <= dialogs | set(actions.PLACES)


async def test_actions_run_or_say_that_they_cannot(started: Started) -> None:
    async with started() as (pilot, app, _):
        bar = app._home.split.bar
        await find(pilot, "balance")
        await pilot.press("enter")
        await until(pilot, lambda: bar.edit and bar.edit.counts == (34, 7, 7))
        await find(pilot, "models: reverse")
        await pilot.press("enter")
        await until(pilot, lambda: app.current_mode == "models")
        await find(pilot, "split: one less")
        await pilot.press("enter")
        await until(pilot, lambda: bar.edit and bar.edit.counts == (33, 8, 7))
        assert app.current_mode == "cluster"
        await find(pilot, "chat: stop")
        await pilot.press("enter")
        await until(pilot, lambda: toasts(app))
        assert "Chat: stop cannot be done now" in toasts(app)[-1]


async def test_keys_are_those_of_the_user(started: Started) -> None:
    running = started(keys={"cluster.launch": "f9", "app.palette": "semicolon"})
    async with running as (pilot, app, _):
        await pilot.press("semicolon")
        await until(pilot, lambda: isinstance(app.screen, FinderDialog))
        await pilot.press(*"launch")
        await until(pilot, lambda: "▸ action" in screen_text(app))
        row = next(line for line in screen_text(app).splitlines() if "▸" in line)
        assert "Launch" in row
        assert "F9 │" in row


def selected(app: DllmApp) -> str:
    assert isinstance(app.screen, SettingsDialog)
    setting = app.screen.selected
    return setting.name if setting else ""


async def test_a_peer_a_log_a_theme_and_a_setting(
    started: Started, paths: Paths
) -> None:
    async with started(settings=SettingsFile(paths)) as (pilot, app, _):
        await find(pilot, "peer mini")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, PeerDialog))
        await pilot.press("escape")
        await find(pilot, "theme light")
        await pilot.press("enter")
        await until(pilot, lambda: app.theme == "dllm-light")
        await find(pilot, "ctx_size")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, SettingsDialog))
        await until(pilot, lambda: selected(app) == "ctx_size")
        await pilot.press("escape")
        await find(pilot, "log server")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, LogsScreen))


async def test_the_wheel_goes_through_what_was_found(started: Started) -> None:
    async with started() as (pilot, app, _):
        dialog = await find(pilot, "")
        await until(pilot, lambda: dialog._entries[-1].kind == "model")
        listed = app.screen.query_one(FoundList)
        for _ in range(8):
            await wheel_down(pilot, listed)
        await until(pilot, lambda: listed.selected == 24)
        meant = listed.rows[24]
        await until(pilot, lambda: meant.name in screen_text(app))
        dialog.add([entry("[bold]\x1b]0;x\x07[/nope]")])
        assert listed.chosen is meant, "it stays when more come"
        await pilot.press(*"bold")
        await until(pilot, lambda: "[bold][/nope]" in screen_text(app))


async def test_one_of_five_thousand_models_goes_to_the_split(started: Started) -> None:
    cluster = ScriptedCluster(scenes.homelab_serving())
    demo = ModelFile(path=scenes.DEMO.path, name="demo", size_bytes=1, source="models")
    files = tuple(
        replace(demo, path=f"/m/{n:05}-{'q' * 48}.gguf", name=f"model-{n:05}")
        for n in range(5000)
    )

    async def catalogue(*, refresh: bool = False) -> ModelCatalogue:
        models = (*files, demo)
        return ModelCatalogue(models=models, folders=("/m",), scanned_at=scenes.NOW)

    cluster.catalogue = catalogue  # type: ignore[method-assign]
    async with started(cluster) as (pilot, app, _):
        await pilot.press("6")
        await until(pilot, lambda: app.current_mode == "models")
        dialog = await find(pilot, "")
        await until(pilot, lambda: len(dialog._entries) > 5000)
        await pilot.press(*"04999")
        await until(pilot, lambda: "model-04999" in screen_text(app))
        dialog.input.value = "lanuch"
        await until(pilot, lambda: PERHAPS in screen_text(app))
        assert "Launch" in screen_text(app)
        dialog.input.value = "zzzzzzzz"
        await until(pilot, lambda: NOTHING in screen_text(app))
        await pilot.press("enter")
        assert app.screen is dialog, "there is nothing to go to"
        dialog.input.value = "model demo"
        await until(pilot, lambda: "▸ model" in screen_text(app))
        await pilot.press("enter")
        path = scenes.DEMO.path
        await until(pilot, lambda: app.editor.plan and app.editor.plan.model == path)
        assert app.current_mode == "cluster"
