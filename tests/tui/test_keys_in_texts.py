"""Texts name the keys there are: after a remap no screen names the old ones."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from msgspec.structs import replace

import tui
from backends.config import SettingsFile
from backends.paths import user_paths
from backends.state import ClusterSnapshot
from tests.kit.console import Started
from tests.tui import peer_scenes as people
from tests.tui import scenes
from tests.tui.helpers import screen_text, settled, toasts, until
from tests.tui.scripted import ScriptedCluster
from tests.tui.snapshot_sizes import MakeApp
from tui.actions import ACTIONS, is_action, split_keys
from tui.app.app import DllmApp
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
    "failed": ("app.cluster",),
}
"""Actions that lead to a screen or a dialog."""
WITH_HELP = ("app.traffic", "app.lab", "app.logs", "app.models", "peers.add")
"""Any other dialog's help is as that of the last."""


VERBS = (
    r"l (?:launch|relaunch|tries)|m (?:model|picks)|z (?:zoom|shows)|x ends|⏎ answers"
    r"|o opens?|y copies|Esc stops|Enter sends"
)
"""Default keys before what texts say they do."""


def _default_phrases() -> str:
    """``l launch``, ``⏎ open``: default keys as the key bar writes them, and labels."""
    phrases = {
        f"{action.display or key} {action.label}"
        for action in ACTIONS
        for key in split_keys(action.keys)
        if action.label
    }
    return "|".join(map(re.escape, sorted(phrases)))


# As a word of its own, or as the beginning of some.
NOT_THEIRS = re.compile(rf"(?<![\w+])(?:(?:{_default_phrases()})\b|{VERBS})")


def asking() -> ClusterSnapshot:
    return people.here(people.MINI, people.ADA)


SCENES: dict[str, Callable[[], ClusterSnapshot]] = {
    "idle": scenes.idle,
    "peers": asking,
    "failed": scenes.demo_failed,
    "serving": scenes.homelab_serving,
}


async def test_no_screen_dialog_or_help_names_a_default_key(started: Started) -> None:
    """Every action has another key."""
    cluster, settings = ScriptedCluster(scenes.idle()), SettingsFile(user_paths())
    async with started(
        cluster, keys=ALL_ELSEWHERE, settings=settings, size=(160, 50), wait=False
    ) as (pilot, app, _):
        seen: dict[str, str] = {}

        async def press(name: str) -> None:
            await pilot.press(ALL_ELSEWHERE[name])
            await pilot.pause()

        def see(name: str) -> None:
            seen[name] = screen_text(app)

        async def leave() -> None:
            while app.screen.is_modal:
                app.pop_screen()
                await pilot.pause()

        for seq, (scene, snapshot) in enumerate(SCENES.items(), 100):
            cluster.push(replace(snapshot(), seq=seq))
            await until(pilot, lambda: taken(app) == seq)  # noqa: B023
            if scene == "peers":
                await until(pilot, lambda: app.screen.is_modal)
                see("a question")
                await leave()
            if scene == "failed":
                await settled(pilot)
            for pane in ("peers", "live", "chat", "split"):
                app._home.go_to(pane)
                await pilot.pause()
                see(f"{scene}, {pane}")
                if scene == "idle":
                    await press("app.help")
                    await until(pilot, lambda: isinstance(app.screen, HelpDialog))
                    see(f"help of {pane}")
                    await leave()
            if scene in ("serving", "failed"):
                await press("app.zoom")
                see(f"{scene}, zoomed")
                await press("app.zoom")
                await press("split.less")
                see(f"{scene}, edited")
            for name in PLACES[scene]:
                await press("app.cluster")
                if name.startswith("peers"):
                    app._home.go_to("peers")
                    await pilot.pause()
                await press(name)
                if name not in SCREENS:
                    await until(pilot, lambda: app.screen.is_modal)
                    await pilot.pause()
                see(f"{scene}, {name}")
                if name in WITH_HELP:
                    await press("dialogs.help" if app.screen.is_modal else "app.help")
                    await until(pilot, lambda: isinstance(app.screen, HelpDialog))
                    see(f"{scene}, help of {name}")
                await leave()
            await press("app.cluster")
            shown = [seen[f"{scene}, {name}"] for name in PLACES[scene]]
            assert len(set(shown)) == len(shown), "each key leads somewhere else"
            if scene == "idle":
                await press("cluster.launch")
                await until(pilot, lambda: toasts(app))
                picks = ALL_ELSEWHERE["cluster.model"]
                assert toasts(app) == [f"Pick a model first: {picks}"]
    found = {
        name: [match[0] for match in NOT_THEIRS.finditer(text)]
        for name, text in seen.items()
    }
    assert not any(found.values()), found
    raw = {n: re.findall(r".*\{[a-z]+\.[a-z_]+.*", text) for n, text in seen.items()}
    assert not any(raw.values()), raw
    for name, key, says in (
        ("idle, split", "cluster.model", "picks"),
        ("failed, live", "app.copy", "copies all this"),
        ("help of peers", "cluster.launch", "launches"),
    ):
        assert f"{ALL_ELSEWHERE[key]} {says}" in seen[name]


def taken(app: DllmApp) -> int | None:
    return app.editor.snapshot.seq if app.editor.snapshot else None


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


@cache
def texts_of_the_console() -> list[tuple[str, int, str]]:
    folder = Path(*tui.__path__)
    files = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*.py")}
    return [
        (name, line, said)
        for name, file in sorted(files.items())
        if not name.startswith(("cli/", "actions.py"))
        for line, said in _texts(file)
    ]


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
