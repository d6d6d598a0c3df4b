"""The Lab's speeds: predicted beside measured, and the plot of both.

A token costs what the machines compute, and for each worker
``trips · RTT + bytes / bandwidth``. What the machines take is measured; trips and bytes
are counted; the lab's part is arithmetic. So the figures hold for any lab, whichever
one was on while they were measured.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from msgspec.structs import replace
from rich.style import Style
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.strip import Strip

from backends.split.cost import lab_ms
from backends.state import (
    ClusterSnapshot,
    Forecast,
    Lab,
    Link,
    MemorySource,
    Speed,
)
from backends.units import MS_PER_S, format_difference, format_ms, format_rate
from tui.model.quantities import newest_rate, tick_text
from tui.widgets.rate_graph import axis_top
from tui.widgets.sources import predicted, style_of
from tui.widgets.strips import (
    Drawn,
    Part,
    StripWidget,
    clip,
    fitting,
    line,
    parts_width,
)

Labs = dict[str, Lab | None]
"""The lab on each link, by worker; None if the link has none."""

_SAME = 1e-6


def same_lab(one: Lab | None, other: Lab | None) -> bool:
    """True if two labs do the same, whatever their seeds."""
    one, other = one or Lab(), other or Lab()
    names = ("latency_ms", "jitter_ms", "rate_mb_s")
    return all(abs(getattr(one, n) - getattr(other, n)) < _SAME for n in names)


def link_added_ms(link: Link, lab: Lab | None) -> float | None:
    """The time a lab adds to a token on one link: each trip goes there and back.

    The arithmetic is that of every prediction (``split.cost``); None before a token.
    """
    trips = link.round_trips_per_token
    if trips is None:
        return None
    n_bytes = (link.bytes_up_per_token or 0.0) + (link.bytes_down_per_token or 0.0)
    return lab_ms(lab, trips, n_bytes)


def total_added_ms(links: Sequence[Link], labs: Mapping[str, Lab | None]) -> float:
    return sum(link_added_ms(link, labs.get(link.worker)) or 0.0 for link in links)


def links_own_ms(links: Sequence[Link]) -> float | None:
    """The time of a token without any lab, by what relays measured of its parts."""
    pairs = [
        (link.head_ms_per_token, _link_ms(link) + _machine_ms(link))
        for link in links
        if link.head_ms_per_token is not None and link.compute_ms_per_token is not None
    ]
    if not links or len(pairs) < len(links):
        return None
    everything = sum(busy for _, busy in pairs)
    head = fmean(part - (everything - busy) for part, busy in pairs)
    return max(head, 0.0) + sum(_machine_ms(link) + _network_ms(link) for link in links)


def lab_forecast(
    links: Sequence[Link], labs: Mapping[str, Lab | None], own: float | None
) -> float | None:
    """Tokens per second under these labs, if a token takes ``own`` ms without any."""
    return rate_at(own, total_added_ms(links, labs)) if own else None


def with_predicted_trips(link: Link, told: Forecast | None) -> Link:
    """A link that no token used yet, with the trips and bytes predicted of one."""
    parts = () if told is None else told.parts
    part = next((part for part in parts if part.name == link.worker), None)
    if part is None or link.round_trips_per_token is not None:
        return link
    return replace(
        link,
        round_trips_per_token=part.trips,
        bytes_up_per_token=part.bytes_up,
        bytes_down_per_token=part.bytes_down,
    )


def rate_at(own: float, added: float) -> float:
    return MS_PER_S / (own + added)


def _link_ms(link: Link) -> float:
    return (link.up_ms_per_token or 0.0) + (link.down_ms_per_token or 0.0)


def _machine_ms(link: Link) -> float:
    return (link.compute_ms_per_token or 0.0) + (link.wait_ms_per_token or 0.0)


def _network_ms(link: Link) -> float:
    if link.rtt_ms is not None:
        return link.rtt_ms * (link.round_trips_per_token or 0.0)
    return max(_link_ms(link) - (link_added_ms(link, link.lab) or 0.0), 0.0)


SAMPLES_MAX = 400
WINDOW_S = 3.0
"""Span over which the controller measures the speed of an answer under way."""


class Sample(NamedTuple):
    added_ms: float
    """The time that the lab added to a token, over all links."""
    tok_per_s: float

    @property
    def own_ms(self) -> float:
        return MS_PER_S / self.tok_per_s - self.added_ms


class Samples:
    """The speeds that the header has shown, since the plan runs."""

    def __init__(self) -> None:
        self.points: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self.latest: Sample | None = None
        """The newest one under the present lab."""
        self.base: Sample | None = None
        """The newest one with the least added: predictions begin with it."""
        self._labs: Labs | None = None
        self._changed_at: float | None = None
        """When the lab was changed, until a speed is of the time after it alone."""
        self._before: float | None = None
        """The speed of the last answer from before a change."""

    def take(self, snapshot: ClusterSnapshot) -> None:
        labs = {link.worker: link.lab for link in snapshot.links}
        rate = newest_rate(snapshot.speed)
        before, self._labs = self._labs, labs
        if before is not None and (
            before.keys() != labs.keys()
            or not all(same_lab(before[worker], lab) for worker, lab in labs.items())
        ):
            self._changed_at, self._before = snapshot.at, rate
            self.latest = None
        if rate is None or not self._is_of_present_lab(snapshot.speed, snapshot.at):
            return
        self._changed_at = None
        sample = Sample(total_added_ms(snapshot.links, labs), rate)
        if sample != self.latest:
            self.latest = sample
            self.points.append(sample)
            if self.base is None or sample.added_ms <= self.base.added_ms:
                self.base = sample

    def _is_of_present_lab(self, speed: Speed, at: float) -> bool:
        if self._changed_at is None:
            return True
        if speed.tok_per_s is not None:
            return at - self._changed_at >= WINDOW_S
        self._changed_at = float("-inf")  # The next answer begins after the change.
        return speed.last_tok_per_s != self._before


AXIS_WIDTH = 6
ADDED_MIN_MS = 10.0
"""The least the axis shows: without a lab there would be no curve to see."""
HEADROOM = 1.25
"""The curve goes up to the added time, multiplied by this."""
TICK_COLUMNS = 12
DOTS = "˙·."
"""A dot at the top, in the middle and at the bottom of a cell."""
LEGENDS = (
    "● measured   • before   ◇ predicted   ··· predicted for other delays",
    "● measured   ◇ predicted   ··· curve",
    "● measured  ◇ predicted",
)
X_TITLE = "added delay per token, ms"
Y_TITLE = "tok/s"


class Picture(NamedTuple):
    own_ms: float | None = None
    """The time of a token without any lab; without it the plot has no curve."""
    added_ms: float = 0.0
    """The time that the wanted labs add to a token."""
    points: tuple[Sample, ...] = ()
    latest: Sample | None = None
    advice: str = ""
    """Shown while nothing is measured."""


class Canvas:
    """Cells with one glyph each, addressed by the two figures."""

    def __init__(self, width: int, height: int, right: float, top: float) -> None:
        self.width, self.height = width, height
        self.right, self.top = right, top
        self.rows: list[list[tuple[str, Style] | None]] = [
            [None] * width for _ in range(height)
        ]

    def column(self, added: float) -> int:
        return round(added / self.right * (self.width - 1))

    def put(self, sample: tuple[float, float], glyph: str, style: Style) -> None:
        """A glyph at a point; what lies outside is left out."""
        x = self.column(sample[0])
        third = round((1 - sample[1] / self.top) * (self.height * 3 - 1))
        if 0 <= x < self.width and 0 <= third < self.height * 3:
            self.rows[third // 3][x] = (glyph or DOTS[third % 3], style)

    def text(self, row: int, at: int, text: str, style: Style) -> None:
        self.rows[row][at : at + len(text)] = [(letter, style) for letter in text]


class Plot(StripWidget):
    """Speeds over a delay, with axes from 0."""

    def extent(self) -> tuple[float, float]:
        """The ends of both axes."""
        raise NotImplementedError

    def paint(self, canvas: Canvas) -> None:
        raise NotImplementedError

    def draw(self, width: int, height: int) -> list[Strip]:
        room, rows = width - AXIS_WIDTH, height - 2
        if room < 2 or rows < 1:
            return []
        canvas = Canvas(room, rows, *self.extent())
        self.paint(canvas)
        return [
            *(self._row(canvas, row, width) for row in range(rows)),
            self._axis(canvas, width),
            self._numbers(canvas, width),
        ]

    def _row(self, canvas: Canvas, row: int, width: int) -> Strip:
        label = ""
        if row == 0:
            label = tick_text(canvas.top)
        elif canvas.height > 4 and row == (canvas.height - 1) // 2:
            label = Y_TITLE
        tick = "┤" if row == 0 else "│"
        cells = canvas.rows[row]
        return line(
            [
                (" " * (AXIS_WIDTH - 1 - len(label)), self.palette.text),
                (label, self.palette.dim),
                (tick, self.palette.border),
                *((cell or (" ", self.palette.text)) for cell in cells),
            ],
            width,
        )

    def _axis(self, canvas: Canvas, width: int) -> Strip:
        cells = ["─"] * canvas.width
        for tick in _ticks(canvas):
            cells[canvas.column(tick)] = "┬"
        blank = " " * (AXIS_WIDTH - 2)
        start = [(blank, self.palette.border), ("0", self.palette.dim)]
        return line([*start, ("└" + "".join(cells), self.palette.border)], width)

    def _numbers(self, canvas: Canvas, width: int) -> Strip:
        text = " " * AXIS_WIDTH + "0"
        for tick in _ticks(canvas):
            number = tick_text(tick)
            at = AXIS_WIDTH + canvas.column(tick) - len(number) // 2
            at = min(at, width - len(number))
            text = f"{text:<{at}}{number}"
        blank = " " * AXIS_WIDTH
        numbers = text.removeprefix(blank)
        return line([(blank, self.palette.border), (numbers, self.palette.dim)], width)


class LabPlot(Plot):
    """The speeds measured under any lab, over the predicted ones."""

    DEFAULT_CSS = "LabPlot { height: 1fr; width: 1fr; }"

    picture: Drawn[Picture] = Drawn(Picture())

    def extent(self) -> tuple[float, float]:
        picture = self.picture
        added = max((p.added_ms for p in picture.points), default=0.0)
        rates = [p.tok_per_s for p in picture.points]
        if picture.own_ms:
            rates.append(rate_at(picture.own_ms, 0))
        right = max(ADDED_MIN_MS, HEADROOM * picture.added_ms, added)
        return axis_top(right), axis_top(max(rates, default=0.0))

    def paint(self, canvas: Canvas) -> None:
        picture, palette = self.picture, self.palette
        legend = fitting(LEGENDS, canvas.width - len(Y_TITLE) - 4)
        if canvas.height > 2:
            at = canvas.width - len(legend)
            canvas.text(0, at, legend, palette.dim)
        own = picture.own_ms
        if own:
            for x in range(canvas.width):
                added = x / (canvas.width - 1) * canvas.right
                canvas.put((added, rate_at(own, added)), "", palette.dim)
        for point in picture.points:
            canvas.put(point, "•", palette.graph)
        if own:
            now = picture.added_ms, rate_at(own, picture.added_ms)
            canvas.put(now, "◇", palette.strong)
        if picture.latest:
            canvas.put(picture.latest, "●", palette.ok)
        if not picture.points and canvas.height > 3:
            advice = clip(picture.advice, canvas.width).rstrip()
            at = (canvas.width - len(advice)) // 2
            canvas.text(canvas.height - 2, at, advice, palette.warn)


def _ticks(canvas: Canvas) -> list[float]:
    n_ticks = 5 if canvas.width >= 5 * TICK_COLUMNS else 2
    return [canvas.right * n / n_ticks for n in range(1, n_ticks + 1)]


FAR_OFF = 0.1
"""A prediction further from the measurement than this is marked."""


class Speeds(NamedTuple):
    predicted: float | None = None
    measured: float | None = None
    plain: float | None = None
    """Predicted without any lab."""
    added_ms: float = 0.0


class LabSpeedLine(StripWidget):
    """Predicted, measured and how far apart; what the lab costs."""

    speeds: Drawn[Speeds] = Drawn(Speeds())

    def draw(self, width: int, height: int) -> list[Strip]:
        speeds = self.speeds
        groups = [
            self._predicted("predicted", speeds.predicted),
            self._measured(speeds),
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

    def _measured(self, speeds: Speeds) -> list[Part]:
        palette, measured = self.palette, speeds.measured
        difference: Part = (" " * 6, palette.text)
        if speeds.predicted and measured:
            off = measured / speeds.predicted - 1
            style = palette.warn if abs(off) > FAR_OFF else palette.ok
            difference = (f"{format_difference(off):>6}", style)
        return [
            ("measured ", palette.dim),
            (format_rate(measured), style_of(MemorySource.MEASURED, palette)),
            (" tok/s", palette.dim),
            difference,
        ]

    def _added(self) -> list[Part]:
        added = self.speeds.added_ms
        style = self.palette.warn if added else self.palette.dim
        return [
            ("the lab adds ", self.palette.dim),
            (f"{predicted(format_ms(added)) if added else '0 ms':>8}", style),
            (" to a token", self.palette.dim),
        ]


class SpeedPane(Vertical):
    DEFAULT_CSS = "SpeedPane { height: 1fr; padding: 0 1; }"

    def __init__(self) -> None:
        super().__init__(classes="pane")
        self.border_title = "Speed"
        self.border_subtitle = X_TITLE
        self.line = LabSpeedLine()
        self.plot = LabPlot()

    def compose(self) -> ComposeResult:
        yield self.line
        yield self.plot

    def show(self, speeds: Speeds, picture: Picture) -> None:
        self.line.speeds = speeds
        self.plot.picture = picture
