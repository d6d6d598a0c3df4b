"""Every setting of config.toml: found by name, its value changed in place."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec
from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.markup import escape
from textual.widgets import Input, Label, OptionList, Static

from backends.config import EFFECTS, Setting
from backends.errors import DllmError
from tui.actions import ACTIONS, bindings
from tui.dialogs.dialog import Dialog
from tui.widgets.form_fields import NameInput
from tui.widgets.inputs import LineInput
from tui.widgets.keys import key_link, with_keys
from tui.widgets.palette import palette_from
from tui.widgets.safe_text import safe, safe_line
from tui.widgets.strips import clip

NAME_WIDTH = 30
VALUE_WIDTH = 28
KEYS_ALLOWED = "keys, between commas: f5,L"
OPENING = (
    "type to find · {settings.up} {settings.down} select · Enter changes",
    "closes",
)
CHANGING = ("Enter sets · empty: the default", "cancels")


class SettingsDialog(Dialog[None]):
    """Shows the settings; a change takes effect at once."""

    HELP = """\
## Settings

Every setting of `config.toml`, its value and where that comes from. Type a part of a
name to find it, press **Enter**, type the value and **Enter** again: it is written and
counts from then on. An **empty** value brings the default back; comments in the file
stay. **{settings.cancel}** leaves a value as it is, then the list.

A value that is not allowed is refused, with what is.
"""
    BINDINGS = bindings("settings")
    TYPING = True
    DEFAULT_CSS = """
    SettingsDialog {
        & OptionList {
            height: 1fr;
            border: none;
            padding: 0;
            background: transparent;
            scrollbar-size-vertical: 1;
            &:focus { border: none; }
        }
        & Horizontal { height: 1; }
        & #settings-value { margin: 1 0 0 0; }
        & Label { color: $dim; width: auto; padding: 0 1 0 0; }
        & .settings-remark {
            height: 2;
            color: $dim;
            &.-wrong { color: $bad; }
            &.-done { color: $ok; }
        }
    }
    """

    def __init__(
        self,
        name: str,
        settings: Sequence[Setting],
        change: Callable[[str, str | None], Awaitable[list[Setting]]],
        *,
        find: str = "",
    ) -> None:
        super().__init__()
        self._file = name
        self._change = change
        self._settings = with_all_keys(settings)
        self._shown: list[Setting] = []
        self._done = ("", "")
        """The setting changed last, and the message about it."""
        self._find = NameInput(find, placeholder="find a setting", id="settings-find")
        self._list = OptionList(markup=False)
        self._list.can_focus = False
        self._called = Label("")
        self._value = LineInput(id="settings-text", disabled=True)
        self._remark = Static("", classes="settings-remark", markup=False)
        self._box = Vertical(classes="dialog")

    def compose(self) -> ComposeResult:
        with self._box:
            self._box.border_title = f"Settings · {safe_line(self._file)}"
            self._say_keys(*OPENING)
            self._box.styles.width = 100
            self._box.styles.height = "90%"
            yield self._find
            yield self._list
            yield Horizontal(self._called, self._value, id="settings-value")
            yield self._remark

    def on_mount(self) -> None:
        self._find.focus()
        self._fill()

    @property
    def selected(self) -> Setting | None:
        at = self._list.highlighted
        return self._shown[at] if at is not None and at < len(self._shown) else None

    def _say_keys(self, text: str, ending: str) -> None:
        ends = key_link(self.app, "settings.cancel", ending)
        more = key_link(self.app, "dialogs.help", "help", typing=True)
        said = escape(with_keys(self.app, text))
        self._box.border_subtitle = " · ".join(filter(None, (said, ends, more)))

    # --- finding ----------------------------------------------------------------

    @on(Input.Changed, "#settings-find")
    def _fill(self) -> None:
        before = self.selected
        wanted = self._find.value.strip().lower()
        self._shown = [one for one in self._settings if wanted in one.name.lower()]
        self._list.clear_options()
        self._list.add_options([self._row(one) for one in self._shown])
        names = [one.name for one in self._shown]
        if names:
            at = names.index(before.name) if before and before.name in names else 0
            self._list.highlighted = at
        self._show_selected()

    @on(OptionList.OptionHighlighted)
    def _show_selected(self) -> None:
        setting = self.selected
        if self._value.has_focus:
            return
        called = safe_line(setting.name) if setting else "nothing of that name"
        self._called.update(called)
        self._value.value = "" if setting is None else value_text(setting)
        self._value.disabled = setting is None
        name, said = self._done
        if setting is not None and setting.name == name:
            self._say(said, "done")
        else:
            self._say(_about(setting) if setting else "")

    def action_move(self, by: int) -> None:
        if self._shown and not self._value.has_focus:
            at = (self._list.highlighted or 0) + by
            self._list.highlighted = min(max(at, 0), len(self._shown) - 1)

    @on(Input.Submitted, "#settings-find")
    @on(OptionList.OptionSelected)
    def _begin(self) -> None:
        if self.selected is not None:
            self._done = ("", "")
            self._show_selected()
            self._value.focus()
            self._say_keys(*CHANGING)

    # --- changing ----------------------------------------------------------------

    @on(Input.Submitted, "#settings-text")
    def _submitted(self) -> None:
        if self.selected is not None:
            self._set(self.selected, self._value.value.strip())

    @work(group="set", exclusive=True, exit_on_error=False)
    async def _set(self, setting: Setting, text: str) -> None:
        try:
            settings = await self._change(setting.name, text or None)
        except DllmError as error:
            self._say(str(error), "wrong")
            return
        self._settings = with_all_keys(settings)
        what = f"{setting.name} is {'set' if text else 'at its default'}"
        self._done = setting.name, f"{what}: {_effect(setting)}."
        self._find.focus()
        self._say_keys(*OPENING)
        self._fill()

    def action_cancel(self) -> None:
        if self._value.has_focus:
            self._find.focus()
            self._say_keys(*OPENING)
            self._show_selected()
        else:
            self.dismiss(None)

    def _say(self, text: str, tone: str = "") -> None:
        self._remark.update(safe(text))
        for known in ("wrong", "done"):
            self._remark.set_class(known == tone, f"-{known}")

    def _row(self, setting: Setting) -> Text:
        palette = palette_from(self.app.theme_variables)
        value = value_text(setting) or "unset"
        source = setting.source + (f":{setting.line}" if setting.line else "")
        own = setting.source != "default"
        return Text.assemble(
            (clip(setting.name, NAME_WIDTH) + " ", palette.text),
            (clip(value, VALUE_WIDTH) + " ", palette.strong if own else palette.dim),
            (safe_line(source), palette.dim),
        )


def with_all_keys(settings: Sequence[Setting]) -> list[Setting]:
    """The settings, and the keys of every action that has its own still."""
    found = {setting.name: setting for setting in settings}
    keys = []
    for action in ACTIONS:
        name = f"keys.{action.id}"
        usual = Setting(name=name, value=action.keys, source="default")
        own = found.pop(name, usual)
        keys.append(msgspec.structs.replace(own, allowed=KEYS_ALLOWED))
    return [*found.values(), *keys]


def value_text(setting: Setting) -> str:
    value = setting.value
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {v}" for k, v in value.items()) + "}"
    return str(value)


def _about(setting: Setting) -> str:
    allowed = setting.allowed.replace(", in quotes", "").replace(" in quotes", "")
    return f"{allowed}\n{_effect(setting)}"


def _effect(setting: Setting) -> str:
    return EFFECTS.get(setting.name.partition(".")[0], "takes effect now")
