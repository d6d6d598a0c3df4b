"""The list of layers: their parts, their bytes, and the device of each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from rich.style import Style
from rich.text import Text
from textual import on
from textual.message import Message

from backends.split.buffers import kv_bytes
from backends.split.experts import moved_layers, owners
from backends.split.layout import format_range, runs_of
from backends.state import Layer, Split
from backends.units import format_bytes, format_percent
from tui.model.edit import Edit
from tui.model.names import device_label, letter
from tui.widgets.palette import palette_from
from tui.widgets.safe_text import safe_line
from tui.widgets.strips import clip
from tui.widgets.table import SortableTable, SortOrder, TableColumn

QUANTS_SHOWN = 2
QUANT_SHARE_MIN = 0.005
OUTPUT = "output"
MARK = "●"


class LayerRow(NamedTuple):
    number: int
    layer: Layer | None
    """None for the output."""
    n_bytes: int
    kv_bytes: int
    """At the plan's context."""
    device: str
    mark: int
    """Number of the device's letter and colour."""
    experts_mark: int | None = None
    """The same of the device of its experts, if that is another one."""

    @property
    def name(self) -> str:
        return OUTPUT if self.layer is None else str(self.number)


def layer_rows(edit: Edit) -> list[LayerRow]:
    model, plan = edit.model, edit.plan
    kv = kv_bytes(model, plan.ctx_size, plan.server)
    devices = owners(edit.split)
    sizes = (*(layer.bytes for layer in model.layers), model.output_bytes)
    layers = (*model.layers, None)
    elsewhere = moved_layers(edit.split, plan.experts)
    moved = {layer: edit.mark(device) for layer, _, device in elsewhere}
    return [
        LayerRow(
            *(at, layers[at], sizes[at], kv[at], device, edit.mark(device)),
            experts_mark=moved.get(at),
        )
        for at, device in enumerate(devices)
    ]


def device_text(row: LayerRow) -> str:
    """``A mini MTL0``, ``A mini MTL0, experts C``."""
    text = f"{letter(row.mark)} {_label(row.device)}"
    moved = row.experts_mark
    return text if moved is None else f"{text}, experts {letter(moved)}"


def quants_text(layer: Layer) -> str:
    """``Q4_K 92 %, Q6_K 8 %``: the types of a layer, the one with most bytes first.

    Norms, of less than half a percent, are left out.
    """
    total = max(sum(layer.quants.values()), 1)
    told = (pair for pair in layer.quants.items() if pair[1] >= total * QUANT_SHARE_MIN)
    by_size = sorted(told, key=lambda pair: -pair[1])
    shown = [
        f"{name} {format_percent(n_bytes / total)}" if len(by_size) > 1 else name
        for name, n_bytes in by_size[:QUANTS_SHOWN]
    ]
    return ", ".join((*shown, *(["…"] if len(by_size) > QUANTS_SHOWN else [])))


def _size(n_bytes: int) -> str:
    return format_bytes(n_bytes) if n_bytes else "·"


def _group(name: str, title: str, from_width: int) -> TableColumn[LayerRow]:
    def n_bytes(row: LayerRow) -> int:
        return getattr(row.layer.groups, name) if row.layer else 0

    return _figure(name, title, n_bytes, from_width)


def _figure(
    key: str, title: str, n_bytes: Callable[[LayerRow], int], from_width: int = 0
) -> TableColumn[LayerRow]:
    return TableColumn(
        key,
        title,
        10,
        lambda row: _size(n_bytes(row)),
        right=True,
        from_width=from_width,
        needs=lambda row: n_bytes(row) > 0,
    )


COLUMNS: tuple[TableColumn[LayerRow], ...] = (
    TableColumn("layer", "  layer", 8, lambda row: f"  {row.name}"),
    TableColumn("device", "device", 0, device_text),
    _figure("size", "size", lambda row: row.n_bytes),
    _figure("kv", "KV", lambda row: row.kv_bytes),
    TableColumn(
        "quants",
        "quants",
        20,
        lambda row: quants_text(row.layer) if row.layer else "",
        from_width=66,
        needs=lambda row: bool(row.layer and row.layer.quants),
    ),
    _group("attention", "attention", 84),
    _group("ffn", "FFN", 84),
    _group("experts", "experts", 84),
    _group("recurrent", "state", 84),
)


def _label(device: str) -> str:
    return safe_line(device_label(device))


