"""The frame of every screen: status line above, key bar below, a least size."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar, NamedTuple

from rich.style import Style
from textual import events, on
from textual._compositor import ChopsUpdate, Compositor
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.dom import DOMNode
from textual.geometry import Offset, Region
from textual.reactive import reactive
from textual.screen import Screen
from textual.strip import Strip
from textual.timer import Timer
from textual.widget import Widget

from backends.state import DEFAULT_CLUSTER, ClusterSnapshot, ClusterState
from backends.units import format_age, format_rate
from tui.actions import FUNCTION_KEYS, bindings
from tui.app.messages import Raw
from tui.model.facts import warnings
from tui.model.names import SCREENS, model_name
from tui.widgets.background_errors import report_worker
from tui.widgets.keys import spelled, with_keys
from tui.widgets.panes import BALANCED, Arrangement, PaneLayout, PaneRow
from tui.widgets.strips import Drawn, Part, StripWidget, clip, line, parts_width, spread

Bound = tuple[DOMNode, str]


STATE_WIDTH = 12
RECORDING = "● rec  "
URL_WIDTH = 26
URL_FROM = 76
URL_IN_FULL_FROM = 96

_SIGNS = {
    ClusterState.IDLE: ("○", "dim"),
    ClusterState.STARTING: ("◐", "warn"),
    ClusterState.LOADING: ("◐", "warn"),
    ClusterState.SERVING: ("●", "ok"),
    ClusterState.STOPPING: ("◐", "warn"),
    ClusterState.FAILED: ("✗", "bad"),
}


class StatusLine(StripWidget):
    """The state of the cluster, in fixed columns."""

    DEFAULT_CSS = """
    StatusLine { dock: top; height: 1; padding: 0 1; background: $panel; }
    """

    snapshot: reactive[ClusterSnapshot | None] = reactive(
        None, init=False, repaint=False
    )
    """The newest snapshot; None before the first."""
    model: Drawn[str] = Drawn("")
    """Path of the model being edited; the running one goes before it."""
    connected: reactive[bool] = reactive(True, init=False)
    held: reactive[bool] = reactive(False, init=False)
    """True if the panes below show a past moment."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lost_at = 0.0
        self._held_at = 0.0
        self._ageing: Timer | None = None

    def on_mount(self) -> None:
        self._ageing = self.set_interval(1.0, self.redraw, pause=True)
        self._age()

    def draw(self, width: int, height: int) -> list[Strip]:
        name: list[Part] = [("dllm", self.palette.key), ("  ", self.palette.dim)]
        snapshot = self.snapshot
        cluster = snapshot.cluster if snapshot else DEFAULT_CLUSTER
        if cluster != DEFAULT_CLUSTER or (snapshot and len(snapshot.clusters) > 1):
            name += [(cluster, self.palette.accent), (" ▸ ", self.palette.dim)]
        parts = [*self._notes(short=width < URL_IN_FULL_FROM), *self._state()]
        url = (self.snapshot and self.snapshot.api_url) or ""
        if width >= URL_IN_FULL_FROM:
            url = f"{url:<{URL_WIDTH}}"
        else:
            url = f"{url.removeprefix('http://'):<{URL_WIDTH - len('http://')}}"
        if width >= URL_FROM:
            parts += [(url, self.palette.text), ("  ", self.palette.dim)]
        right = [*parts, *self._speed()]
        room = width - parts_width(name) - parts_width(right) - 2
        path = snapshot.plan.model if snapshot and snapshot.plan else self.model
        model = model_name(path) if path else "no model"
        name.append((clip(model, max(room, 0)), self.palette.strong))
        return [spread(name, right, width)]

    def watch_snapshot(
        self, old: ClusterSnapshot | None, new: ClusterSnapshot | None
    ) -> None:
        if _shown(old) != _shown(new):
            self.redraw_changed()

    def watch_connected(self) -> None:
        self._lost_at = self._clock()
        self._age()

    def watch_held(self) -> None:
        self._held_at = self._clock()
        self._age()

    def _age(self) -> None:
        if self._ageing is not None:
            fresh = self.connected and not self.held
            (self._ageing.pause if fresh else self._ageing.resume)()
        self.redraw()

    def _notes(self, *, short: bool) -> list[Part]:
        notes = warnings(self.snapshot, short=short)
        if self.held:
            age = format_age(self._clock() - self._held_at)
            notes.insert(0, f"‖ frozen · {age} old")
        if note := getattr(self.app, "note", ""):
            notes.append(note)
        shown = [(f"{note}  ", self.palette.warn) for note in notes]
        if getattr(self.app, "recording", False):
            shown.append((RECORDING, self.palette.alarm))
        return shown

    def _state(self) -> list[Part]:
        if not self.connected:
            age_s = self._clock() - self._lost_at
            doing = "waiting for a controller"
            if self.snapshot is not None:
                doing = f"reconnecting · {format_age(age_s)} old"
            return [(f"◌ {doing}  ", self.palette.warn)]
        if self.snapshot is None:
            return [(clip("◌ connecting", STATE_WIDTH + 1), self.palette.dim)]
        sign, tone = _SIGNS[self.snapshot.state]
        style = getattr(self.palette, tone)
        return [(clip(f"{sign} {self.snapshot.state}", STATE_WIDTH), style)]

    def _speed(self) -> list[Part]:
        rate = _rate(self.snapshot)
        if self.snapshot is None or self.snapshot.state != ClusterState.SERVING:
            return [(" " * 11, self.palette.dim)]
        now = self.connected and rate is not None
        style = self.palette.strong if now else self.palette.dim
        return [(format_rate(rate), style), (" tok/s", self.palette.dim)]


