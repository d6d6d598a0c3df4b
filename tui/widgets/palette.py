"""The theme's colours as Rich styles, for widgets that draw their own lines."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from rich.color import Color as RichColor
from rich.style import Style
from textual.color import Color

DEVICE_COLOURS = 8

_NAMES = (
    "foreground",
    "background",
    "primary",
    "ok",
    "warn",
    "bad",
    "dim",
    "track",
    "pane-border",
    "device-text",
    *(f"device-{number}" for number in range(1, DEVICE_COLOURS + 1)),
)


class Palette:
    """Styles by what they mean; one palette per theme."""

    def __init__(self, colours: Mapping[str, RichColor]) -> None:
        self.text = Style(color=colours["foreground"])
        self.strong = Style(color=colours["foreground"], bold=True)
        self.dim = Style(color=colours["dim"])
        self.ok = Style(color=colours["ok"])
        self.warn = Style(color=colours["warn"])
        self.bad = Style(color=colours["bad"])
        self.alarm = Style(color=colours["bad"], bold=True)
        self.accent = Style(color=colours["primary"])
        self.key = Style(color=colours["primary"], bold=True)
        self.graph = Style(
            color=_mixed(colours["primary"], colours["background"], 0.66)
        )
        self.track = Style(color=colours["track"])
        self.border = Style(color=colours["pane-border"])
        self.handle = Style(color=colours["foreground"], bold=True)
        self.pulse = Style(
            color=colours["foreground"], bgcolor=colours["background"], reverse=True
        )
        own = [colours[f"device-{number + 1}"] for number in range(DEVICE_COLOURS)]
        text, ground = colours["device-text"], colours["background"]
        ground = text if ground.is_default else ground
        self._devices = [Style(color=one) for one in own]
        self._fills = [Style(color=text, bgcolor=one, bold=True) for one in own]
        self._edges = [Style(color=ground, bgcolor=one) for one in own]

    def device(self, number: int) -> Style:
        return self._devices[number % DEVICE_COLOURS]

    def fill(self, number: int) -> Style:
        return self._fills[number % DEVICE_COLOURS]

    def lit(self, style: Style, part: float) -> Style:
        """The same on a ground that is so far on its way to the text's colour."""
        ground, text = style.bgcolor or self.pulse.bgcolor, self.text.color
        if not ground or not text:
            return style
        return _on(style, _mixed(text, ground, part))

    def edge(self, number: int) -> Style:
        """Thin lines between the layers on a device's colour."""
        return self._edges[number % DEVICE_COLOURS]


@lru_cache(maxsize=1024)
def _on(style: Style, ground: RichColor) -> Style:
    return style + Style(bgcolor=ground)


@lru_cache(maxsize=1024)
def _mixed(colour: RichColor, ground: RichColor, part: float) -> RichColor:
    if colour.triplet is None or ground.triplet is None:
        return colour if part > 0.5 else ground
    mixed = Color.from_rich_color(ground).blend(Color.from_rich_color(colour), part)
    return mixed.rich_color


def palette_from(variables: Mapping[str, str]) -> Palette:
    return _palette(tuple(variables[name] for name in _NAMES))


@lru_cache(maxsize=32)
def _palette(values: tuple[str, ...]) -> Palette:
    colours = [Color.parse(value).rich_color for value in values]
    return Palette(dict(zip(_NAMES, colours, strict=True)))
