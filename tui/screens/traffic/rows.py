"""The commands of all links as rows: which, in what order, in which columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rich.text import Text

from backends.units import format_bytes
from tui.kit.safe_text import safe_line
from tui.kit.strips import clip
from tui.work.quantities import count_cell, us_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from backends.state import Link, LinkCommand
    from tui.kit.sort_order import SortOrder

NAMES = frozenset({"worker", "command"})
"""Columns of names, which begin with A; numbers begin with the largest."""


class TrafficRow(NamedTuple):
    """One command on one link."""

    worker: str
    command: str
    figures: LinkCommand

    @property
    def key(self) -> str:
        """Identifies the row while its figures change."""
        return f"{self.worker}\n{self.command}"


class TrafficColumn(NamedTuple):
    """One column of the table."""

    key: str
    label: str
    width: int
    """0: what the others leave."""
    text: Callable[[TrafficRow], str]
    order: Callable[[TrafficRow], float]
    """By what it sorts; 0 for the columns of names."""
    right: bool = True
    from_width: int = 0
    """Cells the table needs before this column appears."""


COLUMNS = (
    TrafficColumn(
        "worker",
        "worker",
        9,
        lambda row: safe_line(row.worker),
        lambda row: 0,
        right=False,
    ),
    TrafficColumn(
        "command",
        "command",
        0,
        lambda row: safe_line(row.command),
        lambda row: 0,
        right=False,
    ),
    TrafficColumn(
        "count",
        "count",
        7,
        lambda row: count_cell(row.figures.count),
        lambda row: row.figures.count,
    ),
    TrafficColumn(
        "up",
        "up",
        8,
        lambda row: format_bytes(row.figures.bytes_up),
        lambda row: row.figures.bytes_up,
        from_width=74,
    ),
    TrafficColumn(
        "down",
        "down",
        8,
        lambda row: format_bytes(row.figures.bytes_down),
        lambda row: row.figures.bytes_down,
        from_width=76,
    ),
    TrafficColumn(
        "local",
        "local",
        7,
        lambda row: count_cell(row.figures.answered) if row.figures.answered else "·",
        lambda row: row.figures.answered,
        from_width=104,
    ),
    TrafficColumn(
        "p50",
        "p50",
        7,
        lambda row: us_text(row.figures.p50_us),
        lambda row: row.figures.p50_us or 0,
    ),
    TrafficColumn(
        "p99",
        "p99",
        7,
        lambda row: us_text(row.figures.p99_us),
        lambda row: row.figures.p99_us or 0,
    ),
    TrafficColumn(
        "max",
        "max",
        7,
        lambda row: us_text(row.figures.max_us),
        lambda row: row.figures.max_us or 0,
        from_width=94,
    ),
    TrafficColumn(
        "errors",
        "errors",
        7,
        lambda row: count_cell(row.figures.errors) if row.figures.errors else "·",
        lambda row: row.figures.errors,
        from_width=86,
    ),
)


def largest_first(order: SortOrder) -> bool:
    """Z before A, 9 before 1: numbers begin with the largest."""
    return (order.column not in NAMES) != order.reverse


def columns_at(width: int) -> list[TrafficColumn]:
    """The columns that have room."""
    return [column for column in COLUMNS if column.from_width <= width]


def rows_of(links: Iterable[Link]) -> list[TrafficRow]:
    """Every command that was used, link by link."""
    return [
        TrafficRow(link.worker, name, link.commands[name])
        for link in links
        for name in sorted(link.commands)
    ]


def arrange_rows(
    rows: Sequence[TrafficRow], query: str, order: SortOrder
) -> list[TrafficRow]:
    """The rows that have every word of a query, in the order wanted."""
    words = query.lower().split()
    kept = [row for row in rows if all(word in _haystack(row) for word in words)]
    column = next(column for column in COLUMNS if column.key == order.column)
    if column.key == "worker":
        return _by_worker(kept, reverse=order.reverse)
    if column.key == "command":
        return sorted(kept, key=lambda row: row.command, reverse=order.reverse)
    return sorted(kept, key=column.order, reverse=largest_first(order))


def _by_worker(rows: list[TrafficRow], *, reverse: bool) -> list[TrafficRow]:
    """In the order of the links."""
    names = list(dict.fromkeys(row.worker for row in rows))
    return sorted(rows, key=lambda row: names.index(row.worker), reverse=reverse)


def _haystack(row: TrafficRow) -> str:
    return f"{row.worker} {row.command}".lower()


def cell_text(row: TrafficRow, column: TrafficColumn, width: int) -> Text:
    """One cell, exactly as wide as its column; errors are loud, unused rows dim."""
    text = column.text(row)
    fitted = text.rjust(width) if column.right else clip(text, width)
    style = "dim" if not row.figures.count else ""
    if column.key == "errors" and row.figures.errors:
        style = "bold reverse"
    return Text(fitted, style=style, no_wrap=True)


def row_text(row: TrafficRow) -> str:
    """A row as one line to copy."""
    cells = [f"{column.label} {column.text(row)}" for column in COLUMNS[2:]]
    return f"{row.worker} {row.command}: " + ", ".join(cells)
