"""The top line: model, state, address and speed, each in its place."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from textual.reactive import reactive

from backends.state import DEFAULT_CLUSTER, ClusterState
from backends.units import format_age, format_rate
from tui.model.names import model_name
from tui.model.quantities import newest_rate
from tui.model.warnings import drained_text, held_text, lab_text, silent_text
from tui.widgets.strips import Part, StripWidget, clip, parts_width, spread

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.strip import Strip
    from textual.timer import Timer

    from backends.state import ClusterSnapshot

STATE_WIDTH = 12
URL_WIDTH = 26
URL_FROM = 76
URL_IN_FULL_FROM = 96

_NOTES = (lab_text, silent_text, drained_text, held_text)
"""Warnings that the figures do not show: a lab on the links, a silent worker."""
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
    StatusLine {
        dock: top;
        height: 1;
        padding: 0 1;
        background: $panel;
    }
    """

    snapshot: reactive[ClusterSnapshot | None] = reactive(
        None, init=False, repaint=False
    )
    """The newest snapshot; None before the first."""
    model: reactive[str] = reactive("", init=False)
    """Path of the model being edited; the running one goes before it."""
    connected: reactive[bool] = reactive(True, init=False)
    """True if the controller answers."""
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
        if cluster := self._cluster_shown():
            name += [(cluster, self.palette.accent), (" ▸ ", self.palette.dim)]
        right = self._right(width)
        room = width - parts_width(name) - parts_width(right) - 2
        name.append((clip(self._model_shown(), max(room, 0)), self.palette.strong))
        return [spread(name, right, width)]

    def watch_snapshot(
        self, old: ClusterSnapshot | None, new: ClusterSnapshot | None
    ) -> None:
        if _shown(old) != _shown(new):
            self.redraw_changed()

    def watch_model(self) -> None:
        self.redraw()

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

    def _model_shown(self) -> str:
        plan = self.snapshot.plan if self.snapshot else None
        path = plan.model if plan else self.model
        return model_name(path) if path else "no model"

    def _cluster_shown(self) -> str:
        name = self.snapshot.cluster if self.snapshot else DEFAULT_CLUSTER
        several = self.snapshot is not None and len(self.snapshot.clusters) > 1
        return name if several or name != DEFAULT_CLUSTER else ""

    def _right(self, width: int) -> list[Part]:
        parts = [*self._notes(short=width < URL_IN_FULL_FROM), *self._state()]
        url = self.snapshot.api_url if self.snapshot else None
        if width >= URL_FROM:
            shown = _address(url or "", in_full=width >= URL_IN_FULL_FROM)
            parts += [(shown, self.palette.text), ("  ", self.palette.dim)]
        return [*parts, *self._speed()]

    def _notes(self, *, short: bool) -> list[Part]:
        """The warnings that the figures do not show."""
        notes = [text(self.snapshot, short=short) for text in _NOTES]
        if self.held:
            age = format_age(self._clock() - self._held_at)
            notes.insert(0, f"‖ frozen · {age} old")
        if getattr(self.app, "readonly", False):
            notes.append("read-only")
        return [(f"{note}  ", self.palette.warn) for note in notes if note]

    def _state(self) -> list[Part]:
        if not self.connected and self.snapshot is None:
            return [("◌ waiting for a controller  ", self.palette.warn)]
        if not self.connected:
            age_s = self._clock() - self._lost_at
            text = f"◌ reconnecting · {format_age(age_s)} old  "
            return [(text, self.palette.warn)]
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


def _address(url: str, *, in_full: bool) -> str:
    if in_full:
        return f"{url:<{URL_WIDTH}}"
    return f"{url.removeprefix('http://'):<{URL_WIDTH - len('http://')}}"


def _rate(snapshot: ClusterSnapshot | None) -> float | None:
    if snapshot is None or snapshot.state != ClusterState.SERVING:
        return None
    return newest_rate(snapshot.speed)


def _shown(snapshot: ClusterSnapshot | None) -> object:
    """The part of a snapshot that this line shows."""
    if snapshot is None:
        return None
    model = snapshot.plan.model if snapshot.plan else ""
    rate = format_rate(_rate(snapshot))
    notes = tuple(text(snapshot) for text in _NOTES)
    several = len(snapshot.clusters) > 1
    name = snapshot.cluster, several
    return name, snapshot.state, model, snapshot.api_url, rate, notes