def _rate(snapshot: ClusterSnapshot | None) -> float | None:
    if snapshot is None or snapshot.state != ClusterState.SERVING:
        return None
    # Between answers there is none: Live has that of the last one, named so.
    return snapshot.speed.tok_per_s


def _shown(snapshot: ClusterSnapshot | None) -> object:
    if snapshot is None:
        return None
    model = snapshot.plan.model if snapshot.plan else ""
    rate = format_rate(_rate(snapshot))
    notes = warnings(snapshot)
    name = snapshot.cluster, len(snapshot.clusters) > 1
    return name, snapshot.state, model, snapshot.api_url, rate, notes


MODES = tuple(f"app.{screen}" for screen in SCREENS)
# Shown whatever the width: with these two everything else can be found.
ALWAYS = ("app.help", "app.quit")
# Shown whatever the width, while it does something: what a changed plan waits for.
AWAITED = ("cluster.launch",)
# Likewise where the screens have their names.
ENDING = ("cluster.stop",)
DIVIDER = "│  "
TINY_BELOW = 80
_UNDERLINE = Style(underline=True)


class Chip(NamedTuple):
    """One key of the bar and what a click on it runs."""

    id: str
    key: str
    label: str
    bound: Bound

    @property
    def width(self) -> int:
        """Columns it takes, with the space after it."""
        return len(self.key) + len(self.label) + (3 if self.label else 2)


