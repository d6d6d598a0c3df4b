"""One value on one line: a label, a track with a thumb, and the value in its unit."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from itertools import pairwise
from math import isinf

from rich.cells import cell_len
from rich.style import Style
from textual import events
from textual.message import Message
from textual.strip import Strip

from backends.units import three_figures
from tui.actions import bindings
from tui.widgets.number_strip import NumberStrip
from tui.widgets.strips import Drawn, Part, clip, line

_ALMOST = 1e-9


@dataclass(frozen=True, eq=False)
class Scale:
    """Values along a track: the stops at even distances, straight lines between."""

    stops: tuple[float, ...]
    """Ascending; the last may be infinite."""
    parts: tuple[int, ...]
    """The number of steps between two stops."""
    unit: str
    """Written after a value."""
    _: KW_ONLY
    neutral: float = 0.0
    """The value that changes nothing."""
    typed_max: float = 1e4
    """The most a typed value may be, also beyond the last stop."""

    @cached_property
    def grid(self) -> tuple[float, ...]:
        values = [self.stops[0]]
        for (low, high), parts in zip(pairwise(self.stops), self.parts, strict=True):
            inner = (low + (high - low) * n / parts for n in range(1, parts))
            values += [*(round(value, 6) for value in inner), high]
        return tuple(values)

    def fraction(self, value: float) -> float:
        """The place of a value on the track, 0…1."""
        stops = self.stops
        if value <= stops[0]:
            return 0.0
        if value >= stops[-1]:
            return 1.0
        gap = bisect_right(stops, value) - 1
        low, high = stops[gap], stops[gap + 1]
        part = 0.5 if isinf(high) and value > low else (value - low) / (high - low)
        return (gap + part) / (len(stops) - 1)

    def at(self, fraction: float) -> float:
        return min(self.grid, key=lambda value: abs(self.fraction(value) - fraction))

    def step(self, value: float, by: int) -> float:
        """So many values of the grid up or down; one between two goes to the next."""
        grid = self.grid
        if by > 0:
            index = bisect_right(grid, value + _ALMOST) - 1 + by
        else:
            index = bisect_left(grid, value - _ALMOST) + by
        return grid[min(max(index, 0), len(grid) - 1)]

    def parse(self, text: str) -> float | None:
        """A typed number as a value; 0 means no limit where that is the neutral."""
        try:
            value = float(text)
        except ValueError:
            return None
        if isinf(self.neutral) and value == 0:
            return self.neutral
        return min(max(value, self.stops[0]), self.typed_max)

    def text(self, value: float) -> str:
        """``20.0 ms``: three figures and the unit, or ``no limit``."""
        if isinf(value):
            return "no limit"
        return f"{value_text(value)} {self.unit}"


def value_text(value: float) -> str:
    return three_figures(value) if value else "0"


LABEL_WIDTH = 12
"""Columns before the track: the mark of the focus and the label."""
VALUE_WIDTH = 11
"""Columns after the track: the value and its unit."""
TRACK_MIN = 4
FAR = 10_000
"""More steps than any scale has."""


class Slider(NumberStrip, can_focus=True):
    """A value one drags, steps or types.

    Mouse and keys do the same: a move shows and is told at once, and is ``final`` when
    the thumb is let go.
    """

    BINDINGS = bindings("slider")
    DEFAULT_CSS = "Slider { height: 1; width: 1fr; pointer: ew-resize; }"
    TYPED_MAX = 7
    HAS_POINT = True

    value: Drawn[float] = Drawn(0.0)
    """The value of the thumb; it may lie between two steps."""

    @dataclass
    class Changed(Message):
        """The user moved the thumb; not ``final`` while a drag goes on."""

        slider: Slider
        value: float
        final: bool

        def can_replace(self, message: Message) -> bool:
            return (
                not self.final
                and isinstance(message, Slider.Changed)
                and message.slider is self.slider
            )

    def __init__(
        self,
        label: str,
        scale: Scale,
        *,
        id: str | None = None,  # noqa: A002
        classes: str | None = None,
    ) -> None:
        super().__init__(id=id, classes=classes)
        self.label = label
        self.scale = scale
        self._start = scale.neutral
        self.set_reactive(Slider.value, scale.neutral)

    def show_value(self, value: float) -> None:
        if not self.dragging:
            self.value = value

    @property
    def track_width(self) -> int:
        return max(self.content_size.width - LABEL_WIDTH - VALUE_WIDTH, 1)

    @property
    def thumb_x(self) -> int:
        return LABEL_WIDTH + self._column(self.value)

    @property
    def is_active(self) -> bool:
        return self.has_focus or self.dragging

    def draw(self, width: int, height: int) -> list[Strip]:
        has_track = width >= LABEL_WIDTH + VALUE_WIDTH + TRACK_MIN
        track = self._track() if has_track else []
        return [line([*self._label(), *track, *self._shown_value()], width)]

    def _label(self) -> list[Part]:
        style = self.palette.strong if self.is_active else self.palette.dim
        mark = "▸ " if self.is_active else "  "
        return [(mark, self.palette.key), (clip(self.label, LABEL_WIDTH - 2), style)]

    def _track(self) -> list[Part]:
        """A line with the stops on it, thick from where it changes nothing."""
        thumb, neutral = self._column(self.value), self._column(self.scale.neutral)
        first, last = sorted((thumb, neutral))
        cells = list("─" * self.track_width)
        for stop in self.scale.stops:
            cells[self._column(stop)] = "┴"
        end = last + 1 if thumb < neutral else last
        cells[first:end] = "━" * (end - first)
        plain, filled = self.palette.border, self.palette.graph
        if self.is_active:
            filled = self.palette.accent
        parts = [(cells[:first], plain), (cells[first:end], filled)]
        parts.append((cells[end:], plain))
        is_neutral = self.value == self.scale.neutral
        style = self.palette.dim if is_neutral else self.palette.accent
        style = self.palette.handle if self.is_active else style
        return _with_thumb(parts, thumb, style)

    def _shown_value(self) -> list[Part]:
        text = self.scale.text(self.value)
        style = self.palette.strong
        if self.value == self.scale.neutral:
            style = self.palette.dim
        if self.typed is not None:
            text, style = f"{self.typed}▏{self.scale.unit}", self.palette.key
        blank = " " * max(VALUE_WIDTH - cell_len(text), 0)
        return [(blank, self.palette.text), (text, style)]

    def _column(self, value: float) -> int:
        return round(self.scale.fraction(value) * (self.track_width - 1))

    def action_step(self, by: int) -> None:
        if not self.dragging:
            self._commit(self.scale.step(self.value, by))

    def action_to_end(self, direction: int) -> None:
        self.action_step(direction * FAR)

    @property
    def takes_number(self) -> bool:
        return not self.dragging

    def take_number(self, text: str) -> None:
        if (value := self.scale.parse(text)) is not None:
            self._commit(value)

    def on_mouse_down(self, event: events.MouseDown) -> None:
        if event.button != 1:
            return
        event.stop()
        x = event.get_content_offset_capture(self).x
        if not LABEL_WIDTH <= x < LABEL_WIDTH + self.track_width:
            return
        self._start = self.value
        self.grab()
        if x != self.thumb_x:
            self.drag_to(x)

    def drag_to(self, x: int) -> None:
        column, span = x - LABEL_WIDTH, max(self.track_width - 1, 1)
        value = self._start
        if column != self._column(value):
            value = self.scale.at(min(max(column / span, 0.0), 1.0))
        if value != self.value:
            self.value = value
            self.post_message(self.Changed(self, value, final=False))

    def _commit(self, value: float) -> None:
        if value != self.value:
            self.value = value
            self.post_message(self.Changed(self, value, final=True))

    def drop(self, *, cancel: bool = False) -> None:
        self.release()
        if self.value != self._start:
            self.value = self._start if cancel else self.value
            self.post_message(self.Changed(self, self.value, final=True))


def _with_thumb(
    parts: list[tuple[list[str], Style]], thumb: int, style: Style
) -> list[Part]:
    shown: list[Part] = []
    start = 0
    for cells, ground in parts:
        at = thumb - start
        start += len(cells)
        if 0 <= at < len(cells):
            shown += [("".join(cells[:at]), ground), ("●", style)]
            shown.append(("".join(cells[at + 1 :]), ground))
        else:
            shown.append(("".join(cells), ground))
    return shown
