"""The moment of a replay on a track, with marks where something happened."""

from __future__ import annotations

from dataclasses import dataclass

from rich.style import Style
from textual import events
from textual.message import Message
from textual.strip import Strip

from backends.state import MarkKind
from tui.api.services import ReplayService
from tui.widgets.strips import Part, StripWidget, line, parts_width

TRACK_MIN = 10
SIGNS = {MarkKind.EVENT: "·", MarkKind.ANSWER: "◆", MarkKind.FAULT: "✗"}
_RANK = {"─": 0, "━": 0, "·": 1, "◆": 2, "✗": 3}


def moment(seconds: float) -> str:
    """``2:31``, or ``1:02:31``."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


class ReplayBar(StripWidget):
    """Shows the moment of a replay; the mouse goes to any other."""

    DEFAULT_CSS = """
    ReplayBar { height: 1; padding: 0 1; background: $panel; pointer: ew-resize; }
    """

    @dataclass
    class Sought(Message):
        """The user pointed at a moment."""

        at_s: float

        def can_replace(self, message: Message) -> bool:
            return isinstance(message, ReplayBar.Sought)

    def __init__(self, replay: ReplayService) -> None:
        super().__init__()
        self._replay = replay
        self._track = (0, 1)
        """The first column of the track, and how many it has."""

    def draw(self, width: int, height: int) -> list[Strip]:
        replay, palette = self._replay, self.palette
        sign = "▶" if replay.playing else "‖"
        whole = moment(replay.duration_s)
        now = moment(replay.position_s).rjust(len(whole))
        left = [
            (f"{sign} ", palette.key),
            (now, palette.strong),
            (f" / {whole}  ", palette.dim),
        ]
        right = [(f"  {replay.speed:g}×".rjust(6), palette.dim)]
        room = width - parts_width(left) - parts_width(right)
        self._track = (parts_width(left), max(room, 1))
        track = self._cells(room) if room >= TRACK_MIN else []
        return [line([*left, *track, *right], width)]

    def _cells(self, columns: int) -> list[Part]:
        here = self._column(self._replay.position_s)
        signs = ["━" if column < here else "─" for column in range(columns)]
        for mark in self._replay.marks:
            column, sign = self._column(mark.at_s), SIGNS[mark.kind]
            if _RANK[sign] > _RANK[signs[column]]:
                signs[column] = sign
        signs[here] = "●"
        return [(sign, self._style(sign)) for sign in signs]

    def _style(self, sign: str) -> Style:
        palette = self.palette
        return {
            "━": palette.graph,
            "─": palette.border,
            "·": palette.warn,
            "◆": palette.ok,
            "✗": palette.bad,
        }.get(sign, palette.handle)

    def _column(self, at_s: float) -> int:
        part = at_s / self._replay.duration_s if self._replay.duration_s else 0.0
        return round(part * (self._track[1] - 1))

    def on_mouse_down(self, event: events.MouseDown) -> None:
        event.stop()
        self.capture_mouse()
        self._seek(event)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self.app.mouse_captured is self:
            event.stop()
            self._seek(event)

    def on_mouse_up(self, event: events.MouseUp) -> None:
        event.stop()
        self.release_mouse()

    def _seek(self, event: events.MouseEvent) -> None:
        first, columns = self._track
        x = event.get_content_offset_capture(self).x - first
        part = min(max(x / max(columns - 1, 1), 0.0), 1.0)
        self.post_message(self.Sought(part * self._replay.duration_s))
