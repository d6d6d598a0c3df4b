"""Base of the widgets that draw whole lines themselves, and helpers to build lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from textwrap import wrap
from typing import Any, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.content import Content
from textual.geometry import Region, Size
from textual.reactive import reactive
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

from tui.widgets.palette import Palette, palette_from
from tui.widgets.safe_text import safe_line

BLOCKS = " ▁▂▃▄▅▆▇█"


def block(value: float | None, top: float, row: int = 0, rows: int = 1) -> str:
    """One column's sign in a row of a graph that is ``rows`` high and ends at ``top``.

    Rows count from the bottom. Nothing known is blank; what is known shows, be it 0.
    """
    if value is None:
        return BLOCKS[0]
    eighths = round(value / top * rows * 8)
    if row == 0:
        eighths = max(eighths, 1)
    return BLOCKS[min(max(eighths - row * 8, 0), 8)]


def block_row(values: Sequence[float | None], top: float, cells: int) -> str:
    """The newest values in one row, as far as there are cells; newest at the right."""
    shown = values[-cells:] if cells > 0 else ()
    return "".join(block(value, top) for value in shown).rjust(max(cells, 0))


FULL = "▇"
EMPTY = "▁"


def bar_cells(part: float, whole: float, width: int) -> int:
    """Filled cells: something taken shows, and only a full memory looks full."""
    if part <= 0 or whole <= 0:
        return 0
    if part >= whole:
        return width
    return min(max(round(part / whole * width), 1), width - 1)


def memory_bar(
    part: float, whole: float, width: int, *, full: Style, empty: Style
) -> list[Part]:
    filled = bar_cells(part, whole, width)
    return [(FULL * filled, full), (EMPTY * (width - filled), empty)]


Part = tuple[str, Style]
T = TypeVar("T")


def line(parts: Iterable[Part], width: int) -> Strip:
    """Parts as one line of exactly this width; what is too long ends in ``…``."""
    segments = [Segment(safe_line(text), style) for text, style in parts if text]
    used = sum(segment.cell_length for segment in segments)
    if used <= width:
        return Strip(segments, used).extend_cell_length(width)
    return _shortened(segments, width)


def spread(left: Sequence[Part], right: Sequence[Part], width: int) -> Strip:
    """Left parts at the left, right parts at the right; the left gives way."""
    right_width = parts_width(right)
    if right_width >= width:
        return line(right, width)
    head = line(left, width - right_width)
    tail = (Segment(safe_line(text), style) for text, style in right)
    return Strip([*head, *tail], width)


def parts_width(parts: Iterable[Part]) -> int:
    return sum(cell_len(safe_line(text)) for text, _ in parts)


def clip(text: str, width: int) -> str:
    """Text of exactly this width, ending in ``…`` where it was cut."""
    if width <= 0:
        return ""
    text = safe_line(text)
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return set_cell_size(text, width - 1) + "…"


def fitting(candidates: Iterable[str], width: int) -> str:
    """The first text that fits, else nothing: a label is whole or not there."""
    return next((text for text in candidates if cell_len(text) <= width), "")


def changed_span(old: Strip, new: Strip) -> tuple[int, int] | None:
    """From where up to where two lines differ, in cells; None when nowhere."""
    if old == new:
        return None
    if old.cell_length != new.cell_length:
        return 0, max(old.cell_length, new.cell_length)
    one, two, start = list(old), list(new), 0
    # Most of a line is as before: whole segments are left out first.
    while one and two and one[0] == two[0]:
        start += one.pop(0).cell_length
        del two[0]
    while one and two and one[-1] == two[-1]:
        del one[-1], two[-1]
    before, after = _cells(one), _cells(two)
    differing = [at for at in range(len(after)) if before[at] != after[at]]
    return (start + differing[0], start + differing[-1] + 1) if differing else None


def _cells(segments: Iterable[Segment]) -> list[tuple[str, Style | None]]:
    cells: list[tuple[str, Style | None]] = []
    for text, style, _ in segments:
        if all(cell_len(sign) == 1 for sign in set(text)):
            cells += [(sign, style) for sign in text]
            continue
        for sign in text:
            cells += [(sign, style), ("", style)][: cell_len(sign)]
    return cells


def _shortened(segments: list[Segment], width: int) -> Strip:
    if width <= 0:
        return Strip([], 0)
    kept = list(Strip(segments).crop(0, width - 1))
    style = kept[-1].style if kept else None
    return Strip([*kept, Segment("…", style)]).extend_cell_length(width)


def wrapped(text: str, width: int, lines_max: int) -> list[str]:
    """Text in a few lines of this width; the last one says if there is more."""
    if not text or width < 1:
        return []
    pieces = wrap(safe_line(text), width)
    if len(pieces) > lines_max:
        pieces = pieces[:lines_max]
        pieces[-1] = pieces[-1][: width - 1] + "…"
    return pieces


def selected(row: Strip, span: tuple[int, int], look: Style) -> Strip:
    """A row of which a part is selected, in cells; an end of -1 is the row's."""
    start, end = span[0], row.cell_length if span[1] == -1 else span[1]
    part = Segment.apply_style(row.crop(start, end), post_style=look)
    return Strip.join([row.crop(0, start), Strip(part), row.crop(end)])


