"""Themes from TOML files: typed, every colour checked before Textual sees it."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from textual.color import Color, ColorParseError
from textual.theme import Theme

from backends.errors import DllmError
from tui.widgets.palette import DEVICE_COLOURS

DEFAULT_THEME = "dllm-dark"
SELECTION_ALPHA = 0.35


class ThemeError(DllmError):
    """A theme file cannot be used."""


class ConsoleColours(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"
):
    """Colours of our own that Textual's themes do not have."""

    ok: str
    warn: str
    bad: str
    dim: str
    """Text that is there when looked for."""
    track: str
    """The empty part of a bar."""
    pane_border: str
    pane_border_focus: str
    pane_title: str
    device_text: str
    """Letters on a device's colour."""


class ThemeFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    primary: str
    secondary: str
    accent: str
    foreground: str
    background: str
    surface: str
    panel: str
    success: str
    warning: str
    error: str
    console: ConsoleColours
    devices: dict[str, str]
    """One colour per device, keys ``1`` to ``8``."""
    dark: bool = True
    ansi: bool = False
    variables: dict[str, str] = {}
    """Further variables of Textual's own, as they are."""


STAND_INS: Mapping[str, str] = {
    "ok": "success",
    "warn": "warning",
    "bad": "error",
    "dim": "secondary",
    "track": "panel",
    "pane-border": "panel",
    "pane-border-focus": "primary",
    "pane-title": "foreground",
}
"""Colours of a theme that stand in for ours."""


def load_theme(path: Path) -> Theme:
    """Read one theme file.

    Raises:
        ThemeError: it cannot be read, has a wrong key, or a colour is none.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
        file = msgspec.convert(raw, ThemeFile)
    except (OSError, ValueError) as error:
        raise ThemeError(f"The theme {path} cannot be used: {error}") from error
    wanted = {str(number) for number in range(1, DEVICE_COLOURS + 1)}
    if missing := wanted - set(file.devices):
        raise ThemeError(f"The theme {path} has no colour devices.{min(missing)}")
    for key, value in _colours(msgspec.to_builtins(file)):
        try:
            Color.parse(value)
        except ColorParseError:
            raise ThemeError(
                f"The theme {path} has a bad colour: {key} = {value!r}",
                'Write it as "#rrggbb", a name, or ansi_blue.',
            ) from None
    return _theme(file)


def load_themes(folders: Iterable[Path]) -> tuple[list[Theme], list[ThemeError]]:
    """Every usable theme of these folders, and what is wrong with the others."""
    themes: list[Theme] = []
    errors: list[ThemeError] = []
    for path in (path for folder in folders for path in sorted(folder.glob("*.toml"))):
        try:
            themes.append(load_theme(path))
        except ThemeError as error:
            errors.append(error)
    return themes, errors


def find_theme(
    name: str, folders: Iterable[Path], others: Collection[str] = ()
) -> Theme | None:
    """One theme by the name of its file, else by the name it gives itself.

    All files are read only for the second, and not if ``others`` has the name.
    """
    files = (folder / f"{name}.toml" for folder in folders)
    if file := next(filter(Path.is_file, files), None):
        return load_theme(file)
    themes = () if name in others else load_themes(folders)[0]
    return next((theme for theme in themes if theme.name == name), None)


def variable_defaults(theme: Theme) -> dict[str, str]:
    """Our variables for a theme that does not know them, from its own colours."""
    named = {key: getattr(theme, own) for key, own in STAND_INS.items()}
    named["track"] = named["pane-border"] = theme.panel or theme.surface
    fallback = theme.foreground or ("ansi_white" if theme.dark else "ansi_black")
    named = {key: one or theme.primary or fallback for key, one in named.items()}
    named["device-text"] = theme.background or ("black" if theme.dark else "white")
    palette = [theme.primary, theme.warning, theme.success, theme.accent, theme.error]
    return named | {
        f"device-{number}": palette[(number - 1) % len(palette)] or theme.primary
        for number in range(1, DEVICE_COLOURS + 1)
    }


def _colours(file: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in file.items():
        if key in {"name", "dark", "ansi", "variables"}:
            continue
        if isinstance(value, dict):
            yield from ((f"{key}.{inner}", colour) for inner, colour in value.items())
        else:
            yield key, value


def _theme(file: ThemeFile) -> Theme:
    values: dict[str, Any] = msgspec.to_builtins(file)
    devices = {f"device-{number}": one for number, one in values.pop("devices").items()}
    variables = values.pop("console") | devices | values.pop("variables")
    if file.ansi:  # Textual's own stylesheet needs them, or the app ends.
        own = {"ansi-background": "ansi_black", "ansi-foreground": "ansi_white"}
    else:  # Of Textual's selection shines through what is selected: hard to read.
        selection = Color.parse(file.primary).with_alpha(SELECTION_ALPHA).hex
        own = {
            "screen-selection-background": selection,
            "screen-selection-foreground": file.foreground,
        }
    variables = own | variables
    return Theme(**values, variables=variables)
