"""The list of models: sorted, filtered, its cells updated in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual import on
from textual.message import Message
from textual.widgets import DataTable

from tui.widgets.model_rows import (
    ModelColumn,
    ModelOrder,
    arrange_models,
    cell_text,
    columns_at,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from backends.state import ModelFile

CELL_PADDING = 1
NAME_CELLS = 18
"""Least width of the names."""


class NameCell(Text):
    """The first cell of a row, which knows its model for sorting."""

    path: str = ""


class ModelTable(DataTable[Text]):
    """One row per model file, its key the path."""

    HELP: ClassVar[str | None] = """\
## Models

GGUF files found on this machine. `●` marks the model in use; dim ones cannot be used,
and say why.

- **Enter** uses the model: the split is planned anew, nothing is launched yet
- **/** filters (letters in order are enough: `q3c` finds *Qwen3-Coder*), **Esc** clears
- **o** sorts by the next column, **O** turns the order round; a click on a header too
- **r** looks through the folders again, **p** takes any path
- **shift+↑ ↓** scroll the details, **y** copies the path
"""

    DEFAULT_CSS = """
    ModelTable {
        height: 1fr;
        background: $background;
        scrollbar-size: 1 1;
        &:focus { background-tint: $foreground 0%; }
        & > .datatable--header { background: $surface; color: $dim; text-style: none; }
        & > .datatable--odd-row, & > .datatable--even-row { background: $background; }
    }
    """

    @dataclass
    class Picked(Message):
        """The user wants this model."""

        table: ModelTable
        model: ModelFile

        @property
        def control(self) -> ModelTable:
            """The table it was picked in."""
            return self.table

    @dataclass
    class Pointed(Message):
        """The cursor is on another model; None in an empty list."""

        table: ModelTable
        model: ModelFile | None

        @property
        def control(self) -> ModelTable:
            """The table the cursor moved in."""
            return self.table

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        """Create an empty list."""
        super().__init__(id=id, cursor_type="row", cell_padding=CELL_PADDING)
        self.order = ModelOrder()
        self.current = ""
        """Path of the model in use."""
        self.query_text = ""
        self._models: tuple[ModelFile, ...] = ()
        self._shown: dict[str, ModelFile] = {}
        self._layout: tuple[ModelColumn, ...] = ()
        self._name_cells = NAME_CELLS

    # --- what it shows ------------------------------------------------------

    @property
    def shown(self) -> list[ModelFile]:
        """The models listed, top to bottom."""
        return list(self._shown.values())

    @property
    def pointed(self) -> ModelFile | None:
        """The model under the cursor."""
        shown = self.shown if self.row_count else []
        return shown[self.cursor_row] if self.cursor_row < len(shown) else None

    @property
    def column_keys(self) -> list[str]:
        """The columns shown, left to right."""
        return [column.key for column in self._layout]

    def show_models(self, models: Sequence[ModelFile]) -> None:
        """List these models instead."""
        self._models = tuple(models)
        self._arrange()

    def set_filter(self, query: str) -> None:
        """List what matches; the best match gets the cursor."""
        self.query_text = query
        self._label_columns()
        self._arrange(keep_cursor=not query)

    def set_order(self, order: ModelOrder) -> None:
        """Sort otherwise."""
        self.order = order
        self._label_columns()
        self._arrange()

    def set_current(self, path: str) -> None:
        """Mark another model as the one in use."""
        if path != self.current:
            self.current = path
            self._arrange()

    # --- rows ---------------------------------------------------------------

    def _arrange(self, *, keep_cursor: bool = True) -> None:
        """Bring rows, cells and order up to date."""
        pointed = self.pointed
        wanted = arrange_models(self._models, self.query_text, self.order)
        self._shown = {model.path: model for model in wanted}
        if not self._layout:
            return
        self._drop_rows()
        for model in wanted:
            self._put_row(model)
        self._sort_rows()
        if keep_cursor and pointed is not None and pointed.path in self._shown:
            self.move_cursor(row=self.get_row_index(pointed.path), animate=False)
        elif wanted:
            self.move_cursor(row=self._first_row(), animate=False)
        self._point()

    def _first_row(self) -> int:
        """Where the cursor begins: on the model in use, else at the top."""
        paths = list(self._shown)
        if self.query_text or self.current not in self._shown:
            return 0
        return paths.index(self.current)

    def _drop_rows(self) -> None:
        """Remove the rows of models no longer listed."""
        listed = [key.value or "" for key in self.rows]
        for path in listed:
            if path not in self._shown:
                self.remove_row(path)

    def _put_row(self, model: ModelFile) -> None:
        """Add a model's row, or update the cells that changed."""
        cells = [self._cell(model, column) for column in self._layout]
        if model.path not in self.rows:
            self.add_row(*cells, key=model.path)
            return
        for column, cell in zip(self._layout, cells, strict=True):
            old = self.get_cell(model.path, column.key)
            if (old.plain, old.style) != (cell.plain, cell.style):
                self.update_cell(model.path, column.key, cell)

    def _cell(self, model: ModelFile, column: ModelColumn) -> Text:
        """One cell as it should look."""
        current = model.path == self.current
        width = column.width or self._name_cells
        cell = cell_text(model, column, width, current=current)
        if column.key != "name":
            return cell
        name = NameCell(cell.plain, style=cell.style, no_wrap=True)
        name.path = model.path
        return name

    def _sort_rows(self) -> None:
        """Put the rows in the order of what is shown."""
        places = {path: place for place, path in enumerate(self._shown)}

        def place(cell: Text) -> int:
            return places[cell.path] if isinstance(cell, NameCell) else 0

        self.sort("name", key=place)

    # --- columns ------------------------------------------------------------

    def on_resize(self) -> None:
        """Show the columns that have room."""
        width = self.size.width
        layout = tuple(columns_at(width))
        fixed = sum(column.width for column in layout)
        padding = 2 * CELL_PADDING * len(layout) + self.scrollbar_size_vertical
        names = max(NAME_CELLS, width - fixed - padding)
        if (layout, names) != (self._layout, self._name_cells):
            self._lay_out(layout, names)

    def _lay_out(self, layout: tuple[ModelColumn, ...], names: int) -> None:
        """Make columns anew; the cursor stays on its model."""
        pointed = self.pointed
        self._layout, self._name_cells = layout, names
        self.clear(columns=True)
        for column in layout:
            width = column.width or names
            self.add_column(self._label(column), width=width, key=column.key)
        self._arrange()
        if pointed is not None and pointed.path in self._shown:
            self.move_cursor(row=self.get_row_index(pointed.path), animate=False)

    def _label(self, column: ModelColumn) -> Text:
        """A column's title, with an arrow where it sorts."""
        arrow = ("▼" if self.order.reverse else "▲") if self._sorts(column) else ""
        width = column.width or self._name_cells
        if column.right:
            return Text(f"{arrow}{column.label}".rjust(width))
        indent = "  " if column.key == "name" else ""
        return Text(f"{indent}{column.label}{arrow}")

    def _sorts(self, column: ModelColumn) -> bool:
        """The list is sorted by this column."""
        return column.key == self.order.column and not self.query_text

    def _label_columns(self) -> None:
        """Draw the titles again."""
        for column in self._layout:
            for key, shown in self.columns.items():
                if key == column.key:
                    shown.label = self._label(column)

    # --- what the user does ---------------------------------------------------

    def _point(self) -> None:
        """Tell which model the cursor is on."""
        self.post_message(self.Pointed(self, self.pointed))

    @on(DataTable.HeaderSelected)
    def _header_selected(self, event: DataTable.HeaderSelected) -> None:
        event.stop()
        if event.column_key.value:
            self.set_order(self.order.by(event.column_key.value))

    @on(DataTable.RowHighlighted)
    def _row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        event.stop()
        self._point()

    @on(DataTable.RowSelected)
    def _row_selected(self, event: DataTable.RowSelected) -> None:
        event.stop()
        self.pick()

    def pick(self) -> None:
        """Choose the model under the cursor."""
        if self.pointed is not None:
            self.post_message(self.Picked(self, self.pointed))

    def move(self, rows: int) -> None:
        """Move the cursor by rows."""
        last = max(0, len(self._shown) - 1)
        row = min(max(self.cursor_row + rows, 0), last)
        self.move_cursor(row=row, animate=False)
