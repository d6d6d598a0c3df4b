"""What any console needs whatever it shows: themes, keys, toasts, palette, copying."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from textual import on
from textual.app import App, SystemCommand
from textual.worker import Worker, WorkerState

from backends.errors import DllmError
from backends.state import Failure
from tui import actions, theming
from tui.events import EventLog
from tui.messages import Copyable, Notice, Severity, Trouble

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Coroutine,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )

    from textual.binding import Binding, BindingType
    from textual.dom import DOMNode
    from textual.screen import Screen

TOAST_S: dict[Severity, float] = {"information": 4.0, "warning": 8.0, "error": 12.0}


class ConsoleApp(App[None], inherit_bindings=False):
    """Themes, keys, toasts and dialogs; knows nothing of clusters."""

    CSS_PATH = Path(__file__).with_name("console.tcss")
    BINDINGS: ClassVar[list[BindingType]] = actions.bindings("app")

    def __init__(
        self,
        *,
        theme_folders: Sequence[Path],
        theme: str,
        keys: Mapping[str, str],
        clock: Callable[[], float],
    ) -> None:
        """Set up theme and keys."""
        super().__init__()
        self.event_log = EventLog()
        self.clock = clock
        self._theme_folders = theme_folders
        self._keys = dict(keys)
        self._all_themes = False
        self._early_trouble: list[DllmError] = []
        self._use_theme(theme)

    def on_mount(self) -> None:
        """Take over the user's keys; say what went wrong so far."""
        self.set_keymap(self._keys)
        for text in actions.keymap_problems(self._keys):
            self._early_trouble.append(DllmError(text))
        for error in self._early_trouble:
            self.post_message(Trouble(error.failure(self.clock()), "warning"))

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Our variables, for themes that do not define them."""
        return theming.variable_defaults(self.current_theme)

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """Every action that can be run from here, for the palette."""
        for node, binding in _runnable(screen):
            key = self.get_key_display(binding)
            title = f"{_titled(binding)}  ({key})"
            run = _Run(self, node, binding.action)
            yield SystemCommand(title, binding.tooltip, run)

    def attempt(
        self, work: Coroutine[Any, Any, None], *, group: str, exclusive: bool = True
    ) -> None:
        """Run something in the background.

        A newer one of the group replaces it, where it is ``exclusive``.
        """
        self.run_worker(
            self._guarded(work), group=group, exclusive=exclusive, exit_on_error=False
        )

    def tell(self, text: str, severity: Severity = "information") -> None:
        """A toast, kept in the event log."""
        self.event_log.add(self.clock(), text, severity)
        self.notify(text, severity=severity, timeout=TOAST_S[severity], markup=False)

    @on(Trouble)
    def _trouble(self, message: Trouble) -> None:
        self.tell(message.failure.sentence, message.severity)

    @on(Notice)
    def _notice(self, message: Notice) -> None:
        self.tell(message.text, message.severity)

    @on(Worker.StateChanged)
    def _worker_changed(self, message: Worker.StateChanged) -> None:
        """A mistake of ours in a worker must be seen, but end nothing."""
        error = message.worker.error
        if message.state == WorkerState.ERROR and error is not None:
            what = (
                f"Unexpected {type(error).__name__} in {message.worker.group}: {error}"
            )
            hint = "This is a bug of dllm-tui: please report it."
            self.post_message(Trouble(Failure(what=what, hint=hint, at=self.clock())))

    def action_copy(self) -> None:
        """Copy what the focused pane offers."""
        start: DOMNode = self.screen.focused or self.screen
        for node in start.ancestors_with_self:
            found = node.copyable() if hasattr(node, "copyable") else None
            if isinstance(found, Copyable):
                self.copy_to_clipboard(found.text)
                self.tell(f"Copied {found.what}")
                return
        self.tell("There is nothing to copy here", "warning")

    def action_interrupt(self) -> None:
        """Nothing is selected: ctrl+c ends nothing."""
        self.tell("Nothing is selected to copy; q quits")

    def action_help(self) -> None:
        """Help on the focused pane."""
        from tui.screens.dialog_help import HelpDialog

        self.push_screen(HelpDialog(self.screen))

    def action_events(self) -> None:
        """Toasts again."""
        from tui.screens.dialog_events import EventsDialog

        self.push_screen(EventsDialog(self.event_log))

    def action_theme(self) -> None:
        """Pick a theme."""
        from tui.screens.dialog_theme import ThemeDialog

        self._load_all_themes()
        own = [name for name in self.available_themes if name.startswith("dllm-")]
        others = sorted(set(self.available_themes) - set(own))
        self.push_screen(ThemeDialog([*sorted(own), *others], self.theme))

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except DllmError as error:
            self.post_message(Trouble(error.failure(self.clock())))

    def _use_theme(self, name: str) -> None:
        """Read only the theme in use: the others wait for the picker."""
        for wanted in (name, theming.DEFAULT_THEME):
            try:
                found = theming.find_theme(wanted, self._theme_folders)
            except DllmError as error:
                self._early_trouble.append(error)
                continue
            if found is not None:
                self.register_theme(found)
            if wanted in self.available_themes:
                self.theme = wanted
                return

    def _load_all_themes(self) -> None:
        if self._all_themes:
            return
        self._all_themes = True
        themes, errors = theming.load_themes(self._theme_folders)
        for theme in themes:
            self.register_theme(theme)
        for error in errors:
            self.post_message(Trouble(error.failure(self.clock()), "warning"))


class _Run:
    """A palette command: the action of a binding, in the place it belongs to."""

    def __init__(self, app: ConsoleApp, node: DOMNode, action: str) -> None:
        self._app, self._node, self._action = app, node, action

    def __call__(self) -> None:
        self._app.call_later(self._app.run_action, self._action, self._node)


def _titled(binding: Binding) -> str:
    """``Split: undo``; everyone's actions without an area."""
    area = (binding.id or "").partition(".")[0]
    if area in {"app", "cluster"}:
        return binding.description.capitalize()
    return f"{area.capitalize()}: {binding.description}"


def _runnable(screen: Screen[Any]) -> Iterator[tuple[DOMNode, Binding]]:
    """Enabled bindings with an id, each once, nearest to the focus first."""
    seen = set(actions.NO_COMMANDS)
    for node, binding, enabled, _tooltip in screen.active_bindings.values():
        if enabled and binding.id and binding.id not in seen:
            seen.add(binding.id)
            yield node, binding
