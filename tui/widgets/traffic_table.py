"""The table of commands: sorted, filtered, its cells updated in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual import on
from textual.message import Message
from textual.widgets import DataTable

from tui.widgets.traffic_rows import (
    COMMAND_CELLS,
    TrafficColumn,
    TrafficOrder,
    TrafficRow,
    arrange_rows,
    cell_text,
    columns_at,
    rows_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from backends.state import Link

CELL_PADDING = 1


class KeyCell(Text):
    """The first cell of a row, which knows its row for sorting."""

    key: str = ""


class TrafficTable(DataTable[Text]):
    """One row per worker and command."""

    HELP: ClassVar[str | None] = """\
## Commands

What llama-server asked of each worker, as the relay in front of it counted.

- **up**, **down**: bytes to the worker and back; **local**: answered by the relay
- **p50**, **p99**, **max**: from the question's last byte to the answer's
- **o** sorts by the next column, **O** turns the order round; a click on a header too
- **/** keeps rows with every word typed (`mini graph`), **Esc** clears
- **space** holds the token waterfall, **v** shows means, **w** one worker
- **x** exports the tokens as a Chrome trace, **y** copies the row
"""

    DEFAULT_CSS = """
    TrafficTable {
        height: 1fr;
        background: $background;
        scrollbar-size: 1 1;
        scrollbar-gutter: stable;
        overflow-x: hidden;
        &:focus { background-tint: $foreground 0%; }
        & > .datatable--header { background: $surface; color: $dim; text-style: none; }
        & > .datatable--odd-row, & > .datatable--even-row { background: $background; }
    }
    """

    @dataclass
    class Pointed(Message):
        """Another row is under the cursor, or its figures changed."""

        table: TrafficTable
        row: TrafficRow | None

        @property
        def control(self) -> TrafficTable:
            """The table the cursor is in."""
            return self.table

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        """Create an empty table."""
        super().__init__(id=id, cursor_type="row", cell_padding=CELL_PADDING)
        self.order = TrafficOrder()
        self.query_text = ""
        self._rows: list[TrafficRow] = []
        self._shown: dict[str, TrafficRow] = {}
        self._layout: tuple[TrafficColumn, ...] = ()
        self._command_cells = COMMAND_CELLS
        self._told: TrafficRow | None = None

    # --- what it shows ------------------------------------------------------

    @property
    def shown(self) -> list[TrafficRow]:
        """The rows listed, top to bottom."""
        return list(self._shown.values())

    @property
    def pointed(self) -> TrafficRow | None:
        """The row under the cursor."""
        shown = self.shown if self.row_count else []
        return shown[self.cursor_row] if self.cursor_row < len(shown) else None

    @property
    def column_keys(self) -> list[str]:
        """The columns shown, left to right."""
        return [column.key for column in self._layout]

    @property
    def total(self) -> int:
        """Rows there are, the filtered ones too."""
        return len(self._rows)

    def show(self, links: Sequence[Link]) -> None:
        """Show newer figures."""
        rows = rows_of(links)
        if rows != self._rows:
            self._rows = rows
            self._arrange()

    def set_filter(self, query: str) -> None:
        """Show only what matches."""
        self.query_text = query
        self._arrange()

    def set_order(self, order: TrafficOrder) -> None:
        """Sort otherwise."""
        self.order = order
        self._label_columns()
        self._arrange()

    # --- rows ---------------------------------------------------------------

    def _arrange(self) -> None:
        """Bring rows, cells and order up to date; the cursor stays on its row."""
        pointed = self.pointed
        before = list(self._shown)
        wanted = arrange_rows(self._rows, self.query_text, self.order)
        self._shown = {row.key: row for row in wanted}
        if not self._layout:
            return
        self._put_rows(wanted)
        if list(self._shown) != before or self._out_of_order():
            self._sort_rows()
            self._point_at(pointed)
        self._tell()

    def _put_rows(self, wanted: list[TrafficRow]) -> None:
        """Remove what is no longer listed, add or update the rest."""
        for key in [key.value or "" for key in self.rows]:
            if key not in self._shown:
                self.remove_row(key)
        for row in wanted:
            self._put_row(row)

    def _put_row(self, row: TrafficRow) -> None:
        """Add a row, or update the cells that changed."""
        cells = [self._cell(row, column) for column in self._layout]
        if row.key not in self.rows:
            self.add_row(*cells, key=row.key)
            return
        for column, cell in zip(self._layout, cells, strict=True):
            old = self.get_cell(row.key, column.key)
            if (old.plain, old.style) != (cell.plain, cell.style):
                self.update_cell(row.key, column.key, cell, update_width=False)

    def _cell(self, row: TrafficRow, column: TrafficColumn) -> Text:
        """One cell as it should look."""
        cell = cell_text(row, column, column.width or self._command_cells)
        if column.key != "worker":
            return cell
        named = KeyCell(cell.plain, style=cell.style, no_wrap=True)
        named.key = row.key
        return named

    def _out_of_order(self) -> bool:
        """Rows were added in another order than they shall have."""
        return [key.value for key in self.rows] != list(self._shown)

    def _sort_rows(self) -> None:
        """Put the rows in the order of what is shown."""
        places = {key: place for place, key in enumerate(self._shown)}

        def place(cell: Text) -> int:
            return places[cell.key] if isinstance(cell, KeyCell) else 0

        self.sort("worker", key=place)

    def _point_at(self, row: TrafficRow | None) -> None:
        """Put the cursor on a row, else at the top."""
        at = list(self._shown).index(row.key) if row and row.key in self._shown else 0
        self.move_cursor(row=at, animate=False)

    # --- columns ------------------------------------------------------------

    def on_resize(self) -> None:
        """Show the columns that have room."""
        width = self.scrollable_content_region.width
        layout = tuple(columns_at(width))
        fixed = sum(column.width for column in layout)
        padding = 2 * CELL_PADDING * len(layout)
        commands = max(COMMAND_CELLS, width - fixed - padding)
        if (layout, commands) != (self._layout, self._command_cells):
            self._lay_out(layout, commands)

    def _lay_out(self, layout: tuple[TrafficColumn, ...], commands: int) -> None:
        """Make columns anew; the cursor stays on its row."""
        pointed = self.pointed
        self._layout, self._command_cells = layout, commands
        self.clear(columns=True)
        for column in layout:
            width = column.width or commands
            self.add_column(self._label(column), width=width, key=column.key)
        self._arrange()
        self._point_at(pointed)
        self._tell()

    def _label(self, column: TrafficColumn) -> Text:
        """A column's title, with an arrow where it sorts."""
        arrow = "▼" if self.order.largest_first else "▲"
        sign = arrow if column.key == self.order.column else ""
        if column.right:
            return Text(f"{sign}{column.label}".rjust(column.width))
        return Text(f"{column.label}{sign}")

    def _label_columns(self) -> None:
        """Draw the titles again."""
        for key, shown in self.columns.items():
            for column in self._layout:
                if key == column.key:
                    shown.label = self._label(column)

    # --- what the user does ---------------------------------------------------

    def _tell(self) -> None:
        """Tell which row the cursor is on."""
        if self.pointed != self._told:
            self._told = self.pointed
            self.post_message(self.Pointed(self, self._told))

    @on(DataTable.HeaderSelected)
    def _header_selected(self, event: DataTable.HeaderSelected) -> None:
        event.stop()
        if event.column_key.value:
            self.set_order(self.order.by(event.column_key.value))

    @on(DataTable.RowHighlighted)
    def _row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        event.stop()
        self._tell()

    @on(DataTable.RowSelected)
    def _row_selected(self, event: DataTable.RowSelected) -> None:
        event.stop()

    def move(self, rows: int) -> None:
        """Move the cursor by rows."""
        last = max(0, len(self._shown) - 1)
        row = min(max(self.cursor_row + rows, 0), last)
        self.move_cursor(row=row, animate=False)
