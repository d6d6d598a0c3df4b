"""The table of commands, worker by worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual.message import Message

from tui.screens.traffic.rows import (
    TrafficColumn,
    TrafficRow,
    arrange_rows,
    cell_text,
    columns_at,
    largest_first,
    rows_of,
)
from tui.widgets.sort_order import SortOrder
from tui.widgets.sortable_table import SortableTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.text import Text

    from backends.state import Link


class TrafficTable(SortableTable[TrafficRow, TrafficColumn]):
    """One row per worker and command."""

    HELP: ClassVar[str | None] = """\
## Commands

What llama-server asked of each worker, as the relay in front of it counted.

- **home**: weights a worker's relay took from its own disk
- **up**, **down**: bytes to the worker and back, as they were said; **local**: answered
  by the relay
- **crossed**: what went over the network for them between a pair of relays, and how
  much that is of it; **(link itself)**: frames, pings, TLS
- **p50**, **p99**, **max**: from the question's last byte to the answer's
- The histogram is of the row under the cursor: time to the right, from one power of ten
  to the next; the taller a bar, the more calls took so long
- **{traffic.sort}** sorts by the next column, **{traffic.reverse}** turns the order
  round; a click on a header too
- **{traffic.filter}** keeps rows with every word typed (`mini graph`),
  **{traffic.unfilter}** clears
- **{app.freeze}** holds the token waterfall, **{token.median}** shows medians,
  **{token.worker}** one worker
- **{traffic.export}** exports the tokens as a Chrome trace, **{app.copy}** copies the
  row
"""

    @dataclass
    class Pointed(Message):
        """Another row is under the cursor, or its figures changed."""

        table: TrafficTable
        row: TrafficRow | None

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(SortOrder("worker"), id=id)
        self._rows: list[TrafficRow] = []
        self._told: TrafficRow | None = None

    # --- what it shows ------------------------------------------------------

    @property
    def total(self) -> int:
        """Rows there are, the filtered ones too."""
        return len(self._rows)

    def show(self, links: Sequence[Link]) -> None:
        """Show newer figures."""
        rows = rows_of(links)
        if rows != self._rows:
            self._rows = rows
            self.list_rows()
            # A pair needs a column more.
            self.on_resize()

    def set_filter(self, query: str) -> None:
        """Show only what matches."""
        self.query_text = query
        self.list_rows(follow=True)

    # --- what the base asks ---------------------------------------------------

    def columns_at(self, width: int) -> list[TrafficColumn]:
        """The columns that have room, left to right."""
        paired = any(row.figures.wire_bytes_up is not None for row in self._rows)
        return columns_at(width, paired=paired)

    def arranged(self) -> list[TrafficRow]:
        """The rows to list, in order."""
        return arrange_rows(self._rows, self.query_text, self.order)

    def key_of(self, row: TrafficRow) -> str:
        """Worker and command."""
        return row.key

    def cell_of(self, row: TrafficRow, column: TrafficColumn, width: int) -> Text:
        """One cell as it should look, exactly so wide."""
        return cell_text(row, column, width)

    def title_of(self, column: TrafficColumn) -> str:
        """A column's title, with an arrow where it sorts."""
        arrow = "▼" if largest_first(self.order) else "▲"
        sign = arrow if column.key == self.order.column else ""
        return f"{sign}{column.label}" if column.right else f"{column.label}{sign}"

    def tell(self) -> None:
        """Tell which row the cursor is on, and when its figures changed."""
        if self.pointed != self._told:
            self._told = self.pointed
            self.post_message(self.Pointed(self, self._told))
