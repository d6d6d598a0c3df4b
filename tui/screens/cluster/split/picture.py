"""The lines of a split bar: names, cells, handles, ranges. Pure drawing."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from rich.segment import Segment
from textual.strip import Strip

from tui.model.names import device_label, letter
from tui.screens.cluster.split.load_table import short_span, total_of_available
from tui.widgets.sources import style_of, tick_of
from tui.widgets.strips import Part, clip, fitting, line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.style import Style

    from backends.split.loads import DeviceLoad
    from backends.state import Share
    from tui.model.draft import Draft
    from tui.screens.cluster.split.geometry import BarGeometry
    from tui.widgets.palette import Palette

HANDLE = "┃"
PICKED = "▼"
LAYER_EDGE = "▕"
HATCH = "╱"
GHOST = "┊"
"""A boundary of the split that runs."""
EMPTY = "·"


@dataclass(frozen=True)
class BarPicture:
    """One state of the bar."""

    draft: Draft
    geometry: BarGeometry
    palette: Palette
    picked: int
    active: bool
    """True if keys or a drag move the picked handle now."""
    keys: tuple[str, str] = ("", "")
    """The keys that apply and cancel a number."""
    typed: str | None = None
    """A layer count being typed, shown in place of the ranges."""
    ghost: frozenset[int] = frozenset()
    """Columns of the boundaries that run now, where they are elsewhere."""

    def lines(self, height: int) -> list[Strip]:
        """Names above and ranges below, where the rows suffice; the rest is bar."""
        n_bar = max(1, height - 2)
        lines = [self.bar_line(row == (n_bar - 1) // 2) for row in range(n_bar)]
        if height > 1:
            lines.insert(0, self.name_line())
        if height > 2:
            typing = self.typed is not None
            lines.append(self.typed_line() if typing else self.range_line())
        return lines[:height]

    def bar_line(self, with_letters: bool) -> Strip:
        """A row of the bar itself."""
        cells: list[Part] = []
        for index, share in enumerate(self.draft.split.shares):
            cells += self._segment(index, share, with_letters)
            if index < len(self.geometry.positions):
                cells.append((HANDLE, self._handle_style(index)))
        return _merged(cells, self.geometry.width)

    def name_line(self) -> Strip:
        """Letter and name over each device's segment; the pick over its handle."""
        parts: list[Part] = []
        for index, share in enumerate(self.draft.split.shares):
            start, end = self.geometry.span(index)
            mark = self.draft.mark(share.device)
            text = clip(fitting(_names(mark, share.device), end - start), end - start)
            parts.append((text, self.palette.device(mark)))
            if index < len(self.geometry.positions):
                pick = PICKED if index == self.picked else " "
                parts.append((pick, self._handle_style(index)))
        return line(parts, self.geometry.width)

    def range_line(self) -> Strip:
        """Layers and bytes under each device's segment, and whether they fit."""
        parts: list[Part] = []
        for index, load in enumerate(self.draft.loads):
            start, end = self.geometry.span(index)
            parts.append(self._range(load, end - start))
            if index < len(self.geometry.positions):
                parts.append((" ", self.palette.dim))
        return line(parts, self.geometry.width)

    def typed_line(self) -> Strip:
        """The layer count being typed, in place of the ranges."""
        mark = self.draft.mark(self.draft.split.shares[self.picked].device)
        plain, key, dim = self.palette.text, self.palette.key, self.palette.dim
        typed = self.typed or ""
        most = sum(self.draft.counts[self.picked : self.picked + 2])
        too_many = int(typed or 0) > most
        parts = [
            (f"{letter(mark)} gets ", plain),
            (f"{typed}▏", key),
            (f" of {most} layers   ", self.palette.bad if too_many else plain),
            (self.keys[0], key),
            (" applies   ", dim),
            (self.keys[1], key),
            (" cancels", dim),
        ]
        return line(parts, self.geometry.width)

    def _segment(self, index: int, share: Share, with_letter: bool) -> list[Part]:
        start, end = self.geometry.span(index)
        mark = self.draft.mark(share.device)
        if not share.layers:
            text = letter(mark) if with_letter else EMPTY
            return [(text, self.palette.device(mark))] * (end - start)
        fill, edge = self.palette.fill(mark), self.palette.edge(mark)
        plain = (HATCH, edge) if share.device in self.draft.misfits else (" ", fill)
        edges = self.geometry.layer_edges(index)
        cells = [(LAYER_EDGE, edge) if x in edges else plain for x in range(start, end)]
        for x in self.ghost & set(range(start, end)):
            cells[x - start] = (GHOST, fill)
        if with_letter and cells:
            middle = (len(cells) - 1) // 2
            middle -= start + middle in edges | self.ghost
            cells[middle] = (letter(mark), fill)
        return cells

    def _range(self, load: DeviceLoad, width: int) -> Part:
        misfit = load.device in self.draft.misfits
        span = short_span(load, self.draft.model.n_layer)
        size = total_of_available(self.draft, load)
        # The tick is for what was checked, not for a prediction.
        mark = tick_of(load.source)
        texts = _bad_ranges(span, size) if misfit else _good_ranges(span, size, mark)
        told = style_of(load.source, self.palette)
        style = self.palette.bad if misfit else told
        return clip(fitting(texts, width), width), style

    def _handle_style(self, index: int) -> Style:
        if index != self.picked:
            return self.palette.dim
        return self.palette.key if self.active else self.palette.handle


def _names(mark: int, device: str) -> tuple[str, ...]:
    own, label = letter(mark), device_label(device)
    return f"{own} {label}", f"{own} {label.split()[0]}", own


def _good_ranges(span: str, size: str, mark: str) -> tuple[str, ...]:
    total = size.partition(" of ")[0]
    return f"{span} · {size} {mark}", f"{span} · {total} {mark}", f"{span} {mark}", span


def _bad_ranges(span: str, size: str) -> tuple[str, ...]:
    total = size.partition(" of ")[0]
    return f"{span} · {size} ✗", f"{span} · {total} ✗", f"{span} ✗", "✗"


def _merged(cells: Iterable[Part], width: int) -> Strip:
    segments = [
        Segment("".join(text for text, _ in group), style)
        for style, group in groupby(cells, key=lambda cell: cell[1])
    ]
    return Strip(segments).adjust_cell_length(width)