def selectable(widget: Widget, row: Strip, y: int) -> Strip:
    span = widget.text_selection.get_span(y) if widget.text_selection else None
    if span is not None:
        look = widget.screen.get_component_rich_style("screen--selection")
        row = selected(row, span, look)
    return row.apply_offsets(0, y)


def retitle(widget: Widget, title: str) -> None:
    """Set a border title, brackets and all.

    Textual would paint the widget again for the same one, and read a text as markup.
    """
    said = Content(safe_line(title))
    if widget.border_title != said.markup:
        widget.border_title = said


def resubtitle(widget: Widget, title: str) -> None:
    said = Content(safe_line(title))
    if widget.border_subtitle != said.markup:
        widget.border_subtitle = said


class Drawn(reactive[T]):
    """A value that a strip widget draws: a change paints the cells that differ."""

    def __init__(self, default: T, *, layout: bool = False) -> None:
        super().__init__(default, init=False, repaint=False, layout=layout)

    @classmethod
    def _check_watchers(cls, obj: Any, name: str, old_value: Any) -> None:
        super()._check_watchers(obj, name, old_value)
        if obj.is_running:
            obj.redraw_changed()


class StripWidget(Widget):
    """A widget that draws all of its lines at once and keeps them until it changes.

    Where it is text to read, its class allows to select it.
    """

    ALLOW_SELECT = False
    DEFAULT_CSS = "StripWidget { height: 1; }"

    _variables: Mapping[str, str] | None = None
    _palette: Palette
    _strips: list[Strip] | None = None
    _drawn_size = Size(-1, -1)
    _stale = False
    """It changed while it was hidden."""

    @property
    def palette(self) -> Palette:
        # A theme brings other variables: these are looked up once.
        variables = self.app.theme_variables
        if self._variables is not variables:
            self._variables, self._palette = variables, palette_from(variables)
        return self._palette

    def draw(self, width: int, height: int) -> list[Strip]:
        raise NotImplementedError

    def redraw(self) -> None:
        """Something shown has changed: draw again, at this size."""
        self._strips = None
        if self.is_seen:
            self.refresh()
        else:
            # Textual would arrange the whole screen to find out that it is not there.
            self._stale = True

    @property
    def is_seen(self) -> bool:
        return all(node.display for node in self.ancestors_with_self)

    def watch_has_focus(self, has_focus: bool) -> None:
        super().watch_has_focus(has_focus)
        self.redraw_changed()

    def on_show(self) -> None:
        if self._stale:
            self._stale = False
            self.redraw()

    def redraw_changed(self) -> None:
        """Draw again, but paint only cells that differ: for figures that tick."""
        before, size = self._strips, self._drawn_size
        same_place = size == self.content_size and self.is_seen
        if before is None or not same_place:
            self.redraw()
            return
        self._strips = None
        after = self.lines()
        if len(after) != len(before):
            self.redraw()
            return
        for y, (old, new) in enumerate(zip(before, after, strict=True)):
            if span := changed_span(old, new):
                self.refresh(Region(span[0], y, span[1] - span[0], 1))

    def lines(self) -> list[Strip]:
        size = self.content_size
        if self._strips is None or self._drawn_size != size:
            ground = Style(bgcolor=self.background_colors[1].rich_color)
            drawn = self.draw(size.width, size.height)
            self._strips = [strip.apply_style(ground) for strip in drawn]
            self._drawn_size = size
        return self._strips

    def render_line(self, y: int) -> Strip:
        lines = self.lines()
        if y < len(lines):
            return selectable(self, lines[y], y) if self.ALLOW_SELECT else lines[y]
        ground = Style(bgcolor=self.background_colors[1].rich_color)
        return Strip.blank(self.content_size.width, ground)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        drawn = "\n".join(strip.text.rstrip() for strip in self.lines())
        return selection.extract(drawn), "\n"

    def notify_style_update(self) -> None:
        self._strips = None
        super().notify_style_update()
