"""The top line: model, state, address and speed, each in its place."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from textual.reactive import reactive

from backends.state import ClusterState
from backends.units import format_rate
from tui.widgets.strips import Part, StripWidget, clip, parts_width, spread

if TYPE_CHECKING:
    from textual.strip import Strip

    from backends.state import ClusterSnapshot

STATE_WIDTH = 12
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
    """What the cluster does now, in fixed columns."""

    DEFAULT_CSS = """
    StatusLine {
        dock: top;
        height: 1;
        padding: 0 1;
        background: $panel;
    }
    """

    snapshot: reactive[ClusterSnapshot | None] = reactive(None, init=False)
    """The newest snapshot; None before the first."""
    model: reactive[str] = reactive("", init=False)
    """Path of the model being edited; the running one goes before it."""
    connected: reactive[bool] = reactive(True, init=False)
    """Whether the controller answers."""

    def draw(self, width: int, height: int) -> list[Strip]:
        """Name at the left, state, address and speed at the right."""
        name: list[Part] = [("dllm", self.palette.key), ("  ", self.palette.dim)]
        right = self._right(width)
        room = width - parts_width(name) - parts_width(right) - 2
        name.append((clip(self._model_shown(), max(room, 0)), self.palette.strong))
        return [spread(name, right, width)]

    def watch_snapshot(
        self, old: ClusterSnapshot | None, new: ClusterSnapshot | None
    ) -> None:
        """Draw only what differs here."""
        if _shown(old) != _shown(new):
            self.redraw()

    def watch_model(self) -> None:
        """Another model is being edited."""
        self.redraw()

    def watch_connected(self) -> None:
        """The controller went or came."""
        self.redraw()

    def _model_shown(self) -> str:
        plan = self.snapshot.plan if self.snapshot else None
        path = plan.model if plan else self.model
        return model_name(path) if path else "no model"

    def _right(self, width: int) -> list[Part]:
        parts = self._state()
        url = self.snapshot.api_url if self.snapshot else None
        if width >= URL_FROM:
            shown = _address(url or "", in_full=width >= URL_IN_FULL_FROM)
            parts += [(shown, self.palette.text), ("  ", self.palette.dim)]
        return [*parts, *self._speed()]

    def _state(self) -> list[Part]:
        if not self.connected:
            return [(clip("◌ reconnecting", STATE_WIDTH + 3), self.palette.warn)]
        if self.snapshot is None:
            return [(clip("◌ connecting", STATE_WIDTH + 1), self.palette.dim)]
        sign, tone = _SIGNS[self.snapshot.state]
        style = getattr(self.palette, tone)
        return [(clip(f"{sign} {self.snapshot.state}", STATE_WIDTH), style)]

    def _speed(self) -> list[Part]:
        rate = _rate(self.snapshot)
        if self.snapshot is None or self.snapshot.state != ClusterState.SERVING:
            return [(" " * 11, self.palette.dim)]
        style = self.palette.strong if rate is not None else self.palette.dim
        return [(format_rate(rate), style), (" tok/s", self.palette.dim)]


def model_name(path: str) -> str:
    """A model's file name without its ending."""
    name = PurePath(path).name
    return name.removesuffix(".gguf")


def _address(url: str, *, in_full: bool) -> str:
    """The address in a constant width; scheme left out where there is little room."""
    if in_full:
        return f"{url:<{URL_WIDTH}}"
    return f"{url.removeprefix('http://'):<{URL_WIDTH - len('http://')}}"


def _rate(snapshot: ClusterSnapshot | None) -> float | None:
    if snapshot is None or snapshot.state != ClusterState.SERVING:
        return None
    speed = snapshot.speed
    return speed.last_tok_per_s if speed.tok_per_s is None else speed.tok_per_s


def _shown(snapshot: ClusterSnapshot | None) -> object:
    """What of a snapshot this line shows."""
    if snapshot is None:
        return None
    model = snapshot.plan.model if snapshot.plan else ""
    return snapshot.state, model, snapshot.api_url, format_rate(_rate(snapshot))
