"""Texts name the keys there are: after a remap no screen names the old ones."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tui
from backends.config import SettingsFile
from backends.paths import user_paths
from backends.state import ClusterSnapshot
from tests.kit.console import Started
from tests.tui import peer_scenes as people
from tests.tui import scenes
from tests.tui.helpers import screen_text, settled, toasts, until
from tests.tui.looks import MakeApp
from tests.tui.scripted import ScriptedCluster
from tui.actions import ACTIONS, is_action, split_keys
from tui.dialogs.help_and_events import HelpDialog
from tui.widgets.keys import with_keys

A_KEY = re.compile(
    r"(?<![\w{.])(?:Enter|Esc|Tab|Home|End|PgUp|PgDn|F\d{1,2}|[Cc]trl\+\w+|[Ss]hift\+\S+)"
    r"(?![\w}])|[↑↓←→⏎] (?=[a-z])|[↑↓←→⏎] ?[↑↓←→]"
    r"|^(?:enter|esc)$|[Pp]ress [`*]*\S[`*]*(?=[\s,.])|\*\*\S\*\*|`[\w=/:?+<>\[\]-]`"
    r"|(?<![\w'’.{(/-])[b-zA-Z=/:?] (?=(?:launch|pick|set|save|bring|find|put)e?s\b)"
)
"""How a text would name a key: by its name, as code or strong, or before a verb."""
NO_KEYS = {
    # The text field's own key, which no configuration changes.
    "dialogs/sampling.py": ("Enter",),
    "dialogs/settings.py": ("Enter",),
    "screens/models/search.py": ("Enter",),
    # Signs, not keys.
    "screens/cluster/peers_pane.py": ("`?`",),
    "app/console.py": ("→←", "↑↓", "⏎›"),
    # How keys are written, whichever they are.
    "widgets/keys.py": ("Esc", "Enter", "enter"),
    # The event's own name of it.
    "screens/cluster/chat_pane.py": ("enter",),
}
ALL_ELSEWHERE = {action.id: f"f{number}" for number, action in enumerate(ACTIONS, 20)}
SCREENS = ("app.cluster", "app.traffic", "app.lab", "app.logs", "app.models")
PLACES = {
    "serving": (
        *SCREENS,
        *("cluster.stop", "cluster.settings", "cluster.model", "app.settings"),
        *("app.theme", "app.events", "app.quit", "app.palette"),
    ),
    "idle": ("app.cluster", "app.traffic", "app.lab", "app.logs"),
    "peers": ("peers.add", "peers.open"),
}
"""Actions that lead to a screen or a dialog."""


def _default_phrases() -> str:
    """``l launch``, ``⏎ open``: default keys as the key bar writes them, and labels."""
    phrases = {
        f"{action.display or key} {action.label}"
        for action in ACTIONS
        for key in split_keys(action.keys)
        if action.label
    }
    return "|".join(map(re.escape, sorted(phrases)))


DEFAULT_KEYS = re.compile(rf"(?<![\w+])(?:{_default_phrases()})\b")
REMAPPED = {
    "cluster.launch": "f10",
    "cluster.model": "f8",
    "cluster.stop": "f9",
    "app.zoom": "f10",
    "split.undo": "f12",
    "peers.provision": "P",
    "peers.cancel": "X",
    "peers.open": "O",
    "live.log": "L",
    "app.copy": "Y",
    "app.quit": "Q",
    "chat.stop": "ctrl+e",
    "composer.send": "ctrl+r",
}
# The old key before what it did, as a word of its own.
OLD = re.compile(
    r"(?<![\w+])(?:l (?:launch|relaunch|tries)|m (?:model|picks)|s stop"
    r"|z (?:zoom|shows)"
    r"|u undo|p provision|x ends|⏎ answers|o opens? |y copies|q quit|Esc stops"
    r"|Enter sends)"
)


def failed() -> ClusterSnapshot:
    return scenes.demo_failed()


def asking() -> ClusterSnapshot:
    return people.here(people.MINI, people.ADA)


SCENES: dict[str, Callable[[], ClusterSnapshot]] = {
    "serving": scenes.homelab_serving,
    "idle": scenes.idle,
    "failed": failed,
    "peers": asking,
}


@pytest.mark.parametrize("scene", SCENES)
async def test_no_screen_names_an_old_key(started: Started, scene: str) -> None:
    running = started(SCENES[scene](), keys=REMAPPED, size=(160, 40), wait=False)
    async with running as (pilot, app, _):
        await until(pilot, lambda: app.editor.snapshot is not None)
        await pilot.pause()
        seen = [screen_text(app)]
        if scene in ("serving", "failed"):
            await settled(pilot)
            await pilot.press("left")
            seen.append(screen_text(app))
        for pane in ("peers", "live", "chat"):
            app._home.go_to(pane)
            await pilot.pause()
            seen.append(screen_text(app))
        await pilot.press("f10")
        await pilot.pause()
        seen.append(screen_text(app))
        found = [match[0] for text in seen for match in OLD.finditer(text)]
        assert found == []
        if scene == "idle":
            assert "F8 picks" in seen[0]
        if scene == "failed":
            assert "Y copies all this" in seen[0]


async def test_toasts_and_help_name_the_users_keys(started: Started) -> None:
    running = started(scenes.idle(), keys=REMAPPED, size=(120, 40), wait=False)
    async with running as (pilot, app, _):
        await until(pilot, lambda: app.editor.snapshot is not None)
        await pilot.press("f10")
        await until(pilot, lambda: "Pick a model first: F8" in toasts(app))
        app._home.go_to("peers")
        await pilot.pause()
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, HelpDialog))
        await until(pilot, lambda: "F10 launches" in screen_text(app))


async def test_an_action_without_a_key_is_found_by_its_name(make_app: MakeApp) -> None:
    app = make_app(keys={"cluster.model": ""})
    assert with_keys(app, "pick: {cluster.model}") == "pick: : model"
    assert with_keys(app, "{split.set:or} sets") == "= or Enter sets"
    assert with_keys(app, "{peers.open:short}, {not.there}") == "⏎, {not.there}"


def test_every_action_a_text_names_is_there() -> None:
    named = [
        (file, text)
        for file, _, said in texts_of_the_console()
        for text in re.findall(r"\{+([a-z]+\.[a-z_]+)(?::\w+)?\}+", said)
    ]
    assert len(named) > 60
    assert [one for one in named if not is_action(one[1])] == []


def test_no_text_names_a_key_itself() -> None:
    """Keys in texts come from the keymap; those of a widget of Textual's stay."""
    found = [
        f"{file}:{line}: {match[0]}"
        for file, line, said in texts_of_the_console()
        for match in A_KEY.finditer(said)
        if match[0] not in NO_KEYS.get(file, ())
    ]
    assert found == []


