"""One link of the Lab: what it is, and three sliders for what it should be."""

from __future__ import annotations

from math import inf, isinf
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from textual import on
from textual.containers import Vertical
from textual.message import Message
from textual.reactive import reactive

from backends.state import Lab
from backends.units import format_bytes, format_ms
from tui.model.names import letter
from tui.model.quantities import trips_text
from tui.model.warnings import is_off
from tui.screens.lab.forecast import added_ms
from tui.screens.lab.presets import preset_of
from tui.widgets.scale import Scale
from tui.widgets.slider import Slider
from tui.widgets.strips import Part, StripWidget, fitting, parts_width, spread

if TYPE_CHECKING:
    from textual import events
    from textual.app import ComposeResult
    from textual.strip import Strip

    from backends.state import Link

NO_LIMIT = inf

LATENCY = Scale(
    (0, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500),
    (10, 10, 10, 6, 10, 10, 6, 10, 10, 6),
    "ms",
)


JITTER = Scale(
    (0, 0.5, 1, 2, 5, 10, 20, 50, 100),
    (10, 10, 10, 6, 10, 10, 6, 10),
    "ms",
)


RATE = Scale(
    (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, NO_LIMIT),
    (5, 6, 5, 5, 6, 5, 5, 6, 5, 5, 6, 5, 1),
    "MB/s",
    neutral=NO_LIMIT,
    typed_max=1e5,
)


class Heading(NamedTuple):
    """The first row of a link."""

    link: Link
    lab: Lab | None
    mark: int
    current: bool


class LinkHeading(StripWidget):
    """The worker's name, what its link is by nature, and what is put on it."""

    ALLOW_SELECT = True
    DEFAULT_CSS = """
    LinkHeading { height: 1; }
    """

    heading: reactive[Heading | None] = reactive(None, init=False)

    def watch_heading(self) -> None:
        self.redraw()

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
        nature = fitting(_natures(link), room)
        return [
            spread([*left, ("   ", name), (nature, self.palette.dim)], right, width)
        ]

    def _state(self, link: Link, lab: Lab | None) -> list[Part]:
        preset = preset_of(lab)
        if is_off(lab):
            return [("no lab", self.palette.dim)]
        cost = added_ms(link, lab)
        name = preset.short if preset else "set"
        added = "" if cost is None else f"{f'~+{format_ms(cost)} a token':>18}"
        return [(f"{name}{added}", self.palette.warn)]


class LinkBlock(Vertical):
    """The sliders of one link."""

    DEFAULT_CSS = """
    LinkBlock {
        height: 4;
        padding: 0 1;
    }
    """

    class Changed(Message):
        """The user put something on this link; not ``final`` while dragging."""

        def __init__(self, block: LinkBlock, lab: Lab | None, *, final: bool) -> None:
            super().__init__()
            self.block = block
            self.lab = lab
            self.final = final

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
        """All three, from the top."""
        return self.latency, self.jitter, self.rate

    @property
    def dragging(self) -> bool:
        """True if the mouse holds a thumb."""
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
        """Show what is known of the link, beside what the sliders say."""
        self._heading.heading = Heading(link, self.lab, mark, current)

    def show_lab(self, lab: Lab | None) -> None:
        """Move the thumbs to a lab from elsewhere; one that is held stays."""
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
    """The link's own RTT and trips, longest text first."""
    rtt = "" if link.rtt_ms is None else f"RTT {format_ms(link.rtt_ms)}"
    if link.round_trips_per_token is None:
        note = "not understood" if link.mode == "plain" else "metered, no token yet"
        return [" · ".join(text for text in (rtt, note) if text), rtt]
    trips = f"{trips_text(link)} trips/token"
    up = format_bytes(link.bytes_up_per_token or 0)
    flow = f"{up} up · {format_bytes(link.bytes_down_per_token or 0)} down"
    texts = [text for text in (rtt, trips, flow) if text]
    return [" · ".join(texts[:n]) for n in range(len(texts), 0, -1)]
