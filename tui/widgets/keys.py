"""Keys as the user has them, for every text that names one."""

from __future__ import annotations

import re
from typing import Any

from textual.app import App
from textual.binding import Binding
from textual.keys import key_to_character
from textual.markup import escape
from textual.widget import Widget
from textual.widgets import Input, TextArea

from tui.actions import FUNCTION_KEYS, action_of, is_action, split_keys


def key_of(app: App[Any], action_id: str, *, typing: bool = False) -> str:
    """The key that runs an action, as it is written; empty where it has none.

    ``typing`` asks for one that a text field does not take.
    """
    keys = shown_keys(app, action_id)
    action = action_of(action_id)
    if action.display and not typing and action_id not in _remapped(app):
        return spelled(app, action.display)
    return next((shown for key, shown in keys if not typing or _untyped(key)), "")


def shown_keys(app: App[Any], action_id: str) -> list[tuple[str, str]]:
    """Every key of an action, in Textual's spelling and as it is written."""
    action = action_of(action_id)
    keys = split_keys(_remapped(app).get(action_id, action.keys))
    return [(key, _written(app, key)) for key in keys]


def key_link(app: App[Any], action_id: str, verb: str, *, typing: bool = False) -> str:
    """``esc closes`` as markup on which a click presses the key; empty without one."""
    shown = key_of(app, action_id, typing=typing)
    if not shown:
        return ""
    keys = [key for key, _ in shown_keys(app, action_id)]
    pressed = next((key for key in keys if not typing or _untyped(key)), keys[0])
    return f"[@click=app.press_key({pressed!r})]{escape(f'{shown} {verb}')}[/]"


_SPELLED = {
    "←": "left",
    "→": "right",
    "↑": "up",
    "↓": "down",
    "⏎": "enter",
    "⌫": "backspace",
    "␣": "space",
}


def spelled(app: App[Any], keys: str) -> str:
    """Keys as they are written, in words where there is only ASCII: ``<`` is a key."""
    if not getattr(app, "ascii_only", False):
        return keys
    joint = "/" if all(sign in _SPELLED for sign in keys) else ""
    return joint.join(_SPELLED.get(sign, sign) for sign in keys)


def _remapped(app: App[Any]) -> dict[str, str]:
    return getattr(app, "user_keys", {})


def _untyped(key: str) -> bool:
    character = key_to_character(key)
    return character is None or not character.isprintable()


def _written(app: App[Any], key: str) -> str:
    if key in FUNCTION_KEYS:
        return key.upper()
    return app.get_key_display(Binding(key, "", ""))


def takes_text(widget: Widget | None) -> bool:
    return isinstance(widget, Input | TextArea)


def with_keys(app: App[Any], text: str, *, typing: bool = False) -> str:
    """A text with the keys of the actions it names.

    ``{chat.stop} stops`` becomes ``Esc stops``. ``{id:short}`` is the key as the key
    bar writes it, ``{id:or}`` all keys of it. Without a key the action is found by
    its name: ``: stop``. While a text field takes letters (``typing``), ``l`` becomes
    ``Esc l``.
    """
    return _NAMED.sub(lambda named: _named(app, named[1], named[2] or "", typing), text)


_NAMED = re.compile(r"\{([a-z]+\.[a-z_]+)(?::(short|or|list))?\}")
_JOINTS = {"or": " or ", "list": ", "}
_IN_WORDS = {"escape": "Esc", "enter": "Enter", "tab": "tab", "space": "space"}


def _named(app: App[Any], action_id: str, form: str, typing: bool) -> str:
    if not is_action(action_id):
        return f"{{{action_id}}}"
    if form == "short" and (key := key_of(app, action_id)):
        return key
    keys = [
        f"Esc {_in_words(app, key)}"
        if typing and not _untyped(key)
        else _in_words(app, key)
        for key, _ in shown_keys(app, action_id)
    ]
    if form in _JOINTS and keys:
        return _JOINTS[form].join(keys)
    return keys[0] if keys else f": {action_of(action_id).label}"


def _in_words(app: App[Any], key: str) -> str:
    if "+" in key or key in _IN_WORDS:
        return _IN_WORDS.get(key, key)
    return _written(app, key)
