"""Checks of the settings that only the console knows: themes and keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from backends.config import Config, Problem, lines_by_key, problems
from backends.errors import did_you_mean
from tui.actions import ACTIONS, keymap_problems


def all_problems(text: str, themes: Sequence[str]) -> list[Problem]:
    """The problems of a file; names of actions and of these themes are checked, too."""
    found = problems(text)
    if found:
        return found
    told = msgspec.toml.decode(text.encode(), type=Config)
    return [*_wrong_theme(told, text, themes), *_wrong_keys(told, text)]


def _wrong_theme(told: Config, text: str, known: Sequence[str]) -> Iterator[Problem]:
    if told.theme and told.theme not in known:
        yield Problem(
            line=lines_by_key(text).get(("theme",), 0),
            setting="theme",
            what=f"There is no theme {told.theme}",
            hint=f"{did_you_mean(told.theme, known)}Themes: {', '.join(known)}",
        )


def _wrong_keys(told: Config, text: str) -> Iterator[Problem]:
    lines, known = lines_by_key(text), [action.id for action in ACTIONS]
    for name in told.keys:
        if name not in known:
            yield Problem(
                line=lines.get(("keys", name), 0),
                setting=f"keys.{name}",
                what=f"There is no action {name}",
                hint=f"{did_you_mean(name, known)}The console's ? shows the names",
            )
    for what in keymap_problems({k: v for k, v in told.keys.items() if k in known}):
        yield Problem(line=lines.get(("keys",), 0), setting="keys", what=what)
