"""Networks to try by one key, and the list that shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from textual.message import Message
from textual.reactive import reactive

from backends.state import Lab
from backends.units import format_lab
from tui.screens.lab.forecast import same_lab
from tui.widgets.keys import key_of
from tui.widgets.strips import Part, StripWidget, line, parts_width

if TYPE_CHECKING:
    from textual import events
    from textual.strip import Strip


class Preset(NamedTuple):
    """One network people have."""

    id: str
    action: str
    """The action whose key puts it on a link."""
    name: str
    short: str
    lab: Lab | None


PRESETS = (
    Preset("none", "lab.as_it_is", "no lab", "no lab", None),
    Preset(
        "ethernet",
        "lab.ethernet",
        "Ethernet 1 Gbit",
        "1 Gbit",
        Lab(latency_ms=0.15, rate_mb_s=118),
    ),
    Preset(
        "wifi",
        "lab.wifi",
        "Wi-Fi",
        "Wi-Fi",
        Lab(latency_ms=1.5, jitter_ms=0.5, rate_mb_s=30),
    ),
    Preset(
        "far",
        "lab.far_room",
        "5 GHz far room",
        "far room",
        Lab(latency_ms=4, jitter_ms=3, rate_mb_s=12),
    ),
    Preset(
        "wan",
        "lab.wan",
        "WAN 20 ms",
        "WAN",
        Lab(latency_ms=20, jitter_ms=2, rate_mb_s=6),
    ),
)
NAME_WIDTH = 17
GAP = "  "


def preset_of(lab: Lab | None) -> Preset | None:
    """The preset a lab is; None when it is one's own."""
    return next((preset for preset in PRESETS if same_lab(preset.lab, lab)), None)


def preset_named(preset_id: str) -> Preset:
    """A preset by its id."""
    return next(preset for preset in PRESETS if preset.id == preset_id)


def describe(lab: Lab | None) -> str:
    """``+1.5 ± 0.5 ms, 30 MB/s``; empty where it changes nothing."""
    return "" if lab is None else format_lab(lab)


class PresetList(StripWidget):
    """The presets with their keys: a row each, or all in one where rows are few."""

    DEFAULT_CSS = """
    PresetList {
        height: 5;
        width: 1fr;
        pointer: pointer;
    }
    """

    lab: reactive[Lab | None] = reactive(None, init=False)
    """The lab of the focused link; the list marks its preset."""

    class Picked(Message):
        """A preset was clicked."""

        def __init__(self, preset: Preset) -> None:
            super().__init__()
            self.preset = preset

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._hits: list[tuple[int, int, Preset]] = []

    def watch_lab(self) -> None:
        self.redraw()

    def draw(self, width: int, height: int) -> list[Strip]:
        if height < len(PRESETS):
            return [self._together(width)]
        return [line(self._row(preset), width) for preset in PRESETS]

    def on_click(self, event: events.Click) -> None:
        if preset := self._preset_at(*event.get_content_offset_capture(self)):
            self.post_message(self.Picked(preset))

    def _preset_at(self, x: int, y: int) -> Preset | None:
        if self.content_size.height >= len(PRESETS):
            return PRESETS[y] if 0 <= y < len(PRESETS) else None
        found = (preset for start, end, preset in self._hits if start <= x < end)
        return next(found, None)

    def _row(self, preset: Preset) -> list[Part]:
        chosen = same_lab(preset.lab, self.lab)
        name = self.palette.strong if chosen else self.palette.text
        return [
            ("● " if chosen else "  ", self.palette.accent),
            (f"{key_of(self.app, preset.action):<2} ", self.palette.key),
            (f"{preset.name:{NAME_WIDTH}}", name),
            (describe(preset.lab), self.palette.dim),
        ]

    def _together(self, width: int) -> Strip:
        """Keys and short names side by side; remembers where, for clicks."""
        parts: list[Part] = []
        self._hits = []
        for preset in PRESETS:
            start = parts_width(parts)
            chosen = same_lab(preset.lab, self.lab)
            name = self.palette.strong if chosen else self.palette.dim
            key = key_of(self.app, preset.action)
            parts += [(f"{key} ", self.palette.key), (preset.short, name)]
            self._hits.append((start, parts_width(parts), preset))
            parts.append((GAP, self.palette.dim))
        return line(parts, width)
