"""The entries that ``:`` finds, by kind, and the way to each."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from textual.binding import Binding
from textual.dom import DOMNode

from backends.config import Setting
from backends.state import ModelFile
from tui.actions import ACTING, ACTIONS, NO_COMMANDS, PLACES, Action
from tui.app.console import ClusterConsole, Flow
from tui.app.messages import LogWanted
from tui.flows.settings import SettingsFlow
from tui.model.finding import Entry
from tui.model.names import model_name
from tui.widgets.keys import key_of, shown_keys


class FindFlow(Flow):
    """Collects the entries, and goes to the chosen one."""

    def __init__(self, app: ClusterConsole, settings: SettingsFlow) -> None:
        super().__init__(app)
        self._settings = settings

    async def find(self) -> None:
        # Imported when needed, like all dialogs.
        from tui.dialogs.pick import FinderDialog

        dialog = FinderDialog(
            [
                *self._actions(),
                *self._peers(),
                *self._logs(),
                *self._clusters(),
                *self._themes(),
            ]
        )

        async def add_models() -> None:
            dialog.add([*self._models((await self._cluster.catalogue()).models)])

        async def add_settings() -> None:
            dialog.add([*self._setting_entries(await self._settings.all())])

        self._app.attempt(add_models(), group="find models")
        self._app.attempt(add_settings(), group="find settings")
        chosen = await self._app.push_screen_wait(dialog)
        if chosen is not None:
            chosen.run()

    def _actions(self) -> Iterator[Entry]:
        here = {
            active.binding.id: active.binding.key
            for active in self._app.screen.active_bindings.values()
            if active.enabled
        }
        offered = [
            action
            for action in ACTIONS
            if action.area in PLACES and action.id not in NO_COMMANDS
        ]
        for action in sorted(offered, key=lambda action: action.id not in here):
            refused = self._app.readonly and action.id in ACTING
            detail = f"refused: {self._app.note}" if refused else action.tooltip
            key = " ".join(shown for _, shown in shown_keys(self._app, action.id))
            if action.display:
                key = key_of(self._app, action.id)
            do = partial(self._do, action)
            yield Entry("action", _title(action), do, detail, key)

    def _do(self, action: Action) -> None:
        self._app.open(self._go_and_do(action), group="find", exclusive=False)

    async def _go_and_do(self, action: Action) -> None:
        mode, _, pane = PLACES[action.area].partition(".")
        if mode:
            await self._app.go_to(mode, pane)
        for node, binding in _binders(self._app, action.id):
            if await self._app.run_action(binding.action, node):
                return
        text = f"{_title(action)} cannot be done now: {action.tooltip}"
        self._app.tell(text, "warning")

    def _peers(self) -> Iterator[Entry]:
        for peer in self._editor.peers:
            detail = f"{peer.state} {peer.address}".rstrip()
            show = partial(self._app.work_at, "open", peer)
            yield Entry("peer", peer.name, show, detail)

    def _models(self, models: tuple[ModelFile, ...]) -> Iterator[Entry]:
        for model in models:
            name = model.name or model_name(model.path)
            yield Entry("model", name, partial(self._use_model, model), model.path)

    def _use_model(self, model: ModelFile) -> None:
        if model.problem:
            what = f"{model.name} cannot be used: {model.problem}"
            self._app.tell(what, "warning")
            self._app.attempt(self._app.go_to("models"), group="find")
        else:
            self._app.use_model(model.path)

    def _logs(self) -> Iterator[Entry]:
        snapshot = self._editor.snapshot
        for process in snapshot.processes if snapshot else ():
            show = partial(self._app.post_message, LogWanted(process.name))
            detail = f"the log of {process.name} on {process.peer}"
            yield Entry("log", process.name, show, detail)

    def _clusters(self) -> Iterator[Entry]:
        snapshot = self._editor.snapshot
        for brief in snapshot.clusters if snapshot else ():
            model = model_name(brief.model) if brief.model else ""
            detail = f"{brief.state} {model}".rstrip()
            go = partial(self._app.show_cluster, brief.name)
            yield Entry("cluster", brief.name, go, detail)

    def _themes(self) -> Iterator[Entry]:
        for name in self._app.theme_names:
            detail = "here now" if name == self._app.theme else ""
            put = partial(setattr, self._app, "theme", name)
            yield Entry("theme", name, put, detail)

    def _setting_entries(self, settings: list[Setting]) -> Iterator[Entry]:
        from tui.dialogs.settings import value_text

        for setting in settings:
            detail = f"{value_text(setting)}  ({setting.source})"
            show = partial(self._app.show_setting, setting.name)
            yield Entry("setting", setting.name, show, detail)


def _title(action: Action) -> str:
    if action.area in {"app", "cluster"}:
        return action.label.capitalize()
    return f"{action.area.capitalize()}: {action.label}"


def _binders(app: ClusterConsole, action_id: str) -> Iterator[tuple[DOMNode, Binding]]:
    screen = app.screen
    nodes = [*(screen.focused or screen).ancestors_with_self, *screen.query("*")]
    for node in nodes:
        for bindings in node._bindings.key_to_bindings.values():
            for binding in bindings:
                if binding.id == action_id:
                    yield node, binding
