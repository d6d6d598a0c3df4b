"""By which column a table is sorted."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


class SortOrder(NamedTuple):
    """A column, and whether its usual order is turned round."""

    column: str
    reverse: bool = False

    def next(self, shown: Iterable[str]) -> SortOrder:
        """Sorted by the next of the columns shown."""
        keys = list(shown)
        if not keys:
            return self
        at = keys.index(self.column) if self.column in keys else -1
        return SortOrder(keys[(at + 1) % len(keys)])

    def by(self, column: str) -> SortOrder:
        """Sorted by a column; the same one again turns the order round."""
        return SortOrder(column, column == self.column and not self.reverse)
