"""The base of any console: themes, keys, toasts, palette, copying."""

from __future__ import annotations

import asyncio
import os
import unicodedata
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import platformdirs
from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from textual import events, on
from textual.actions import ActionParseResult
from textual.app import App
from textual.binding import Binding
from textual.color import Color
from textual.dom import DOMNode
from textual.events import Event
from textual.filter import LineFilter
from textual.message_pump import MessagePump
from textual.screen import Screen
from textual.worker import Worker, WorkerState

from backends.config import Config
from backends.errors import DllmError
from backends.state import ClusterSnapshot, EventTone, Failure, Lab, Peer
from tui import actions
from tui.api.services import ClusterService
from tui.app import theming
from tui.app.frame import ConsoleScreen
from tui.app.messages import Copyable, Raw, offered
from tui.model.editor import PlanEditor
from tui.model.events import TOASTS_MAX, Happening, Severity
from tui.widgets.keys import spelled, takes_text, with_keys
from tui.widgets.safe_text import safe, safe_line

if TYPE_CHECKING:
    from tui.dialogs.jump import JumpTarget
    from tui.dialogs.menu import MenuEntry


class SafeLines(LineFilter):
    """Makes every line safe, whichever widget drew it: labels, titles, fields, toasts.

    Text is better made safe where it is laid out, so that nothing of a sequence takes
    room; what was overlooked there, or comes from an entity in Markdown, ends here.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment
            if segment.control or (clean := safe_line(segment.text)) is segment.text
            else Segment(set_cell_size(clean, segment.cell_length), segment.style)
            for segment in segments
        ]


_SIGNS = {
    **dict(zip(" ▁▂▃▄▅▆▇█", " _.-=+*%#", strict=True)),
    **dict(zip("░▒▓╱▕▏▎▍▌▋▊▉▐■▀▔", ":%%/|||||###|#'-", strict=True)),
    **dict(zip("─━═┈│┃║┊╎╵╷", "--=-|##::||", strict=True)),
    **dict(zip("╭╮╰╯┌┐└┘┬┴├┤┼", "+++++++++++++", strict=True)),
    **dict(zip("●•○◌◐◑◔◕◇◆", "@*o.ccCCo*", strict=True)),
    **dict(zip("✓✗▸▾▼▲△◂→←↑↓⏎⌫␣›‹…", "+x>vV^A<><^v$<_><.", strict=True)),
    **dict(zip("·˙×–—−≠≈≤≥±‖❯▶", ".'x---#~<>~|>>", strict=True)),
    **dict(zip("“”„‘’µμΣ₂°", '"""\'\'uuS2o', strict=True)),
}


