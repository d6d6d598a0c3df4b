"""Base of the tables that sort, filter and update their cells in place."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from rich.text import Text
from textual import on
from textual.actions import SkipAction
from textual.coordinate import Coordinate
from textual.geometry import Offset, Region
from textual.widgets import DataTable

from tui.widgets.inputs import FilterBar


class SortOrder(NamedTuple):
    """A column, and whether its usual order is turned round."""

    column: str
    reverse: bool = False

    def next(self, shown: Iterable[str]) -> SortOrder:
        keys = list(shown)
        if not keys:
            return self
        at = keys.index(self.column) if self.column in keys else -1
        return SortOrder(keys[(at + 1) % len(keys)])

    def by(self, column: str) -> SortOrder:
        """Sorted by a column; the same one again turns the order round."""
        return SortOrder(column, column == self.column and not self.reverse)


CELL_PADDING = 1
REST_CELLS_MAX = 40
"""Names in a column of the rest take no more, if another one can use it."""


Row = TypeVar("Row")


@dataclass(frozen=True)
class TableColumn(Generic[Row]):
    key: str
    label: str
    width: int
    """Its cells; 0 for what the others leave, the last of two most of it."""
    text: Callable[[Row], str]
    order: Callable[[Row], Any] = lambda row: 0
    right: bool = False
    from_width: int = 0
    """Cells the table needs before this column appears."""
    needs: Callable[[Row], bool] = lambda row: True
    """Shown only if some row is so."""


def rest_cells(
    columns: Sequence[TableColumn[Row]], width: int, least: int
) -> dict[str, int]:
    """The cells of columns that get what the others leave: one of them, or two."""
    elastic = [column.key for column in columns if not column.width]
    taken = sum(column.width + 2 * CELL_PADDING for column in columns)
    rest = max(width - taken, least)
    if len(elastic) < 2:
        return dict.fromkeys(elastic, rest)
    first = max(min(rest // 3, REST_CELLS_MAX), least)
    return dict(zip(elastic, (first, max(rest - first, least)), strict=True))


def fitting_columns(
    columns: Iterable[TableColumn[Row]], rows: Collection[Row], width: int
) -> list[TableColumn[Row]]:
    """The columns that have room, and something to show."""
    return [
        column
        for column in columns
        if column.from_width <= width and (not rows or any(map(column.needs, rows)))
    ]


class KeyCell(Text):
    """The first cell of a row, which knows its row for sorting."""

    key: str = ""


class SortableTable(DataTable[Text], Generic[Row]):
    """Rows in an order of ours, as many columns as fit, the cursor on its row."""

    COLUMNS: ClassVar[tuple[TableColumn[Any], ...]]
    REST_CELLS_MIN = 15
    """Least width of the column that gets what the others leave."""

    DEFAULT_CSS = """
    SortableTable {
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

    def __init__(self, order: SortOrder, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, cursor_type="row", cell_padding=CELL_PADDING)
        self.order = order
        self.query_text = ""
        self._shown: dict[str, Row] = {}
        self._layout: tuple[TableColumn[Row], ...] = ()
        self._rest_cells: dict[str, int] = {}

    @property
    def all_rows(self) -> Sequence[Row]:
        raise NotImplementedError

    def arranged(self) -> Sequence[Row]:
        raise NotImplementedError

    def key_of(self, row: Row) -> str:
        raise NotImplementedError

    def cell_of(self, row: Row, column: TableColumn[Row], width: int) -> Text:
        """One cell as it should look, exactly so wide."""
        raise NotImplementedError

    def title_of(self, column: TableColumn[Row]) -> str:
        arrow = "▼" if self.falls(self.order) else "▲"
        sign = arrow if column.key == self.order.column else ""
        return f"{sign}{column.label}" if column.right else f"{column.label}{sign}"

    def falls(self, order: SortOrder) -> bool:
        """True if the largest value comes first."""
        return order.reverse

    def first_row(self) -> int:
        """The first row of the cursor, also if the cursor's row vanishes."""
        return 0

    def tell(self) -> None:
        raise NotImplementedError

    @property
    def shown(self) -> list[Row]:
        return list(self._shown.values())

    @property
    def pointed(self) -> Row | None:
        shown = self.shown if self.row_count else []
        return shown[self.cursor_row] if self.cursor_row < len(shown) else None

    @property
    def subject_region(self) -> Region:
        """The row under the cursor, on the screen."""
        y = self.header_height + self.cursor_row - self.scroll_offset.y
        return Region(self.region.x, self.region.y + y, self.region.width, 1)

    @property
    def column_keys(self) -> list[str]:
        return [column.key for column in self._layout]

    def set_filter(self, query: str) -> None:
        self.query_text = query
        self.list_rows(follow=True)

    def set_order(self, order: SortOrder) -> None:
        self.order = order
        self.label_columns()
        self.list_rows(follow=True)

    def move(self, rows: int) -> None:
        last = max(0, len(self._shown) - 1)
        row = min(max(self.cursor_row + rows, 0), last)
        self.move_cursor(row=row, animate=False)

    # Textual's Home and End go along the row, to its first and last cell.

    def action_scroll_home(self) -> None:
        self.move(-self.row_count)

    def action_scroll_end(self) -> None:
        self.move(self.row_count)

    def list_rows(self, *, keep_cursor: bool = True, follow: bool = False) -> None:
        """Bring rows, cells and order up to date.

        Who has scrolled away from the cursor stays there, unless the view is to
        ``follow`` it.
        """
        pointed = self.pointed if keep_cursor else None
        looks_away = pointed is not None and not (follow or self._sees_cursor)
        wanted = self.arranged()
        self._shown = {self.key_of(row): row for row in wanted}
        if not self._layout:
            return
        for key in [key.value or "" for key in self.rows]:
            if key not in self._shown:
                self.remove_row(key)
        for row in wanted:
            self._put_row(row)
        if [row.key.value for row in self.ordered_rows] != list(self._shown):
            self._sort_rows()
        self._point_at(pointed, scroll=not looks_away)
        self.tell()

    def _put_row(self, row: Row) -> None:
        key = self.key_of(row)
        cells = [self._cell(row, column) for column in self._layout]
        if key not in self.rows:
            self.add_row(*cells, key=key)
            return
        for column, cell in zip(self._layout, cells, strict=True):
            old = self.get_cell(key, column.key)
            if (old.plain, old.style) != (cell.plain, cell.style):
                self.update_cell(key, column.key, cell, update_width=False)

    def _cell(self, row: Row, column: TableColumn[Row]) -> Text:
        cell = self.cell_of(row, column, self._cells_of(column))
        if column is not self._layout[0]:
            return cell
        named = KeyCell(cell.plain, style=cell.style, no_wrap=True)
        named.key = self.key_of(row)
        return named

    def _sort_rows(self) -> None:
        places = {key: place for place, key in enumerate(self._shown)}

        def place(cell: Text) -> int:
            return places[cell.key] if isinstance(cell, KeyCell) else 0

        self.sort(self._layout[0].key, key=place)

    def _point_at(self, row: Row | None, *, scroll: bool = True) -> None:
        keys = list(self._shown)
        key = "" if row is None else self.key_of(row)
        at = keys.index(key) if key in self._shown else self.first_row()
        if scroll:
            self.move_cursor(row=at, animate=False)
        else:
            # Its watcher would scroll there.
            there = Coordinate(at, self.cursor_column)
            self.set_reactive(DataTable.cursor_coordinate, there)

    @property
    def _sees_cursor(self) -> bool:
        at = self.cursor_row - self.scroll_offset.y
        rows = self.scrollable_content_region.height - self.header_height
        return 0 <= at < rows

    def on_resize(self) -> None:
        width = self.scrollable_content_region.width
        layout = tuple(fitting_columns(self.COLUMNS, self.all_rows, width))
        rest = rest_cells(layout, width, self.REST_CELLS_MIN)
        if (layout, rest) != (self._layout, self._rest_cells):
            self._lay_out(layout, rest)

    def _cells_of(self, column: TableColumn[Row]) -> int:
        return column.width or self._rest_cells[column.key]

    def _lay_out(
        self, layout: tuple[TableColumn[Row], ...], rest: dict[str, int]
    ) -> None:
        pointed = self.pointed
        self._layout, self._rest_cells = layout, rest
        self.clear(columns=True)
        for column in layout:
            width = self._cells_of(column)
            self.add_column(self._label(column), width=width, key=column.key)
        self.list_rows()
        self._point_at(pointed)
        self.tell()

    def _label(self, column: TableColumn[Row]) -> Text:
        title = self.title_of(column)
        width = self._cells_of(column)
        return Text(title.rjust(width) if column.right else title)

    def press_spots(self) -> list[Offset]:
        """Give the columns' headings, which sort by them, and the rows in sight."""
        widths = (column.get_render_width(self) for column in self.ordered_columns)
        headings = [Offset(x, 0) for x in accumulate(widths, initial=0)][:-1]
        room = self.scrollable_content_region.height - self.header_height
        n_rows = min(room, self.row_count - round(self.scroll_y))
        return [*headings, *(Offset(0, self.header_height + y) for y in range(n_rows))]

    def label_columns(self) -> None:
        titles = {column.key: self._label(column) for column in self._layout}
        for key, shown in self.columns.items():
            shown.label = titles[key.value or ""]

    @on(DataTable.HeaderSelected)
    def _header_selected(self, event: DataTable.HeaderSelected) -> None:
        event.stop()
        if event.column_key.value:
            self.set_order(self.order.by(event.column_key.value))

    @on(DataTable.RowHighlighted)
    def _row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        event.stop()
        self.tell()

    @on(DataTable.RowSelected)
    def _row_selected(self, event: DataTable.RowSelected) -> None:
        event.stop()
        self.pick()

    def pick(self) -> None:
        """Choose the row under the cursor; nothing where there is nothing to choose."""


class FilteredTable:
    """Part of a screen: the keys that sort and filter its table."""

    table: SortableTable[Any]
    filter_bar: FilterBar

    def summarise(self) -> None:
        raise NotImplementedError

    def action_sort(self) -> None:
        self.table.set_order(self.table.order.next(self.table.column_keys))

    def action_reverse(self) -> None:
        self.table.set_order(self.table.order.by(self.table.order.column))

    def action_move(self, rows: int) -> None:
        self.table.move(rows)

    def action_filter(self) -> None:
        self.filter_bar.open()

    def action_unfilter(self) -> None:
        if not self.filter_bar.text:
            raise SkipAction
        self.filter_bar.action_clear()

    def on_filter_bar_changed(self, event: FilterBar.Changed) -> None:
        if event.bar is self.filter_bar:
            event.stop()
            self.table.set_filter(event.text)
            self.summarise()

    def on_filter_bar_left(self, event: FilterBar.Left) -> None:
        if event.bar is self.filter_bar:
            event.stop()
            self.table.focus()
