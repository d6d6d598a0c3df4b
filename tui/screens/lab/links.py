"""The links of the Lab: their sliders, the presets, and what the user wants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, isinf
from typing import NamedTuple

import msgspec
from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.geometry import Offset
from textual.message import Message
from textual.strip import Strip

from backends.state import Lab, Link
from backends.units import format_bytes, format_lab, format_ms
from tui.model.facts import is_off
from tui.model.names import letter
from tui.model.quantities import trips_text
from tui.screens.lab.speed import Labs, link_added_ms, same_lab
from tui.widgets.keys import key_of
from tui.widgets.slider import Scale, Slider
from tui.widgets.strips import (
    Drawn,
    Part,
    StripWidget,
    fitting,
    line,
    parts_width,
    spread,
)


class Preset(NamedTuple):
    id: str
    action: str
    """The action whose key puts it on a link."""
    name: str
    short: str
    lab: Lab | None


_ETHERNET = Lab(latency_ms=0.15, rate_mb_s=118)
_WIFI = Lab(latency_ms=1.5, jitter_ms=0.5, rate_mb_s=30)
_FAR = Lab(latency_ms=4, jitter_ms=3, rate_mb_s=12)
_WAN = Lab(latency_ms=20, jitter_ms=2, rate_mb_s=6)
PRESETS = (
    Preset("none", "lab.as_it_is", "no lab", "no lab", None),
    Preset("ethernet", "lab.ethernet", "Ethernet 1 Gbit", "1 Gbit", _ETHERNET),
    Preset("wifi", "lab.wifi", "Wi-Fi", "Wi-Fi", _WIFI),
    Preset("far", "lab.far_room", "5 GHz far room", "far room", _FAR),
    Preset("wan", "lab.wan", "WAN 20 ms", "WAN", _WAN),
)
NAME_WIDTH = 17
GAP = "  "


def preset_of(lab: Lab | None) -> Preset | None:
    """The preset a lab is; None when it is one's own."""
    return next((preset for preset in PRESETS if same_lab(preset.lab, lab)), None)


def preset_named(preset_id: str) -> Preset:
    return next(preset for preset in PRESETS if preset.id == preset_id)


def describe(lab: Lab | None) -> str:
    """``+1.5 ± 0.5 ms, 30 MB/s``; empty where it changes nothing."""
    return "" if lab is None else format_lab(lab)


class PresetList(StripWidget):
    """The presets with their keys: a row each, or all in one where rows are few."""

    DEFAULT_CSS = "PresetList { height: 5; width: 1fr; pointer: pointer; }"

    lab: Drawn[Lab | None] = Drawn(None)
    """The lab of the focused link; the list marks its preset."""

    @dataclass
    class Picked(Message):
        preset: Preset

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._hits: list[tuple[int, int, Preset]] = []

    def draw(self, width: int, height: int) -> list[Strip]:
        if height < len(PRESETS):
            return [self._together(width)]
        return [line(self._row(preset), width) for preset in PRESETS]

    def press_spots(self) -> list[Offset]:
        if self.content_size.height < len(PRESETS):
            return [Offset(start, 0) for start, _, _ in self._hits]
        return [Offset(0, y) for y in range(len(PRESETS))]

    def on_click(self, event: events.Click) -> None:
        x, y = event.get_content_offset_capture(self)
        found = [preset for start, end, preset in self._hits if start <= x < end]
        if self.content_size.height >= len(PRESETS):
            found = [*PRESETS[y : y + 1]]
        for preset in found:
            self.post_message(self.Picked(preset))

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


NO_LIMIT = inf

LATENCY = Scale(
    (0, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500),
    (10, 10, 10, 6, 10, 10, 6, 10, 10, 6),
    "ms",
)
JITTER = Scale((0, 0.5, 1, 2, 5, 10, 20, 50, 100), (10, 10, 10, 6, 10, 10, 6, 10), "ms")
RATE = Scale(
    (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, NO_LIMIT),
    (5, 6, 5, 5, 6, 5, 5, 6, 5, 5, 6, 5, 1),
    "MB/s",
    neutral=NO_LIMIT,
    typed_max=1e5,
)


class Heading(NamedTuple):
    link: Link
    lab: Lab | None
    mark: int
    current: bool


class LinkHeading(StripWidget):
    """The worker's name, what its link is by nature, and what is put on it."""

    ALLOW_SELECT = True
    heading: Drawn[Heading | None] = Drawn(None)

    def draw(self, width: int, height: int) -> list[Strip]:
        if self.heading is None:
            return []
        link, lab, mark, current = self.heading
        name = self.palette.strong if current else self.palette.text
        left: list[Part] = [
            (f"{letter(mark)} ", self.palette.device(mark)),
            (link.worker, name),
        ]
        right = self._state(link, lab)
        room = width - parts_width([*left, *right]) - 5
        left += [("   ", name), (fitting(_natures(link), room), self.palette.dim)]
        return [spread(left, right, width)]

    def _state(self, link: Link, lab: Lab | None) -> list[Part]:
        if is_off(lab):
            return [("no lab", self.palette.dim)]
        cost, preset = link_added_ms(link, lab), preset_of(lab)
        name = preset.short if preset else "set"
        added = "" if cost is None else f"{f'~+{format_ms(cost)} a token':>18}"
        return [(f"{name}{added}", self.palette.warn)]


