"""The list of models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual.message import Message

from backends.state import ModelFile
from tui.screens.models.rows import ModelColumn, arrange_models, cell_text, columns_at
from tui.widgets.sort_order import SortOrder
from tui.widgets.sortable_table import SortableTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.text import Text


class ModelTable(SortableTable[ModelFile, ModelColumn]):
    """One row per model file, its key the path."""

    REST_CELLS_MIN = 18

    HELP: ClassVar[str | None] = """\
## Models

GGUF files found on this machine. `●` marks the model in use; dim ones cannot be used,
and say why.

- **{models.choose}** uses the model: the split is planned anew, nothing is launched yet
- **{models.filter}** filters (letters in order are enough: `q3c` finds *Qwen3-Coder*),
  **{models.unfilter}** clears
- **{models.sort}** sorts by the next column, **{models.reverse}** turns the order
  round; a click on a header too
- **{models.rescan}** looks through the folders again, **{models.path}** takes any path
- **{models.detail_up} {models.detail_down}** scroll the details,
  **{app.copy}** copies the path
"""

    @dataclass
    class Picked(Message):
        """The user wants this model."""

        table: ModelTable
        model: ModelFile

    @dataclass
    class Pointed(Message):
        """The cursor is on another model; None in an empty list."""

        table: ModelTable
        model: ModelFile | None

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(SortOrder("name"), id=id)
        self.current = ""
        """Path of the model in use."""
        self._models: tuple[ModelFile, ...] = ()

    # --- what it shows ------------------------------------------------------

    def show_models(self, models: Sequence[ModelFile]) -> None:
        """List these models instead."""
        self._models = tuple(models)
        self.list_rows()

    def set_filter(self, query: str) -> None:
        """List what matches; the best match gets the cursor."""
        self.query_text = query
        self.label_columns()
        self.list_rows(keep_cursor=not query, follow=True)

    def set_current(self, path: str) -> None:
        """Mark another model as the one in use."""
        if path != self.current:
            self.current = path
            self.list_rows()

    # --- what the base asks ---------------------------------------------------

    def columns_at(self, width: int) -> list[ModelColumn]:
        """The columns that have room, left to right."""
        return columns_at(width)

    def arranged(self) -> list[ModelFile]:
        """The models to list, in order."""
        return arrange_models(self._models, self.query_text, self.order)

    def key_of(self, row: ModelFile) -> str:
        """The path."""
        return row.path

    def cell_of(self, row: ModelFile, column: ModelColumn, width: int) -> Text:
        """One cell as it should look, exactly so wide."""
        return cell_text(row, column, width, current=row.path == self.current)

    def title_of(self, column: ModelColumn) -> str:
        """A column's title, with an arrow where it sorts; matches sort themselves."""
        arrow = "▼" if self.order.reverse else "▲"
        sorts = column.key == self.order.column and not self.query_text
        sign = arrow if sorts else ""
        if column.right:
            return f"{sign}{column.label}"
        indent = "  " if column.key == "name" else ""
        return f"{indent}{column.label}{sign}"

    def first_row(self) -> int:
        """On the model in use, else at the top."""
        paths = [model.path for model in self.shown]
        if self.query_text or self.current not in paths:
            return 0
        return paths.index(self.current)

    def tell(self) -> None:
        """Tell which model the cursor is on."""
        self.post_message(self.Pointed(self, self.pointed))

    def pick(self) -> None:
        """Choose the model under the cursor."""
        if self.pointed is not None:
            self.post_message(self.Picked(self, self.pointed))
