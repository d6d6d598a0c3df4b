"""The Lab's speeds: predicted beside measured, and the plot of both."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from textual.containers import Vertical
from textual.reactive import reactive

from backends.state import MemorySource
from backends.units import format_difference, format_ms, format_rate
from tui.screens.lab.plot import X_TITLE, LabPlot, Picture
from tui.widgets.sources import predicted, style_of
from tui.widgets.strips import Part, StripWidget, line, parts_width

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.strip import Strip

FAR_OFF = 0.1
"""A prediction further from the measurement than this is marked."""


class Speeds(NamedTuple):
    """The figures of the first row."""

    predicted: float | None = None
    measured: float | None = None
    plain: float | None = None
    """Predicted without any lab."""
    added_ms: float = 0.0


class SpeedLine(StripWidget):
    """Predicted, measured and how far apart; what the lab costs."""

    DEFAULT_CSS = """
    SpeedLine { height: 1; }
    """

    speeds: reactive[Speeds] = reactive(Speeds(), init=False)

    def watch_speeds(self) -> None:
        self.redraw()

    def draw(self, width: int, height: int) -> list[Strip]:
        speeds = self.speeds
        groups = [
            self._predicted("predicted", speeds.predicted),
            [*self._measured("measured", speeds.measured), *self._difference()],
            self._predicted("no lab", speeds.plain),
            self._added(),
        ]
        shown: list[Part] = []
        for group in groups:
            gap = [("   ", self.palette.text)] if shown else []
            if parts_width([*shown, *gap, *group]) <= width:
                shown += [*gap, *group]
        return [line(shown, width)]

    def _predicted(self, label: str, rate: float | None) -> list[Part]:
        figure = format_rate(rate) if rate is None else predicted(format_rate(rate))
        style = style_of(MemorySource.PREDICTED, self.palette)
        return [(f"{label} {figure:>6} tok/s", style)]

    def _measured(self, label: str, rate: float | None) -> list[Part]:
        return [
            (f"{label} ", self.palette.dim),
            (format_rate(rate), style_of(MemorySource.MEASURED, self.palette)),
            (" tok/s", self.palette.dim),
        ]

    def _difference(self) -> list[Part]:
        """The deviation of the measurement from the prediction."""
        predicted, measured = self.speeds.predicted, self.speeds.measured
        if not predicted or not measured:
            return [(" " * 6, self.palette.text)]
        off = measured / predicted - 1
        style = self.palette.warn if abs(off) > FAR_OFF else self.palette.ok
        return [(f"{format_difference(off):>6}", style)]

    def _added(self) -> list[Part]:
        added = self.speeds.added_ms
        style = self.palette.warn if added else self.palette.dim
        return [
            ("the lab adds ", self.palette.dim),
            (f"{predicted(format_ms(added)) if added else '0 ms':>8}", style),
            (" to a token", self.palette.dim),
        ]


class SpeedPane(Vertical):
    """Figures above, plot below."""

    DEFAULT_CSS = """
    SpeedPane { padding: 0 1; }
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, classes="pane")
        self.border_title = "Speed"
        self.border_subtitle = X_TITLE
        self.line = SpeedLine()
        self.plot = LabPlot()

    def compose(self) -> ComposeResult:
        yield self.line
        yield self.plot

    def show(self, speeds: Speeds, picture: Picture) -> None:
        """Show newer figures."""
        self.line.speeds = speeds
        self.plot.picture = picture
