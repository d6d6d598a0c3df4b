"""Every dialog: it has help on its own keys, and no key reaches what is behind it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest
from rich.cells import cell_len
from textual.events import Key
from textual.keys import key_to_character
from textual.pilot import Pilot
from textual.screen import ModalScreen
from textual.widgets import OptionList

import tui
from backends.config import Setting
from backends.state import EventTone, Sampling
from backends.state.races import Contestant, Race, RaceRequest
from tests.kit.console import Started
from tests.tui import peer_scenes as people
from tests.tui import scenes
from tests.tui.helpers import screen_text, settled, text_of, until
from tests.tui.scripted import ScriptedCluster
from tui import actions
from tui.actions import ACTIONS, split_keys
from tui.app.app import DllmApp
from tui.app.frame import KeyBar
from tui.app.messages import LogWanted, Raw
from tui.dialogs.add_peer import AddPeerDialog
from tui.dialogs.dialog import Dialog, LineDialog, confirm
from tui.dialogs.help_and_events import (
    EventsDialog,
    EvidenceDialog,
    HelpDialog,
    RawDialog,
    WholeLineDialog,
    keys_of,
)
from tui.dialogs.invite import InviteDialog
from tui.dialogs.jump import JumpDialog
from tui.dialogs.menu import MenuDialog
from tui.dialogs.peers import HostKeyDialog, PeerDialog, SecretDialog
from tui.dialogs.pick import ChatsDialog, FinderDialog, PlansDialog, ThemeDialog
from tui.dialogs.sampling import ChatSettings, SamplingDialog
from tui.dialogs.settings import SettingsDialog
from tui.model.edit import Edit
from tui.model.events import Happening
from tui.model.launch_form import LaunchForm
from tui.screens.cluster.best_dialog import BestDialog
from tui.screens.cluster.launch_dialog import LaunchDialog
from tui.screens.cluster.race_dialog import RaceDialog, RaceSetup
from tui.screens.machines.table import ProcessDialog
from tui.screens.models.picker import ModelPicker
from tui.screens.models.screen import QuantsDialog

SIZE = (120, 40)
HAPPENING = Happening(scenes.NOW, EventTone.INFORMATION, "It happened")


async def no_change(name: str, text: str | None) -> list[Setting]:
    return []


RACE = RaceRequest(contestants=(Contestant(name="now"), Contestant(name="best")))
DIALOGS: dict[str, Callable[[DllmApp], Dialog[Any]]] = {
    "add": lambda app: AddPeerDialog(app.cluster),
    "best": lambda app: BestDialog(app.editor, app.cluster, edit(app)),
    "chats": lambda app: ChatsDialog([], "", "default", scenes.NOW),
    "choice": lambda app: confirm("Stop?", "It ends.", "Stop it", "z"),
    "events": lambda app: EventsDialog(app.event_log, app.clock),
    "evidence": lambda app: EvidenceDialog(HAPPENING),
    "finder": lambda app: FinderDialog([]),
    "help": lambda app: HelpDialog(app.screen),
    "host key": lambda app: HostKeyDialog(people.MINI, people.HOST_KEY),
    "invite": lambda app: InviteDialog(app.cluster, (), app.clock),
    "jump": lambda app: JumpDialog([], app.size),
    "launch": lambda app: LaunchDialog(app.editor, app.cluster, launch_form(app)),
    "log line": lambda _: WholeLineDialog("worker1", "Starting RPC server"),
    "line": lambda app: LineDialog("Name", "", "a name", ""),
    "menu": lambda app: MenuDialog(app.screen, []),
    "model": lambda app: ModelPicker(app.cluster),
    "peer": lambda app: PeerDialog(people.MINI, app.clock),
    "plans": lambda app: PlansDialog([], [], None, scenes.NOW),
    "process": lambda app: ProcessDialog(
        scenes.demo_serving().processes[0], [], [], scenes.NOW
    ),
    "quants": lambda app: QuantsDialog(app.cluster, "owner/name"),
    "raw json": lambda app: RawDialog(Raw("peer mini", people.MINI), "{}"),
    "race": lambda _: RaceDialog(
        Race.of(RACE), ScriptedCluster().race(RACE), serves=True
    ),
    "race setup": lambda _: RaceSetup(RACE.contestants, serves=True),
    "sampling": lambda app: SamplingDialog(ChatSettings("", Sampling())),
    "secret": lambda app: SecretDialog(people.MINI, people.PASSWORD),
    "settings": lambda app: SettingsDialog("config.toml", [], no_change),
    "theme": lambda app: ThemeDialog(app.theme_names, app.theme),
}


def edit(app: DllmApp) -> Edit:
    assert app.editor.edit is not None
    return app.editor.edit


def launch_form(app: DllmApp) -> LaunchForm:
    assert app.editor.plan is not None
    assert app.editor.model is not None
    return LaunchForm(app.editor.plan, app.editor.model, "/")


BEHIND = tuple(action for action in ACTIONS if action.area in actions.PLACES)
EVERYWHERE = {
    key for action in BEHIND if action.area == "app" for key in split_keys(action.keys)
}
# What a dialog takes for itself, whatever it is, and what copies a selection.
TEXT_KEYS = {"enter", "ctrl+j", "shift+enter", "ctrl+c", "delete", "backspace"}


def all_dialogs(kind: type[ModalScreen[Any]]) -> set[type[object]]:
    below = set(kind.__subclasses__())
    return below.union(*map(all_dialogs, below))


def all_of_ours() -> set[type[object]]:
    for module in pkgutil.walk_packages(tui.__path__, "tui."):
        importlib.import_module(module.name)
    return {
        kind
        for kind in all_dialogs(ModalScreen)
        if kind.__module__.startswith("tui.") and not all_dialogs(kind)  # type: ignore[arg-type]
    }


async def opened(pilot: Pilot[None], name: str) -> Dialog[Any]:
    """A dialog, in front of everything."""
    app = pilot.app
    assert isinstance(app, DllmApp)
    dialog = DIALOGS[name](app)
    app.push_screen(dialog)
    await until(pilot, lambda: dialog.is_mounted and app.screen is dialog)
    await pilot.pause()
    return dialog


@pytest.mark.parametrize("parts", [5, pytest.param(1, marks=pytest.mark.trial)])
async def test_dialogs_have_help_and_keep_all_keys(
    started: Started, parts: int
) -> None:
    """Of the keys of panes, each dialog is tried with one part."""
    async with started(size=SIZE) as (pilot, app, _):
        base = app.screen
        focused, before = base.focused, app.editor.plan
        keys, kinds = cycle(("question_mark", "f1")), set[type[object]]()
        for at, name in enumerate(DIALOGS):
            dialog = await opened(pilot, name)
            kinds.add(type(dialog))
            asked = acted(app)
            for number, key in enumerate(sorted(foreign_keys(dialog, name))):
                if key in EVERYWHERE or (number + at) % parts == 0:
                    app.post_message(Key(key, key_to_character(key)))
            await pilot.pause()
            assert app.current_mode == "cluster", name
            assert app.screen_stack == [base, dialog], name
            assert base.focused is focused, name
            assert acted(app) == asked, name
            assert app.editor.plan == before, name
            if name != "help":
                await helps(pilot, dialog, name, "f1" if dialog.TYPING else next(keys))
            await pilot.press("escape")
            await until(pilot, lambda: app.screen is base)
        assert kinds == all_of_ours(), "one that is new stands in DIALOGS, too"
        assert len(kinds) == len(DIALOGS)


async def helps(pilot: Pilot[None], dialog: Dialog[Any], name: str, key: str) -> None:
    """See that a dialog has help, and what it tells."""
    app = pilot.app
    own: dict[str, str] = {}
    for active in dialog.active_bindings.values():
        if active.binding.id and active.enabled:
            own.setdefault(active.binding.action, active.binding.tooltip)
    await pilot.press(key)
    await until(pilot, lambda: isinstance(app.screen, HelpDialog))
    assert isinstance(app.screen, HelpDialog)
    assert app.screen._about is dialog
    told = [text for _, text in keys_of(dialog)]
    assert set(own.values()) <= set(told), name
    assert "Run the split as it is shown" not in told, name
    await pilot.press(key)
    await until(pilot, lambda: app.screen is dialog)
    hint = "F1 help" if dialog.TYPING else "? help"
    assert hint in screen_text(app), name


def acted(app: DllmApp) -> list[str]:
    calls = app.cluster.calls  # type: ignore[attr-defined]
    by_themselves = ("memory", "propose", "joined_peer")
    return [name for name, _ in calls if name not in by_themselves]


def foreign_keys(dialog: Dialog[Any], name: str) -> set[str]:
    active = dialog.active_bindings.items()
    own = {key for key, binding in active if binding.binding.id}
    answers = {"n", "z", "y"} if name in ("choice", "host key") else set()
    keys = {key for action in BEHIND for key in split_keys(action.keys)}
    return keys - own - answers - TEXT_KEYS


async def test_the_keys_behind_a_dialog_stay_as_they_are(started: Started) -> None:
    async with started(size=SIZE) as (pilot, app, cluster):
        behind = app.screen
        before = text_of(behind.query_one(KeyBar))
        assert "quit" in before
        await pilot.press("q")
        await until(pilot, lambda: app.screen is not behind)
        behind.refresh_bindings()
        await settled(pilot)
        assert text_of(behind.query_one(KeyBar)) == before
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is behind)
        await pilot.press("3")
        await until(pilot, lambda: "median" in text_of(app.screen.query_one(KeyBar)))
        await pilot.press("1", "q")
        await until(pilot, lambda: "Leave it running" in screen_text(app))
        await pilot.press("f5", "q", "f3")
        assert app.current_mode == "cluster"
        await pilot.press("s")
        await until(pilot, lambda: cluster.called("shutdown"))


def test_what_a_dialog_lets_through_is_little() -> None:
    through = {
        action.id
        for action in ACTIONS
        # Those of a replay let the dialog have its keys, see ``ReplayApp``.
        if action.action.startswith("app.")
        and action.area != "replay"
        and action.action.removeprefix("app.").partition("(")[0]
        not in actions.SCREEN_ACTIONS
    }
    assert through == {
        *("app.help", "app.copy", "app.interrupt", "dialogs.help", "reading.copy"),
        *("launching.up", "launching.down"),
        *("app.raw", "json.show", "raw.copy", "race.copy"),
        *("app.jump", "dialogs.jump"),
        *("app.menu", "dialogs.menu"),
    }


async def test_a_click_on_a_key_in_the_frame_presses_it(started: Started) -> None:
    """With the mouse alone every dialog can be left, and asked for help."""
    async with started() as (pilot, app, _):
        await pilot.press("e")
        await until(pilot, lambda: isinstance(app.screen, EventsDialog))
        await pilot.click(offset=_shown_at(app, "? help"))
        await until(pilot, lambda: isinstance(app.screen, HelpDialog))
        await pilot.click(offset=_shown_at(app, "esc closes"))
        await until(pilot, lambda: isinstance(app.screen, EventsDialog))
        await pilot.click(offset=_shown_at(app, "esc closes"))
        await until(pilot, lambda: not app.screen.is_modal)


def _shown_at(app: DllmApp, text: str) -> tuple[int, int]:
    y = app.screen.query_one(".dialog").region.bottom - 1
    row = screen_text(app).splitlines()[y]
    return cell_len(row[: row.index(f" {text}") + 1]), y


async def test_a_dialog_closes_once_and_its_help_with_it(started: Started) -> None:
    async with started(size=SIZE) as (pilot, app, _):
        said: list[object] = []

        async def asked() -> Dialog[Any]:
            said.clear()
            dialog: Dialog[Any] = confirm("Sure?", "", "Yes", "y")
            app.push_screen(dialog, said.append)
            await until(pilot, lambda: dialog.is_mounted)
            return dialog

        dialog = await asked()
        dialog.dismiss("yes")
        dialog.dismiss("no")
        await until(pilot, lambda: not app.screen.is_modal)
        assert said == ["yes"]
        # Help may be opened while a path is looked at.
        dialog = await asked()
        app.action_help()
        await until(pilot, lambda: isinstance(app.screen, HelpDialog))
        dialog.dismiss("yes")
        await until(pilot, lambda: said)
        assert not app.screen.is_modal
        assert said == ["yes"]
        # No screen changes behind a dialog; keys typed fast may ask for both.
        app.action_theme()
        app.post_message(LogWanted("llama-server"))
        await until(pilot, lambda: isinstance(app.focused, OptionList))
        assert app.current_mode == "cluster"
        await pilot.press("enter")
        await until(pilot, lambda: not app.screen.is_modal)
        app.post_message(LogWanted("llama-server"))
        await until(pilot, lambda: app.current_mode == "logs")
