"""One line per link: protocol, round trips, bytes per token, and what is wrong."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from textual.reactive import reactive

from backends.units import format_bytes
from tui.widgets.log_text import clean_line
from tui.widgets.strips import Part, StripWidget, clip, line, parts_width

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.strip import Strip

    from backends.state import Link

NAME_CELLS = 10
WINDOW_S = 1.0
"""A throughput is the mean over so long."""
BYTES_PER_MB = 1e6
REMARK_CELLS_MIN = 16
"""With less room a remark is left out, not cut to nothing."""


class LinkRates:
    """Bytes per second of each link, both ways together, from its totals."""

    def __init__(self) -> None:
        """Begin without samples."""
        self._samples: dict[str, deque[tuple[float, int]]] = {}

    def push(self, at: float, links: Sequence[Link]) -> dict[str, float]:
        """Take the totals of a moment; links seen only once have no rate."""
        self._samples = {
            link.worker: self._samples.get(link.worker, deque()) for link in links
        }
        rates = {link.worker: self._rate(at, link) for link in links}
        return {name: rate for name, rate in rates.items() if rate is not None}

    def _rate(self, at: float, link: Link) -> float | None:
        samples = self._samples[link.worker]
        total = link.bytes_up + link.bytes_down
        if samples and (total < samples[-1][1] or at < samples[-1][0]):
            samples.clear()
        if not samples or at > samples[-1][0]:
            samples.append((at, total))
        while len(samples) > 2 and samples[1][0] <= at - WINDOW_S:
            samples.popleft()
        (began, before), elapsed = samples[0], at - samples[0][0]
        return (total - before) / (at - began) if elapsed > 0 else None


class LinkColumn(NamedTuple):
    """One figure of every link."""

    label: str
    width: int
    text: Callable[[Link, float | None], str]
    from_width: int = 0


def _number(value: float | None, pattern: str, unit: str = "") -> str:
    return "—" if value is None else format(value, pattern) + unit


def _bytes(value: float | None) -> str:
    return "—" if value is None else format_bytes(value)


COLUMNS = (
    LinkColumn("mode", 8, lambda link, _: link.mode),
    LinkColumn("protocol", 9, lambda link, _: link.protocol or "—", 76),
    LinkColumn("rtt ms", 8, lambda link, _: _number(link.rtt_ms, ".2f")),
    LinkColumn(
        "trips/tok", 10, lambda link, _: _number(link.round_trips_per_token, ".1f")
    ),
    LinkColumn("up/tok", 10, lambda link, _: _bytes(link.bytes_up_per_token)),
    LinkColumn("down/tok", 10, lambda link, _: _bytes(link.bytes_down_per_token)),
    LinkColumn(
        "MB/s",
        8,
        lambda _, rate: _number(None if rate is None else rate / BYTES_PER_MB, ".2f"),
        68,
    ),
    LinkColumn("refused", 9, lambda link, _: f"{link.refused or '·'}", 104),
    LinkColumn("waiting", 9, lambda link, _: f"{len(link.waiting) or '·'}", 104),
)


class LinkFigures(StripWidget):
    """The figures of each link in fixed columns, and why one is not metered."""

    DEFAULT_CSS = """
    LinkFigures {
        height: auto;
        background: $background;
    }
    """

    links: reactive[tuple[Link, ...]] = reactive((), init=False)
    """What is shown."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        """Make figures of no link."""
        super().__init__(id=id)
        self._meter = LinkRates()
        self._rates: dict[str, float] = {}

    def show(self, at: float, links: tuple[Link, ...]) -> None:
        """Show the links at a moment."""
        rates = self._meter.push(at, links)
        if len(links) != len(self.links):
            self.refresh(layout=True)
        if (links, rates) != (self.links, self._rates):
            self._rates = rates
            self.set_reactive(LinkFigures.links, links)
            self.redraw()

    def get_content_height(self, container: object, viewport: object, w: int) -> int:
        """Headings and a row each; nothing without links."""
        return len(self.links) + 1 if self.links else 0

    def draw(self, width: int, height: int) -> list[Strip]:
        """Headings, then link by link."""
        if not self.links:
            return []
        columns = [column for column in COLUMNS if column.from_width <= width]
        headings = "".join(f"{column.label:>{column.width}}" for column in columns)
        head = line([(clip("link", NAME_CELLS) + headings, self.palette.dim)], width)
        return [head, *(self._row(link, columns, width) for link in self.links)]

    def _row(self, link: Link, columns: Sequence[LinkColumn], width: int) -> Strip:
        """A link's figures; one that is plain has none, but a reason."""
        palette = self.palette
        rate = self._rates.get(link.worker)
        name = (clip(clean_line(link.worker), NAME_CELLS - 1) + " ", palette.strong)
        if link.mode == "plain":
            return line([name, (_why_plain(link, rate), palette.warn)], width)
        texts = (f"{column.text(link, rate):>{column.width}}" for column in columns)
        figures: list[Part] = [name, ("".join(texts), palette.text)]
        remark = clean_line(link.reason)
        if remark and parts_width(figures) + REMARK_CELLS_MIN <= width:
            figures.append((f"  {remark}", palette.warn))
        return line(figures, width)


def _why_plain(link: Link, rate: float | None) -> str:
    """``   plain  command 23 is unknown · 0.41 MB/s``."""
    reason = clean_line(link.reason) or "not understood"
    now = "" if rate is None else f" · {rate / BYTES_PER_MB:.2f} MB/s"
    return f"{link.mode:>{COLUMNS[0].width}}  {reason}{now}"


def alerts_of(links: Sequence[Link]) -> str:
    """What is not as it should be: ``mini: 2 refused · box: 1 waiting``."""
    parts = []
    for link in links:
        name = clean_line(link.worker)
        parts += [f"{name}: {link.refused} refused"] if link.refused else []
        parts += [f"{name}: {len(link.waiting)} waiting"] if link.waiting else []
    return " · ".join(parts)