class LayerTable(SortableTable[LayerRow]):
    COLUMNS = COLUMNS
    REST_CELLS_MIN = 14

    HELP = """\
## Layers

One row per layer of the plan in editing, in the order in which a token passes them.
*KV* is at the plan's context.

- **{layers.to_a}** to **{layers.to_f}** give the layer, or the marked ones, to the
  device of that letter
- **{layers.give}** picks the device from a list
- **{layers.mark}** marks from here on, also **{layers.mark_down} {layers.mark_up}**;
  **{layers.unmark}** unmarks
- **{layers.experts}**, of a model with experts: the letters and the list give only the
  experts of the layers from then on, until it is pressed again. The rest of each layer
  stays (`-ot`); given to the device of their layer, experts are with it again
- **{layers.undo}** takes a move back, **{cluster.launch}** launches the split

A device computes one run of neighbouring layers. So layers between the marked ones and
its own go there too. Each worker that holds a layer costs a token one round trip:
*given to* tells, for each letter, the trips and the speed (`~`: predicted) after that
move, which layers go along, and *over* where the memory would not suffice.
"""

    class Pointed(Message):
        """Other layers are under the cursor or marked."""

    class Picked(Message):
        """The user wants to give the selected layers to a device."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(SortOrder("layer"), id=id)
        self._rows: list[LayerRow] = []
        self._anchor: int | None = None

    def show(self, rows: Sequence[LayerRow]) -> None:
        if len(rows) != len(self._rows):
            self._anchor = None
        if list(rows) != self._rows:
            self._rows = list(rows)
            self.list_rows()

    @property
    def marking(self) -> bool:
        return self._anchor is not None

    @property
    def selected(self) -> list[LayerRow]:
        """The marked layers, or the one under the cursor."""
        here = self.cursor_row
        start = here if self._anchor is None else self._anchor
        return self._rows[min(start, here) : max(start, here) + 1]

    def mark(self, *, on: bool) -> None:
        self._anchor = self.cursor_row if on else None
        self.list_rows()

    def extend(self, rows: int) -> None:
        """Move the cursor, and mark what it passes."""
        if self._anchor is None:
            self._anchor = self.cursor_row
        self.move(rows)

    @property
    def all_rows(self) -> Sequence[LayerRow]:
        return self._rows

    def arranged(self) -> Sequence[LayerRow]:
        return self._rows

    def key_of(self, row: LayerRow) -> str:
        return str(row.number)

    def title_of(self, column: TableColumn[LayerRow]) -> str:
        return column.label

    def cell_of(self, row: LayerRow, column: TableColumn[LayerRow], width: int) -> Text:
        text = clip(column.text(row), width)
        if column.right:
            text = text.strip().rjust(width)
        palette = palette_from(self.app.theme_variables)
        style = palette.text
        if column.key == "device":
            style = palette.device(row.mark)
        if self.marking and row in self.selected:
            style += Style(bold=True)
            if column.key == "layer":
                text = clip(f"{MARK} {row.name}", width)
        return Text(text, style=style, no_wrap=True)

    def tell(self) -> None:
        self.post_message(self.Pointed())

    def pick(self) -> None:
        if self._rows:
            self.post_message(self.Picked())

    @on(SortableTable.RowHighlighted)
    def _draw_marks(self) -> None:
        if self.marking:
            self.list_rows()


def taken_along(now: Split, then: Split, given: Collection[int], device: str) -> str:
    """The layers that go to a device besides those given to it: ``1–17``."""
    pairs = enumerate(zip(owners(now), owners(then), strict=True))
    others = (at for at, (a, b) in pairs if a != b and at not in given)
    found = runs_of(device, others)
    return ", ".join(format_range(one, now.n_layer) for one in found)


def spans(rows: Sequence[LayerRow]) -> str:
    """``layers 12–17``, ``layer 3`` or ``layers 12–29 + output``."""
    numbers = [row.number for row in rows if row.layer is not None]
    parts = list(_parts(numbers, with_output=len(numbers) < len(rows)))
    return " + ".join(parts)


def _parts(numbers: Sequence[int], *, with_output: bool) -> Iterator[str]:
    if len(numbers) == 1:
        yield f"layer {numbers[0]}"
    elif numbers:
        yield f"layers {numbers[0]}–{numbers[-1]}"
    if with_output:
        yield OUTPUT