class AsciiLines(LineFilter):
    """Puts an ASCII sign of the same width in the place of every other sign."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment
            if segment.text.isascii() or segment.control
            else Segment("".join(map(ascii_sign, segment.text)), segment.style)
            for segment in segments
        ]


@lru_cache(maxsize=4096)
def ascii_sign(sign: str) -> str:
    """The ASCII text for a sign, as wide as it is; letters lose their accents."""
    if sign.isascii():
        return sign
    plain = unicodedata.normalize("NFKD", sign).encode("ascii", "ignore").decode()
    width = cell_len(sign)
    found = _SIGNS.get(sign) or plain or "?"
    return found[:width].ljust(width, "?") if width else ""


REFUSED = "Read-only: nothing changed"
TOAST_S: dict[Severity, float] = {"information": 4.0, "warning": 8.0, "error": 12.0}
KEYS_WAIT_S = 2.0
"""Longest time a key waits for what the key before it does."""
CLOSED_CHECK_S = 0.02


class ConsoleApp(App[None], inherit_bindings=False):
    """Themes, keys, toasts and dialogs; knows nothing of clusters."""

    CSS_PATH = Path(__file__).with_name("console.tcss")
    BINDINGS = actions.bindings("app")
    # Ours finds more, and is quicker: see tui.model.finding.
    ENABLE_COMMAND_PALETTE = False

    def __init__(
        self,
        *,
        theme_folders: Sequence[Path],
        theme: str,
        keys: Mapping[str, str],
        readonly: bool = False,
        clock: Callable[[], float],
        keep_copy: Callable[[str], None] | None = None,
        kept_where: str = "",
        ascii_only: bool = False,
        pulse: bool = True,
    ) -> None:
        super().__init__()
        self.pulse = pulse
        """True if the user wants the token pulse."""
        self._keep_copy = keep_copy
        self._kept_where = f"; a copy is in {kept_where}" if kept_where else ""
        self.ascii_only = ascii_only
        self._ascii_lines = [AsciiLines()] if ascii_only else []
        self.event_log: deque[Happening] = deque(maxlen=TOASTS_MAX)
        """The last toasts, oldest first."""
        self.clock = clock
        self._theme_folders = theme_folders
        self.user_keys = dict(keys)
        """Other keys for actions, by their ids."""
        self.readonly = readonly
        self.note = "read-only" if readonly else ""
        """A word for the status line."""
        self.refusal = REFUSED
        self.unoffered = actions.ACTING if readonly else frozenset()
        """Ids of actions that the key bar leaves out."""
        self.recording = False
        self._all_themes = False
        self._early_trouble: list[DllmError] = []
        self._safe_lines = SafeLines()
        self._typed: deque[Event] = deque()
        self._key_at_work: asyncio.Task[None] | None = None
        self._opening: set[asyncio.Event] = set()
        self.set_keymap(self.user_keys)
        self._use_theme(theme)

    def on_mount(self) -> None:
        for text in actions.keymap_problems(self.user_keys):
            self._early_trouble.append(DllmError(text))
        for error in self._early_trouble:
            self.call_later(self.report, error.failure(self.clock()), "warning")

    # --- keys, one after the other --------------------------------------------------

    async def on_event(self, event: Event) -> None:
        """Handle an event; a key only once all that the last one did has happened.

        Textual sends a key to the widget that has the focus when the key arrives. In a
        burst that is before the keys ahead of it have moved the focus or opened a
        dialog.
        """
        is_key = isinstance(event, events.Key | events.Paste)
        if not is_key or event.is_forwarded:
            await super().on_event(event)
        elif self._key_at_work is None:
            await self._take_key(event)
        else:
            self._typed.append(event)

    async def _take_key(self, event: Event) -> None:
        target = self.focused or self.screen
        await super().on_event(event)
        self._key_at_work = asyncio.create_task(self._finish_key(target))

    def begin_at(self, go: Callable[[], None]) -> None:
        """Let the focus go where the console begins; keys typed before wait for it."""
        gone = asyncio.Event()
        self._opening.add(gone)

        def begin() -> None:
            go()
            gone.set()
            self._opening.discard(gone)

        self.call_after_refresh(begin)
        if self._key_at_work is None:
            self._key_at_work = asyncio.create_task(self._finish_key(self.screen))

    async def _take_next_key(self) -> None:
        self._key_at_work = None
        if self._typed:
            await self._take_key(self._typed.popleft())

    async def _finish_key(self, target: DOMNode) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(KEYS_WAIT_S):
                # First the key climbs from widget to app, then what it had them post.
                for _ in range(2):
                    for pump in target.ancestors_with_self:
                        await _idle(pump)
                for opening in tuple(self._opening):
                    await opening.wait()
                # A new screen chooses its focus; ``Widget.focus`` waits for the app.
                await _idle(self.screen)
                await _idle(self)
        self.call_later(self._take_next_key)

    def push_screen(self, *args: Any, **options: Any) -> Any:
        """Show a screen; keys that waited for it may come."""
        pushed = super().push_screen(*args, **options)
        for opening in self._opening:
            opening.set()
        return pushed

    def refresh_css(self, animate: bool = True) -> None:
        """Use the theme's variables: before there is a screen, without reading sheets.

        They are read for its first widget anyway.
        """
        if self.screen_stack:
            super().refresh_css(animate=animate)
        else:
            self.stylesheet.set_variables(self.get_css_variables())

    def _load_screen_css(self, screen: Screen[Any]) -> None:
        super()._load_screen_css(screen)
        # A new screen's widgets are styled as they are mounted. With another count, a
        # switch to it would read all style sheets twice more.
        screen._css_update_count = self._css_update_count

    async def run_action(
        self,
        action: str | ActionParseResult,
        default_namespace: DOMNode | None = None,
        namespaces: Mapping[str, DOMNode] | None = None,
    ) -> bool:
        """Run an action, unless it changes something where one only watches.

        The client refuses that too; here it is refused before anything is asked.
        """
        if self.readonly and actions.acts(action, default_namespace or self):
            self.tell(self.refusal, "warning")
            return True
        return await super().run_action(action, default_namespace, namespaces)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        behind = bool(self.screen_stack) and self.screen.is_modal
        return not (behind and action in actions.SCREEN_ACTIONS)

    async def action_press_key(self, key: str) -> None:
        if bound := self.screen.active_bindings.get(key):
            await self.run_action(bound.binding.action, bound.node)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return theming.variable_defaults(self.current_theme)

    def attempt(
        self, work: Coroutine[Any, Any, None], *, group: str, exclusive: bool = True
    ) -> None:
        """Run something in the background.

        A newer one of the group replaces it, where it is ``exclusive``.
        """

        async def guarded() -> None:
            try:
                await work
            except DllmError as error:
                self.report(error.failure(self.clock()))

        self.run_worker(
            guarded(), group=group, exclusive=exclusive, exit_on_error=False
        )

    def open(
        self, work: Coroutine[Any, Any, None], *, group: str, exclusive: bool = True
    ) -> None:
        """Like ``attempt``, for what may show a dialog: keys wait until it does."""
        opening = asyncio.Event()
        self._opening.add(opening)

        async def opened() -> None:
            try:
                await work
            finally:
                self._opening.discard(opening)
                opening.set()

        self.attempt(opened(), group=group, exclusive=exclusive)

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [*super().get_line_filters(), self._safe_lines, *self._ascii_lines]

    def get_key_display(self, binding: Binding) -> str:
        return spelled(self, super().get_key_display(binding))

    def copy_to_clipboard(self, text: str) -> None:
        """Copy text; what is pasted into a terminal must not drive it either.

        No terminal says whether it took it, so the text is kept elsewhere, too.
        """
        super().copy_to_clipboard(safe(text))
        if self._keep_copy is not None:
            kept = asyncio.to_thread(self._keep_copy, safe(text))
            self.attempt(kept, group="copy", exclusive=False)

    def copy(self, what: str, text: str) -> None:
        self.copy_to_clipboard(text)
        self.tell(f"Copied {what}{self._kept_where}")

    def tell(
        self, text: str, severity: Severity = "information", *, keep: bool = True
    ) -> None:
        """A toast; ``keep`` it in the event log, where nobody else does."""
        focused = self.focused if self.screen_stack else None
        text = with_keys(self, safe(text), typing=takes_text(focused))
        if keep:
            said = Happening(self.clock(), EventTone(severity), text)
            self.event_log.append(said)
        self.notify(text, severity=severity, timeout=TOAST_S[severity], markup=False)

    def report(self, failure: Failure, severity: Severity = "error") -> None:
        self.tell(failure.sentence, severity)

    @on(Worker.StateChanged)
    def _worker_changed(self, message: Worker.StateChanged) -> None:
        error = message.worker.error
        if message.state == WorkerState.ERROR and error is not None:
            name, group = type(error).__name__, message.worker.group
            what = f"Unexpected {name} in {group}: {error}"
            hint = "This is a bug of dllm-tui: please report it."
            self.report(Failure(what=what, hint=hint, at=self.clock()))

    def action_copy(self) -> None:
        if found := offered(self.screen, "copyable", Copyable):
            self.copy(found.what, found.text)
        else:
            self.tell("There is nothing to copy here", "warning")

    def action_raw(self) -> None:
        if found := offered(self.screen, "raw", Raw):
            self.open(self._show_raw(found), group="raw")
        else:
            self.tell("There is nothing here that has JSON", "warning")

    async def _show_raw(self, raw: Raw) -> None:
        from tui.dialogs.help_and_events import RawDialog, raw_text

        text = await asyncio.to_thread(raw_text, raw.value)
        self.push_screen(RawDialog(raw, text))

    def action_screenshot(self) -> None:  # type: ignore[override]
        if self.is_web:
            self.deliver_screenshot()
            return
        folder = Path(platformdirs.user_downloads_dir())
        folder = folder if folder.is_dir() else Path.home()
        try:
            path = self.save_screenshot(path=str(folder))
        except OSError as error:
            self.tell(f"Cannot save a picture in {folder} ({error.strerror})", "error")
        else:
            self.tell(f"Saved the screen to {path}")

    def action_interrupt(self) -> None:
        self.tell("Nothing is selected to copy; {app.quit} quits")

    def action_help(self) -> None:
        from tui.dialogs.help_and_events import HelpDialog

        if isinstance(self.screen, HelpDialog):
            self.screen.dismiss()
        else:
            self.push_screen(HelpDialog(self.screen))

    def action_jump(self) -> None:
        from tui.dialogs.jump import JumpDialog, targets_of

        if isinstance(self.screen, JumpDialog):
            self.screen.dismiss()
        elif targets := targets_of(self.screen):
            self.push_screen(JumpDialog(targets, self.size), self._jump_to)
        else:
            self.bell()

    def _jump_to(self, target: JumpTarget | None) -> None:
        from tui.dialogs.jump import targets_of

        if target is None:
            return
        # What is shown went on meanwhile: something else may stand there now.
        if target not in targets_of(self.screen):
            self.tell("That is no longer there", "warning", keep=False)
            return
        if not target.pressed:
            target.widget.focus()
            return
        for kind in (events.MouseDown, events.MouseUp):
            x, y = target.at
            self.post_message(kind(None, x, y, 0, 0, 1, False, False, False, x, y))

    def action_menu(self) -> None:
        from tui.dialogs.menu import MenuDialog, menu_entries, selected_subject

        screen = self.screen
        if isinstance(screen, MenuDialog):
            return
        about = selected_subject(screen)

        def do(action: str, node: DOMNode) -> None:
            async def done() -> None:
                await self.run_action(action, node)

            self.open(done(), group="menu", exclusive=False)

        def chosen(entry: MenuEntry | None) -> None:
            if entry is None:
                return
            # What is shown went on meanwhile, as for a jump.
            if selected_subject(screen) != about:
                self.tell("That is no longer selected", "warning", keep=False)
                return
            entry.run()

        if entries := menu_entries(screen, do):
            self.push_screen(MenuDialog(screen, entries), chosen)
        else:
            self.tell("Nothing can be done with this now", keep=False)

    def action_events(self) -> None:
        from tui.dialogs.help_and_events import EventsDialog

        self.push_screen(EventsDialog(self.event_log, self.clock))

    @property
    def pulses(self) -> bool:
        """True if the token pulse may run."""
        still = bool(os.environ.get("NO_MOTION")) or self.animation_level == "none"
        return self.pulse and not still

    @property
    def writes_wait(self) -> bool:
        """True if the terminal has not taken all that was written: its line is slow."""
        writer = getattr(self._driver, "_writer_thread", None)
        return writer is not None and not writer._queue.empty()

    def is_watched(self, node: DOMNode) -> bool:
        """True if somebody sees a widget as it is now, not frozen and not old."""
        screen = self.screen
        if node.screen is not screen or not isinstance(screen, ConsoleScreen):
            return False
        told = screen.status_line
        return self.app_focus and told.connected and not told.held

    @property
    def theme_names(self) -> list[str]:
        self._load_all_themes()
        own = [name for name in self.available_themes if name.startswith("dllm-")]
        return [*sorted(own), *sorted(set(self.available_themes) - set(own))]

    def follow_settings(self, config: Config) -> None:
        self.pulse = config.pulse
        if config.theme and config.theme != self.theme:
            self._use_theme(config.theme)
        if config.keys != self.user_keys:
            self.user_keys = dict(config.keys)
            self.set_keymap(self.user_keys)

    def action_theme(self) -> None:
        from tui.dialogs.pick import ThemeDialog

        self.push_screen(ThemeDialog(self.theme_names, self.theme))

    def _use_theme(self, name: str) -> None:
        for wanted in (name, theming.DEFAULT_THEME):
            try:
                found = theming.find_theme(
                    wanted, self._theme_folders, self.available_themes
                )
            except DllmError as error:
                self._early_trouble.append(error)
                continue
            if found is not None:
                self.register_theme(found)
            if found is not None or wanted in self.available_themes:
                self.theme = found.name if found else wanted
                return
            there = "{app.theme} shows those there are."
            self._early_trouble.append(DllmError(f"There is no theme {wanted}", there))

    def _load_all_themes(self) -> None:
        if self._all_themes:
            return
        self._all_themes = True
        themes, errors = theming.load_themes(self._theme_folders)
        for theme in themes:
            self.register_theme(theme)
        for error in errors:
            self.call_later(self.report, error.failure(self.clock()), "warning")


class ClusterConsole(ConsoleApp):
    """A console of clusters, as its screens and flows use it."""

    cluster: ClusterService
    editor: PlanEditor
    left_running = ""
    """A sentence about what the user left running; empty if nothing."""

    def take(self, snapshot: ClusterSnapshot) -> None:
        """Show a snapshot, if nothing newer is known."""
        raise NotImplementedError

    async def go_to(self, mode: str, pane: str = "") -> None:
        """Show a screen, and one of its panes."""
        raise NotImplementedError

    def use_model(self, path: str) -> None:
        raise NotImplementedError

    def work_at(self, verb: str, peer: Peer | None = None) -> None:
        """Do at a peer what one of the peers' flows is named for."""
        raise NotImplementedError

    def get_engine(self) -> None:
        """Get llama.cpp for this machine, or ask whether to cancel that."""
        raise NotImplementedError

    def set_lab(self, worker: str | None, lab: Lab | None) -> None:
        """Simulate a network on a link (None: on all), or none."""
        raise NotImplementedError

    def export_trace(self) -> None:
        raise NotImplementedError

    def show_recording(self, on: bool) -> None:
        """Say on every screen whether this console is recorded."""
        raise NotImplementedError

    def show_setting(self, name: str) -> None:
        raise NotImplementedError

    def show_cluster(self, name: str) -> None:
        raise NotImplementedError


class Flow:
    """Work of several steps, as coroutines that the app runs in workers.

    Errors of the cluster come out of them.
    """

    def __init__(self, app: ClusterConsole) -> None:
        self._app = app
        self._cluster = app.cluster
        self._editor = app.editor


def console_of(node: DOMNode) -> ClusterConsole:
    return cast("ClusterConsole", node.app)


async def _idle(pump: MessagePump) -> None:
    done = asyncio.Event()
    if not pump.call_later(done.set):
        return
    while pump.is_running and not done.is_set():
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSED_CHECK_S):
                await done.wait()