@pytest.mark.parametrize("scene", ["serving", "idle", "peers"])
async def test_screens_and_dialogs_name_the_users_keys(
    started: Started, scene: str
) -> None:
    """Every action has another key: no screen, dialog or help names a default one."""
    cluster, settings = ScriptedCluster(SCENES[scene]()), SettingsFile(user_paths())
    async with started(
        cluster, keys=ALL_ELSEWHERE, settings=settings, size=(160, 50), wait=False
    ) as (pilot, app, _):
        await until(pilot, lambda: app.editor.snapshot is not None)
        seen = {}
        for name in PLACES[scene]:
            await pilot.press(ALL_ELSEWHERE["app.cluster"])
            if name.startswith("peers"):
                app._home.go_to("peers")
                await pilot.pause()
            await pilot.press(ALL_ELSEWHERE[name])
            if name not in SCREENS:
                await until(pilot, lambda: app.screen.is_modal)
            await pilot.pause()
            seen[name] = screen_text(app)
            asks = "dialogs.help" if app.screen.is_modal else "app.help"
            await pilot.press(ALL_ELSEWHERE[asks])
            await until(pilot, lambda: isinstance(app.screen, HelpDialog))
            seen[f"help of {name}"] = screen_text(app)
            while app.screen.is_modal:
                app.pop_screen()
                await pilot.pause()
        shown = [seen[name] for name in PLACES[scene]]
        assert len(set(shown)) == len(shown), "each key leads somewhere else"
    found = {
        name: [match[0] for match in DEFAULT_KEYS.finditer(text)]
        for name, text in seen.items()
    }
    assert not any(found.values()), found
    raw = {n: re.findall(r".*\{[a-z]+\.[a-z_]+.*", text) for n, text in seen.items()}
    assert not any(raw.values()), raw


def texts_of_the_console() -> Iterator[tuple[str, int, str]]:
    folder = Path(*tui.__path__)
    for file in sorted(folder.rglob("*.py")):
        name = file.relative_to(folder).as_posix()
        if not name.startswith(("cli/", "actions.py")):
            yield from ((name, line, said) for line, said in _texts(file))


def _texts(file: Path) -> Iterator[tuple[int, str]]:
    tree = ast.parse(file.read_text())
    silent: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            silent.add(node.value)
        if isinstance(node, ast.Assign) and "CSS" in ast.unparse(node.targets[0]):
            silent.add(node.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node not in silent:
            yield node.lineno, str(node.value)
