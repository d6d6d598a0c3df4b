"""One row per device of the split: layers, bytes by kind, and whether they fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from textual.reactive import reactive

from tui.widgets.draft import device_label, letter
from tui.widgets.figures import common_unit, in_unit, layer_span, short_span
from tui.widgets.memory_bar import memory_bar
from tui.widgets.strips import Part, StripWidget, clip, line, parts_width

if TYPE_CHECKING:
    from textual.strip import Strip

    from backends.split.memory import DeviceLoad
    from backends.state import DeviceBuffers
    from tui.widgets.draft import Draft

NAME_WIDTH = 14
SPAN_WIDTH = 16
BAR_WIDTH = 12


class _Bytes(NamedTuple):
    """Bytes on one device, predicted or read from llama-server's log."""

    weights: int
    kv: int
    compute: int
    measured: bool

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.compute


class LoadTable(StripWidget):
    """What the split puts on each device, in numbers."""

    DEFAULT_CSS = """
    LoadTable {
        height: auto;
        width: 1fr;
    }
    """

    draft: reactive[Draft | None] = reactive(None, init=False, layout=True)
    """The split shown by the bar."""
    measured: reactive[tuple[DeviceBuffers, ...]] = reactive((), init=False)
    """What llama-server's log says, where this very split runs."""

    def get_content_height(self, container: object, viewport: object, w: int) -> int:
        """One row per device."""
        return len(self.draft.split.shares) if self.draft else 0

    def draw(self, width: int, height: int) -> list[Strip]:
        """A row per share, in the order of the layers."""
        if self.draft is None:
            return []
        rows = [(load, self._bytes(load)) for load in self.draft.loads]
        largest = max(
            [bytes_.total for _, bytes_ in rows] + [*self.draft.available.values()]
        )
        unit = common_unit(largest)
        return [self._row(self.draft, *row, unit, width) for row in rows]

    def watch_draft(self) -> None:
        """Every move of a boundary changes the numbers."""
        self.redraw()

    def watch_measured(self) -> None:
        """Measured bytes take the place of predicted ones."""
        self.redraw()

    def _bytes(self, load: DeviceLoad) -> _Bytes:
        for found in self.measured:
            if found.device == load.device:
                return _Bytes(
                    found.model_bytes, found.kv_bytes, found.compute_bytes, True
                )
        return _Bytes(load.weight_bytes, load.kv_bytes, load.compute_bytes, False)

    def _row(
        self, draft: Draft, load: DeviceLoad, found: _Bytes, unit: str, width: int
    ) -> Strip:
        """Name, layers, sum and verdict; then, if there is room, parts and bar."""
        mark = draft.mark(load.device)
        misfit = load.device in draft.misfits
        verdict = self.palette.bad if misfit else self.palette.ok
        available = draft.available.get(load.device)
        name = self._name(load, mark)
        sums = self._sums(found, available, unit)
        tail: list[Part] = [(" ✗" if misfit else " ✓", verdict)]
        room = width - parts_width([*name, *sums, *tail])
        span = self._span(draft, load, room)
        parts = self._parts(found, unit)
        room -= parts_width([span])
        if room < parts_width(parts):
            parts = []
        room -= parts_width(parts)
        bar = self._bar(mark, found.total, available, min(room - 2, BAR_WIDTH + 8))
        return line([*name, span, *parts, *sums, *bar, *tail], width)

    def _name(self, load: DeviceLoad, mark: int) -> list[Part]:
        label = clip(device_label(load.device), NAME_WIDTH)
        return [
            (f"{letter(mark)} ", self.palette.device(mark)),
            (f"{label} ", self.palette.text),
        ]

    def _span(self, draft: Draft, load: DeviceLoad, room: int) -> Part:
        n_layer = draft.model.n_layer
        if room >= SPAN_WIDTH:
            return clip(layer_span(load, n_layer), SPAN_WIDTH), self.palette.text
        return clip(short_span(load, n_layer), min(room, 9)), self.palette.text

    def _sums(self, found: _Bytes, available: int | None, unit: str) -> list[Part]:
        total = in_unit(found.total, unit).rjust(6)
        if available is None:
            return [(total, self.palette.strong), (f" {unit}", self.palette.dim)]
        return [
            (total, self.palette.strong),
            (f" of {in_unit(available, unit):>6} {unit}", self.palette.dim),
        ]

    def _parts(self, found: _Bytes, unit: str) -> list[Part]:
        weights, kv, compute = (
            in_unit(value, unit) for value in (found.weights, found.kv, found.compute)
        )
        text = f"{weights:>6} + {kv:>5} KV + {compute:>5} ="
        return [(text, self.palette.dim)]

    def _bar(
        self, mark: int, total: int, available: int | None, width: int
    ) -> list[Part]:
        if available is None or width < 4:
            return []
        full, empty = self.palette.device(mark), self.palette.track
        cells = memory_bar(total, available, width, full=full, empty=empty)
        return [("  ", self.palette.dim), *cells]