class LinkBlock(Vertical):
    DEFAULT_CSS = "LinkBlock { height: 4; padding: 0 1; }"

    @dataclass
    class Changed(Message):
        """The user put something on this link; not ``final`` while dragging."""

        block: LinkBlock
        lab: Lab | None
        final: bool

    def __init__(self, worker: str) -> None:
        super().__init__()
        self.worker = worker
        self._lab: Lab | None = None
        self._heading = LinkHeading()
        self.latency = Slider("latency", LATENCY, classes="latency")
        self.jitter = Slider("jitter ±", JITTER, classes="jitter")
        self.rate = Slider("bandwidth", RATE, classes="rate")

    @property
    def sliders(self) -> tuple[Slider, Slider, Slider]:
        return self.latency, self.jitter, self.rate

    @property
    def dragging(self) -> bool:
        return any(slider.dragging for slider in self.sliders)

    @property
    def lab(self) -> Lab | None:
        """The lab that the sliders set; None if they change nothing."""
        rate = self.rate.value
        lab = msgspec.structs.replace(
            self._lab or Lab(),
            latency_ms=self.latency.value,
            jitter_ms=self.jitter.value,
            rate_mb_s=0.0 if isinf(rate) else rate,
        )
        return None if is_off(lab) else lab

    def compose(self) -> ComposeResult:
        yield self._heading
        yield from self.sliders

    def show_link(self, link: Link, mark: int, *, current: bool) -> None:
        self._heading.heading = Heading(link, self.lab, mark, current)

    def show_lab(self, lab: Lab | None) -> None:
        self._lab = lab
        shown = lab or Lab()
        self.latency.show_value(shown.latency_ms)
        self.jitter.show_value(shown.jitter_ms)
        self.rate.show_value(shown.rate_mb_s or NO_LIMIT)

    def on_click(self, event: events.Click) -> None:
        if not any(slider.has_focus for slider in self.sliders):
            self.latency.focus()

    @on(Slider.Changed)
    def _slider_changed(self, event: Slider.Changed) -> None:
        event.stop()
        self.post_message(self.Changed(self, self.lab, final=event.final))


def _natures(link: Link) -> list[str]:
    rtt = "" if link.rtt_ms is None else f"RTT {format_ms(link.rtt_ms)}"
    if link.round_trips_per_token is None:
        note = "not understood" if link.mode == "plain" else "metered, no token yet"
        return [" · ".join(text for text in (rtt, note) if text), rtt]
    trips = f"{trips_text(link)} trips/token"
    up = format_bytes(link.bytes_up_per_token or 0)
    flow = f"{up} up · {format_bytes(link.bytes_down_per_token or 0)} down"
    texts = [text for text in (rtt, trips, flow) if text]
    return [" · ".join(texts[:n]) for n in range(len(texts), 0, -1)]


GRACE_S = 2.0
"""For so long a snapshot that says otherwise is taken for one from before."""
UNDO_MAX = 100


class LabWishes:
    """The labs as wanted, with a way back; the cluster's word counts in the end."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.labs: Labs = {}
        self._clock = clock
        self._asked_at: dict[str, float] = {}
        self._asked: Labs = {}
        self._history: list[Labs] = []

    def want(self, labs: Mapping[str, Lab | None], *, final: bool = True) -> bool:
        """Take what the user wants; False when it is so already.

        What is final is one step of undo; before that the links only count as asked.
        """
        for worker, lab in labs.items():
            self._ask(worker, lab)
        if not final:
            return True
        before = {worker: self.labs.get(worker) for worker in labs}
        changed = any(not same_lab(before[worker], labs[worker]) for worker in labs)
        if changed:
            self._history = [*self._history, before][-UNDO_MAX:]
            self.labs.update(labs)
        return changed

    def undo(self) -> Labs | None:
        if not self._history:
            return None
        before = self._history.pop()
        self.labs.update(before)
        for worker, lab in before.items():
            self._ask(worker, lab)
        return before

    def adopt(self, link: Link) -> bool:
        """Take over the lab of a link; False while the last wish may be under way."""
        worker, lab = link.worker, None if is_off(link.lab) else link.lab
        asked_at = self._asked_at.get(worker)
        if asked_at is not None:
            late = self._clock() - asked_at > GRACE_S
            if not late and not same_lab(lab, self._asked.get(worker)):
                return False
            del self._asked_at[worker]
        self.labs[worker] = lab
        return True

    def forget(self, workers: set[str]) -> None:
        """Keep only what is known of these workers."""
        self.labs = {w: lab for w, lab in self.labs.items() if w in workers}
        self._asked_at = {w: at for w, at in self._asked_at.items() if w in workers}

    def _ask(self, worker: str, lab: Lab | None) -> None:
        self._asked[worker] = lab
        self._asked_at[worker] = self._clock()