class KeyBar(StripWidget):
    """Screens at the left, then the keys of the focused pane, then everyone's."""

    DEFAULT_CSS = """
    KeyBar { dock: bottom; height: 1; padding: 0 1; background: $panel; }
    """

    note: Drawn[str] = Drawn("")
    """Something the keys should be read with: ``2 panes hidden``."""
    muted: Drawn[frozenset[str]] = Drawn(frozenset())
    """Ids of actions that would say no now: they work, but are not offered."""

    def __init__(self) -> None:
        super().__init__()
        self._chips: list[Chip] = []
        self._hits: list[tuple[int, int, Chip]] = []

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._bindings_changed)

    def draw(self, width: int, height: int) -> list[Strip]:
        self._hits = []
        parts: list[Part] = []
        divided = False
        note = len(self.note) + 1 if self.note else 0
        for chip in self._fitting(width - note - len(DIVIDER)):
            if chip.id not in MODES and parts and not divided:
                divided = True
                parts.append((DIVIDER, self.palette.border))
            self._add(parts, chip)
        gap = width - parts_width(parts) - len(self.note)
        if self.note and gap > 0:
            parts += [(" " * gap, self.palette.dim), (self.note, self.palette.warn)]
        return [line(parts, width)]

    async def on_click(self, event: events.Click) -> None:
        x = event.get_content_offset_capture(self).x
        for start, end, chip in self._hits:
            if start <= x < end:
                namespace, action = chip.bound
                await self.app.run_action(action, namespace)

    def press_spots(self) -> list[Offset]:
        return [Offset(start, 0) for start, _, _ in self._hits]

    def _bindings_changed(self, screen: Screen[object]) -> None:
        if not screen.is_active:
            # Behind a dialog it stays as it was, dimmed like all the rest.
            return
        chips = _chips(screen)
        if [chip[:3] for chip in chips] != [chip[:3] for chip in self._chips]:
            self._chips = chips
            self.redraw()
        self._chips = chips

    def _fitting(self, width: int) -> list[Chip]:
        narrow = self.app.size.width < NARROW_BELOW
        chips = [chip for chip in self._chips if chip.id not in self.muted]
        if narrow:
            chips = [
                chip._replace(label="")
                if chip.id in MODES and not self._is_here(chip)
                else chip
                for chip in chips
            ]
        if self.app.size.width < TINY_BELOW:
            chips.sort(key=lambda chip: chip.id in MODES and not self._is_here(chip))
        due = {*ALWAYS, *AWAITED, *(() if narrow else ENDING)}
        room = width - sum(chip.width for chip in chips if chip.id in due)
        kept: list[Chip] = []
        for chip in chips:
            if chip.id not in due:
                room -= chip.width
            if chip.id in due or room >= 0:
                kept.append(chip)
        return kept

    def _is_here(self, chip: Chip) -> bool:
        return chip.id in MODES and chip.id == f"app.{self.app.current_mode}"

    def _add(self, parts: list[Part], chip: Chip) -> None:
        start, palette = parts_width(parts), self.palette
        here = self._is_here(chip)
        label = palette.strong + _UNDERLINE if here else palette.dim
        parts += [(chip.key, palette.key)]
        parts += [(" ", palette.dim), (chip.label, label)] if chip.label else []
        parts += [("  ", palette.dim)]
        self._hits.append((start, parts_width(parts) - 1, chip))


def _shown_key(app: App[object], binding: Binding) -> str:
    if binding.key_display and not binding.key.startswith("ctrl+"):
        return spelled(app, binding.key_display)
    key = app.get_key_display(binding.with_key(binding.key))
    return key.upper() if binding.key in FUNCTION_KEYS else key


def _chips(screen: Screen[object]) -> list[Chip]:
    """Screens first, a replay's keys, then shown bindings from the focus outwards."""
    chips: dict[str, Chip] = {}
    typing = getattr(screen.focused, "takes_digits", False)
    app = screen.app
    for node, binding, enabled, _tooltip in screen.active_bindings.values():
        mode = binding.id in MODES
        if not enabled or not (mode or binding.show):
            continue
        if binding.id in getattr(app, "unoffered", ()):
            continue
        key = _shown_key(app, binding)
        bound = (node, binding.action)
        chip = Chip(binding.id or binding.action, key, binding.description, bound)
        if chip.id not in chips or (mode and typing and binding.key in FUNCTION_KEYS):
            chips[chip.id] = chip
    places = {mode: place for place, mode in enumerate(MODES)}

    def place(chip: Chip) -> int:
        last = (
            0 if chip.id == "replay.play" else 1 + (not chip.id.startswith("replay."))
        )
        return places.get(chip.id, len(MODES) + last)

    return sorted(chips.values(), key=place)


NARROW_BELOW = 100
MIN_WIDTH = 60
MIN_HEIGHT = 18


