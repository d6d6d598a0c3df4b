"""One line per link: protocol, round trips, bytes per token, and what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from textual.reactive import reactive

from tui.model.quantities import (
    UNKNOWN,
    bytes_text,
    rate_text,
    rtt_text,
    silence_text,
    trips_text,
    wire_down_text,
    wire_up_text,
)
from tui.widgets.safe_text import safe_line
from tui.widgets.strips import Part, StripWidget, clip, line, parts_width

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.strip import Strip

    from backends.state import Link

NAME_CELLS = 10
REMARK_CELLS_MIN = 16
"""With less room a remark is left out, not cut to nothing."""


class LinkColumn(NamedTuple):
    """One figure of every link."""

    label: str
    width: int
    text: Callable[[Link], str]
    from_width: int = 0
    of_pairs: bool = False
    """Shown only where a relay stands beside some worker."""


def _or_dash(text: Callable[[Link], str]) -> Callable[[Link], str]:
    return lambda link: text(link) or UNKNOWN


COLUMNS = (
    LinkColumn("mode", 8, lambda link: link.mode),
    LinkColumn("way", 8, lambda link: link.way or UNKNOWN, 100, True),
    LinkColumn("protocol", 9, lambda link: link.protocol or "—", 76),
    LinkColumn("rtt", 10, lambda link: rtt_text(link.rtt_ms)),
    LinkColumn("trips/tok", 10, trips_text),
    LinkColumn("up/tok", 10, lambda link: bytes_text(link.bytes_up_per_token)),
    LinkColumn("down/tok", 10, lambda link: bytes_text(link.bytes_down_per_token)),
    LinkColumn("MB/s", 8, lambda link: rate_text(link, unit=""), 68),
    LinkColumn("home", 10, lambda link: bytes_text(link.weight_bytes_home), 88, True),
    LinkColumn("crossed up", 22, _or_dash(wire_up_text), 133, True),
    LinkColumn("crossed down", 22, _or_dash(wire_down_text), 155, True),
    LinkColumn("refused", 9, lambda link: f"{link.refused or '·'}", 112),
    LinkColumn("waiting", 9, lambda link: f"{len(link.waiting) or '·'}", 112),
)


class LinkFigures(StripWidget):
    """The figures of each link in fixed columns, and why it is as it is."""

    ALLOW_SELECT = True
    DEFAULT_CSS = """
    LinkFigures {
        height: auto;
        background: $background;
    }
    """

    links: reactive[tuple[Link, ...]] = reactive((), init=False, repaint=False)

    def show(self, links: tuple[Link, ...]) -> None:
        """Show the links as they are now."""
        if len(links) != len(self.links):
            self.refresh(layout=True)
        self.links = links

    def watch_links(self) -> None:
        self.redraw_changed()

    def get_content_height(self, container: object, viewport: object, w: int) -> int:
        return len(self.links) + 1 if self.links else 0

    def draw(self, width: int, height: int) -> list[Strip]:
        if not self.links:
            return []
        paired = any(link.wire_bytes_up is not None for link in self.links)
        wanted = (column for column in COLUMNS if paired or not column.of_pairs)
        columns = [column for column in wanted if column.from_width <= width]
        headings = "".join(f"{column.label:>{column.width}}" for column in columns)
        head = line([(clip("link", NAME_CELLS) + headings, self.palette.dim)], width)
        return [head, *(self._row(link, columns, width) for link in self.links)]

    def _row(self, link: Link, columns: Sequence[LinkColumn], width: int) -> Strip:
        """A link's figures; one that is plain has none, but a reason."""
        palette = self.palette
        name = (clip(safe_line(link.worker), NAME_CELLS - 1) + " ", palette.strong)
        if link.mode == "plain":
            return line([name, (_why_plain(link), palette.warn)], width)
        texts = (f"{column.text(link):>{column.width}}" for column in columns)
        figures: list[Part] = [name, ("".join(texts), palette.text)]
        remark = safe_line(link.reason or _remark(link))
        if remark and parts_width(figures) + REMARK_CELLS_MIN <= width:
            style = palette.warn if link.reason else palette.dim
            figures.append((f"  {remark}", style))
        return line(figures, width)


def _remark(link: Link) -> str:
    return " · ".join(filter(None, (link.way_reason, link.why)))


def _why_plain(link: Link) -> str:
    reason = safe_line(link.reason) or "not understood"
    known = link.bytes_per_s_up is not None
    now = f" · {rate_text(link)}" if known else ""
    return f"{link.mode:>{COLUMNS[0].width}}  {reason}{now}"


def alerts_of(links: Sequence[Link]) -> str:
    """The trouble of all links: ``mini: 2 refused · box: 1 waiting``."""
    parts = []
    for link in links:
        name = safe_line(link.worker)
        parts += [f"{name}: {silence}"] if (silence := silence_text(link)) else []
        parts += [f"{name}: {link.refused} refused"] if link.refused else []
        parts += [f"{name}: {len(link.waiting)} waiting"] if link.waiting else []
    return " · ".join(parts)
