"""One row per device of the split: layers, bytes by kind, and whether they fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.reactive import reactive

from backends.split.layout import format_range
from backends.state import LayerRange
from tui.model.names import device_label, letter
from tui.model.quantities import common_unit, in_unit, part_of
from tui.widgets.blocks import memory_bar
from tui.widgets.sources import PREDICTED, style_of, tick_of
from tui.widgets.strips import Part, StripWidget, clip, line, parts_width

if TYPE_CHECKING:
    from rich.style import Style
    from textual.strip import Strip

    from backends.split.loads import DeviceLoad
    from tui.model.draft import Draft


def layer_span(load: DeviceLoad, n_layer: int) -> str:
    """``0–38``, ``39–46 + output``, or ``—`` for none."""
    if not load.n_layers:
        return "—"
    return format_range(LayerRange(load.device, load.first, load.last), n_layer)


def short_span(load: DeviceLoad, n_layer: int) -> str:
    """Like ``layer_span``, the output as ``+o``: for narrow places."""
    return layer_span(load, n_layer).replace(" + output", "+o").replace("output", "o")


def span_width(n_layer: int, *, short: bool = False) -> int:
    """Columns the longest span of a model takes."""
    digits = len(str(n_layer - 1))
    return 2 * digits + 1 + (2 if short else len(" + output"))


def total_of_available(draft: Draft, load: DeviceLoad) -> str:
    """``15.0 of 55.0 GiB``; only the total where the device is unknown."""
    available = draft.available.get(load.device)
    if available is None:
        unit = common_unit(load.total_bytes)
        return f"{in_unit(load.total_bytes, unit)} {unit}"
    return part_of(load.total_bytes, available)


NAME_WIDTH_MAX = 16
BAR_WIDTH_MIN = 5
TICK_WIDTH = 2


class LoadTable(StripWidget):
    """The memory that the split takes of each device, in numbers."""

    DEFAULT_CSS = """
    LoadTable {
        height: auto;
        width: 1fr;
    }
    """

    draft: reactive[Draft | None] = reactive(None, init=False, repaint=False)
    """The split shown by the bar."""

    headed: reactive[bool] = reactive(False, init=False, layout=True)
    """A row above says what the columns are."""
    stale: reactive[bool] = reactive(False, init=False, repaint=False)
    """The figures are not of what is set now."""

    def get_content_height(self, container: object, viewport: object, w: int) -> int:
        n_rows = _n_rows(self.draft)
        return n_rows + (self.headed and n_rows > 0)

    def draw(self, width: int, height: int) -> list[Strip]:
        if self.draft is None:
            return []
        loads = self.draft.loads
        unit = common_unit(max(load.total_bytes for load in loads))
        rows = [self._row(self.draft, load, unit, width) for load in loads]
        return [self._heading(self.draft, unit, width), *rows] if self.headed else rows

    def watch_draft(self, before: Draft | None, now: Draft | None) -> None:
        if _n_rows(before) == _n_rows(now):
            self.redraw_changed()
        else:
            self._strips = None
            self.refresh(layout=True)

    def watch_headed(self) -> None:
        self.redraw()

    def watch_stale(self) -> None:
        self.redraw_changed()

    def _row(self, draft: Draft, load: DeviceLoad, unit: str, width: int) -> Strip:
        misfit = load.device in draft.misfits
        tail: list[Part] = [self._verdict(load, misfit)]
        name, span, shown, sums, room = self._fitted(draft, load, unit, width)
        bar = self._bar(draft, load, room - 2)
        return line([*name, span, *shown, *sums, *bar, *tail], width)

    def _fitted(
        self, draft: Draft, load: DeviceLoad, unit: str, width: int
    ) -> tuple[list[Part], Part, list[Part], list[Part], int]:
        """Name, layers, parts and sum of a device, and the room left for its bar."""
        name, sums = self._label(draft, load), self._sums(draft, load, unit)
        parts = self._parts(load, unit)
        room = width - parts_width([*name, *sums]) - TICK_WIDTH
        span = self._span(draft, load, room, parts_width(parts))
        room -= parts_width([span])
        shown = parts if room >= parts_width(parts) else []
        return name, span, shown, sums, room - parts_width(shown)

    def _heading(self, draft: Draft, unit: str, width: int) -> Strip:
        """The columns' names, over the figures of the first device."""
        load = draft.loads[0]
        name, span, shown, _sums, _room = self._fitted(draft, load, unit, width)
        titles = [f"{'device':<{parts_width(name)}}", f"{'layers':<{len(span[0])}}"]
        if shown:
            titles.append(f"{'weights':>7}   {'KV':>4}   {'buffers':>7}  ")
        titles.append(f"{'total':>5}")
        return line([("".join(titles), self.palette.dim)], width)

    def _label(self, draft: Draft, load: DeviceLoad) -> list[Part]:
        mark = draft.mark(load.device)
        longest = max(len(share.device) for share in draft.split.shares)
        label = clip(device_label(load.device), min(longest, NAME_WIDTH_MAX))
        return [
            (f"{letter(mark)} ", self.palette.device(mark)),
            (f"{label}  ", self.palette.text),
        ]

    def _span(self, draft: Draft, load: DeviceLoad, room: int, parts: int) -> Part:
        """The layers; in full only where the parts still have room beside."""
        n_layer = draft.model.n_layer
        full, short = span_width(n_layer) + 1, span_width(n_layer, short=True) + 1
        if room >= full + parts or full <= room < short + parts:
            return clip(layer_span(load, n_layer), full), self.palette.text
        text = clip(short_span(load, n_layer), min(short, max(room, 0)))
        return text, self.palette.text

    def _verdict(self, load: DeviceLoad, misfit: bool) -> Part:
        """The sign for a load that fits; only a checked figure gets a tick."""
        if self.stale:
            return "  ", self.palette.dim
        if misfit:
            return " ✗", self.palette.bad
        tick = tick_of(load.source)
        return f" {tick}", self.palette.dim if tick == PREDICTED else self.palette.ok

    def _style(self, load: DeviceLoad) -> Style:
        return self.palette.dim if self.stale else style_of(load.source, self.palette)

    def _sums(self, draft: Draft, load: DeviceLoad, unit: str) -> list[Part]:
        available = draft.available.get(load.device)
        total = in_unit(load.total_bytes, unit)
        if available is None:
            return [(f"{total:>5} {unit}", self._style(load))]
        whole_unit = common_unit(available)
        own = "" if unit == whole_unit else f" {unit}"
        whole = in_unit(available, whole_unit)
        return [
            (f"{total:>5}{own}", self._style(load)),
            (f" of {whole:>4} {whole_unit}", self.palette.dim),
        ]

    def _parts(self, load: DeviceLoad, unit: str) -> list[Part]:
        weights, kv, compute = (
            in_unit(value, unit)
            for value in (load.weight_bytes, load.kv_bytes, load.compute_bytes)
        )
        text = (
            f"{weights:>7} + {kv:>4} + {compute:>7} ="
            if self.headed
            else f"{weights:>5} + {kv:>4} KV + {compute:>4} ="
        )
        return [(text, self._style(load))]

    def _bar(self, draft: Draft, load: DeviceLoad, width: int) -> list[Part]:
        available = draft.available.get(load.device)
        if available is None or width < BAR_WIDTH_MIN:
            return []
        full = self.palette.device(draft.mark(load.device))
        empty = self.palette.track
        total = load.total_bytes
        cells = memory_bar(total, available, width, full=full, empty=empty)
        return [("  ", self.palette.dim), *cells]


def _n_rows(draft: Draft | None) -> int:
    return len(draft.split.shares) if draft else 0