class SizeNotice(StripWidget):
    """Covers the screen below the smallest size, and names both sizes."""

    DEFAULT_CSS = """
    SizeNotice {
        display: none;
        overlay: screen;
        width: 100vw;
        height: 100vh;
        background: $background;
        layer: notice;
    }
    """

    def draw(self, width: int, height: int) -> list[Strip]:
        texts = [
            ("Make this terminal larger,", self.palette.strong),
            ("or use dllm-tui --plain", self.palette.strong),
            (f"it needs {MIN_WIDTH}×{MIN_HEIGHT}", self.palette.text),
            (f"it is    {width}×{height}", self.palette.warn),
        ][-height:]
        blank = line([], width)
        lines = [
            line(
                [(" " * max((width - len(text)) // 2, 0), style), (text, style)], width
            )
            for text, style in texts
        ]
        return [blank] * ((height - len(lines)) // 2) + lines


class ChangedOnly(Compositor):
    """Draws only widgets of which something that changed can be seen.

    Textual draws all that lie between the first and the last of these, and all behind.
    """

    def render_partial_update(self) -> ChopsUpdate | None:
        everything, _ = self.visible_widgets, self.cuts
        left = set(self._dirty_regions)
        wanted: dict[Widget, tuple[Region, Region]] = {}
        for widget, place in everything.items():  # The front ones first.
            seen = Region.intersection(*place)
            if any(map(seen.overlaps, left)):
                wanted[widget] = place
                left = {one for one in left if not seen.contains_region(one)}
        self._visible_widgets = wanted
        try:
            return super().render_partial_update()
        finally:
            self._visible_widgets = everything


ZOOMED = "zoomed: {app.zoom} shows all"
SHORT_BELOW = 24
ONE_LAYOUT = "This screen has one layout in a terminal of this size"
LAYOUT_SAID_S = 2.0


class ConsoleScreen(Screen[None]):
    """A screen one switches to by its number.

    Its layouts are told by classes; ``arrange_panes`` does what those cannot.
    """

    BINDINGS = bindings("panes")
    LAYOUTS: ClassVar[tuple[PaneLayout, ...]] = (BALANCED,)
    FIGURES = True
    ALLOW_IN_MAXIMIZED_VIEW = "StatusLine, ReplayBar, KeyBar, SizeNotice"
    ESCAPE_TO_MINIMIZE = False
    HORIZONTAL_BREAKPOINTS = [
        (0, "-tiny"),
        (MIN_WIDTH, "-narrow"),
        (NARROW_BELOW, "-normal"),
        (150, "-wide"),
    ]
    VERTICAL_BREAKPOINTS = [
        (0, "-flat"),
        (MIN_HEIGHT, "-short"),
        (SHORT_BELOW, "-medium"),
        (32, "-tall"),
    ]

    on_worker_state_changed = report_worker

    def __init__(self) -> None:
        super().__init__()
        self._compositor = ChangedOnly()
        self.status_line = StatusLine()
        self.key_bar = KeyBar()
        self.shown: ClusterSnapshot | None = None
        self.arrangement = Arrangement()
        self.refusals: dict[str, str] = {}
        """Actions that would do nothing now, and why, by their ids."""

    def compose(self) -> ComposeResult:
        # Its widgets are styled as they are mounted, for this size: not twice more.
        width, height = self.app.size
        breakpoints = (
            *self._get_breakpoint_classes(width, self.HORIZONTAL_BREAKPOINTS),
            *self._get_breakpoint_classes(height, self.VERTICAL_BREAKPOINTS),
        )
        self.add_class(*breakpoints, update=False)
        self._lay_out()
        yield self.status_line
        yield from self.compose_body()
        yield from getattr(self.app, "bottom_bars", tuple)()
        yield self.key_bar
        yield SizeNotice()

    def _compositor_refresh(self) -> None:
        # Textual draws a screen that it mounts, and throws it away if drawing is held.
        if self.app._batch_count:
            self.refresh()
        else:
            super()._compositor_refresh()

    @on(events.ScreenResume)
    def _style_once(self, event: events.ScreenResume) -> None:
        event.refresh_styles &= self.stack_updates > 0

    def on_mount(self) -> None:
        for row in self.query(PaneRow):
            width, height = map(self.arrangement.shares.get, self._places_of(row))
            row.shares = width, height

    def on_resize(self) -> None:
        self._lay_out()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "keep_border" or self._dragged is not None

    # --- layouts and borders ------------------------------------------------------

    @property
    def screen_name(self) -> str:
        return type(self).__name__.removesuffix("Screen").lower()

    def _places_of(self, row: PaneRow) -> tuple[str, str]:
        place = f"{self.screen_name}.{row.id}"
        return place, f"{place}.rows"

    @property
    def pane_layout(self) -> PaneLayout:
        """The layout that the user chose, where the terminal has room for it."""
        chosen = self.arrangement.layouts.get(self.screen_name)
        fitting = (one for one in self._layouts if one.id == chosen)
        return next(fitting, self.LAYOUTS[0])

    @property
    def _layouts(self) -> list[PaneLayout]:
        return [one for one in self.LAYOUTS if one.fits(self.app.size)]

    def action_next_layout(self) -> None:
        self.leave_zoom()
        there = self._layouts
        if len(there) < 2:
            self.notify(ONE_LAYOUT)
            return
        at = (there.index(self.pane_layout) + 1) % len(there)
        self.arrangement.choose(self.screen_name, there[at])
        self._lay_out()
        self.arrange_panes()
        said = f"Layout: {there[at].label} ({at + 1} of {len(there)})"
        self.notify(said, timeout=LAYOUT_SAID_S, markup=False)

    def _lay_out(self) -> None:
        for one in self.LAYOUTS:
            self.set_class(one == self.pane_layout, one.style_class)

    def arrange_panes(self) -> None:
        """Another layout is chosen: do what its class cannot."""
        # Textual styles later: a widget hidden by then would leave no focus.
        self.app.stylesheet.update(self)
        if self.focused is not None and self.focused not in self.focus_chain:
            self.set_focus(None)
            self._update_auto_focus()

    def action_move_border(self, cells: int, stacked: bool = False) -> None:
        """Move the border beside the focused pane, or the first one there is.

        The one above or below it if ``stacked``.
        """
        around = self.focused.ancestors if self.focused else ()
        rows = [node for node in around if isinstance(node, PaneRow)]
        here = (r for r in (*rows, *self.query(PaneRow)) if r.stacked is stacked)
        if not any(row.move(cells) for row in here):
            self.app.bell()

    def action_reset_borders(self) -> None:
        for row in self.query(PaneRow):
            row.put_back()

    def action_keep_border(self) -> None:
        if self._dragged is not None:
            self._dragged.drop(cancel=True)

    @property
    def _dragged(self) -> PaneRow | None:
        held = self.app.mouse_captured
        return held if isinstance(held, PaneRow) else None

    @on(PaneRow.Moved)
    def _border_moved(self, message: PaneRow.Moved) -> None:
        message.stop()
        row = message.row
        self.arrangement.share(self._places_of(row)[row.stacked], row.share)

    # --- zoom ---------------------------------------------------------------------

    def action_zoom(self) -> None:
        panes = self.focused.ancestors_with_self if self.focused else ()
        found = (node for node in panes if node.has_class("pane"))
        pane = next(found, None)
        self.maximized = pane if isinstance(pane, Widget) and not self.zooms else None
        self.key_bar.note = with_keys(self.app, ZOOMED) if self.zooms else ""

    @property
    def zooms(self) -> bool:
        return self.maximized is not None

    def leave_zoom(self) -> bool:
        was_zoomed = self.zooms
        if was_zoomed:
            self.action_zoom()
        return was_zoomed

    def compose_body(self) -> ComposeResult:
        raise NotImplementedError

    def show_snapshot(self, snapshot: ClusterSnapshot) -> None:
        self.shown = self.status_line.snapshot = snapshot

    def raw(self) -> Raw | None:
        return Raw("the snapshot", self.shown) if self.shown else None

    def read_again(self) -> None:
        """Forget what was read before: another moment is shown."""

    def show_edit(self) -> None:
        """Show the plan in editing as it is now, on a screen of it."""

    def hold(self, held: bool) -> None:
        self.status_line.held = held

    def show_link(self, connected: bool) -> None:
        self.status_line.connected = connected
