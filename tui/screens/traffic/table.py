"""The table of commands, worker by worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.text import Text
from textual.message import Message

from backends.state import Link, LinkCommand
from backends.units import format_bytes
from tui.model.finding import has_words
from tui.model.quantities import UNKNOWN, count_cell, ratio_text, us_text
from tui.widgets.safe_text import safe_line
from tui.widgets.strips import clip
from tui.widgets.table import SortableTable, SortOrder, TableColumn

RATIO_CELLS = 5
NAMES = frozenset({"worker", "command"})
"""Columns of names, which begin with A; numbers begin with the largest."""
OWN = "(link itself)"
"""In place of a command: frames, pings, lists and TLS of a pair."""


class TrafficRow(NamedTuple):
    worker: str
    command: str
    figures: LinkCommand

    @property
    def key(self) -> str:
        return f"{self.worker}\n{self.command}"


def _crossed(figures: LinkCommand) -> int | None:
    up, down = figures.wire_bytes_up, figures.wire_bytes_down
    return None if up is None or down is None else up + down


def _crossed_text(figures: LinkCommand) -> str:
    crossed = _crossed(figures)
    if crossed is None:
        return UNKNOWN
    said = figures.bytes_up + figures.bytes_down
    return f"{format_bytes(crossed)}{ratio_text(crossed, said):>{RATIO_CELLS}}"


def _or_dot(count: int) -> str:
    return count_cell(count) if count else "·"


def _is_paired(row: TrafficRow) -> bool:
    return row.figures.wire_bytes_up is not None


def _figure(
    key: str,
    width: int,
    text: Callable[[LinkCommand], str],
    order: Callable[[LinkCommand], float],
    from_width: int = 0,
    needs: Callable[[TrafficRow], bool] = lambda row: True,
) -> TableColumn[TrafficRow]:
    return TableColumn(
        key,
        key,
        width,
        lambda row: text(row.figures),
        lambda row: order(row.figures),
        True,
        from_width,
        needs,
    )


COLUMNS: tuple[TableColumn[TrafficRow], ...] = (
    TableColumn("worker", "worker", 9, lambda row: safe_line(row.worker)),
    TableColumn("command", "command", 0, lambda row: safe_line(row.command)),
    _figure("count", 7, lambda f: count_cell(f.count), lambda f: f.count),
    _figure("up", 8, lambda f: format_bytes(f.bytes_up), lambda f: f.bytes_up, 74),
    _figure(
        "down", 8, lambda f: format_bytes(f.bytes_down), lambda f: f.bytes_down, 76
    ),
    _figure("crossed", 12, _crossed_text, lambda f: _crossed(f) or 0, 117, _is_paired),
    _figure("local", 7, lambda f: _or_dot(f.answered), lambda f: f.answered, 104),
    _figure("p50", 7, lambda f: us_text(f.p50_us), lambda f: f.p50_us or 0),
    _figure("p99", 7, lambda f: us_text(f.p99_us), lambda f: f.p99_us or 0),
    _figure("max", 7, lambda f: us_text(f.max_us), lambda f: f.max_us or 0, 94),
    _figure("errors", 7, lambda f: _or_dot(f.errors), lambda f: f.errors, 86),
)


def largest_first(order: SortOrder) -> bool:
    """Z before A, 9 before 1: numbers begin with the largest."""
    return (order.column not in NAMES) != order.reverse


def rows_of(links: Iterable[Link]) -> list[TrafficRow]:
    """Every command that was used, and what is the link's own, link by link."""
    return [
        TrafficRow(link.worker, name, figures)
        for link in links
        for name, figures in (*sorted(link.commands.items()), *_own(link))
    ]


def _own(link: Link) -> Iterator[tuple[str, LinkCommand]]:
    up, down = link.overhead_bytes_up, link.overhead_bytes_down
    if up is not None:
        yield OWN, LinkCommand(wire_bytes_up=up, wire_bytes_down=down)


def arrange_rows(
    rows: Sequence[TrafficRow], query: str, order: SortOrder
) -> list[TrafficRow]:
    kept = [row for row in rows if has_words(f"{row.worker} {row.command}", query)]
    column = next(column for column in COLUMNS if column.key == order.column)
    if column.key == "worker":
        names = list(dict.fromkeys(row.worker for row in kept))
        return sorted(kept, key=lambda r: names.index(r.worker), reverse=order.reverse)
    if column.key == "command":
        return sorted(kept, key=lambda row: row.command, reverse=order.reverse)
    return sorted(kept, key=column.order, reverse=largest_first(order))


def figure_text(row: TrafficRow, column: TableColumn[TrafficRow], width: int) -> Text:
    text = column.text(row)
    fitted = text.rjust(width) if column.right else clip(text, width)
    style = "dim" if not row.figures.count else ""
    if column.key == "errors" and row.figures.errors:
        style = "bold reverse"
    return Text(fitted, style=style, no_wrap=True)


def row_text(row: TrafficRow) -> str:
    cells = [f"{column.label} {column.text(row)}" for column in COLUMNS[2:]]
    return f"{row.worker} {row.command}: " + ", ".join(cells)


class TrafficTable(SortableTable[TrafficRow]):
    COLUMNS = COLUMNS

    HELP = """\
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

        row: TrafficRow | None

    def __init__(self) -> None:
        super().__init__(SortOrder("worker"))
        self._rows: list[TrafficRow] = []
        self._told: TrafficRow | None = None

    def show(self, links: Sequence[Link]) -> None:
        rows = rows_of(links)
        if rows != self._rows:
            self._rows = rows
            self.list_rows()
            # A pair needs a column more.
            self.on_resize()

    @property
    def all_rows(self) -> list[TrafficRow]:
        return self._rows

    def arranged(self) -> list[TrafficRow]:
        return arrange_rows(self._rows, self.query_text, self.order)

    def key_of(self, row: TrafficRow) -> str:
        return row.key

    def cell_of(
        self, row: TrafficRow, column: TableColumn[TrafficRow], width: int
    ) -> Text:
        return figure_text(row, column, width)

    def falls(self, order: SortOrder) -> bool:
        return largest_first(order)

    def tell(self) -> None:
        if self.pointed != self._told:
            self._told = self.pointed
            self.post_message(self.Pointed(self._told))
