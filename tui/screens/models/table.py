"""The list of models: their order, their columns, their cells."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from rich.text import Text
from textual.fuzzy import Matcher
from textual.message import Message

from backends.places import LOCAL
from backends.state import ModelFile
from backends.units import format_bytes, format_count
from tui.model.quantities import short_count
from tui.widgets.safe_text import safe_line
from tui.widgets.strips import clip
from tui.widgets.table import SortableTable, SortOrder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from backends.state import ModelCatalogue


THOUSANDS_FROM = 8192


class ModelColumn(NamedTuple):
    """One column of the list."""

    key: str
    label: str
    width: int
    """0: what the others leave."""
    text: Callable[[ModelFile], str]
    order: Callable[[ModelFile], tuple[object, ...]]
    right: bool = False
    """Numbers stand at the right."""
    from_width: int = 0
    """Cells the list needs before this column appears."""


def _dash(value: str) -> str:
    return safe_line(value) or "—"


COLUMNS = (
    ModelColumn(
        "name",
        "model",
        0,
        lambda model: safe_line(model.name),
        lambda model: (model.name.lower(),),
    ),
    ModelColumn(
        "arch",
        "arch",
        10,
        lambda model: _dash(model.arch),
        lambda model: (model.arch, model.name.lower()),
        from_width=94,
    ),
    ModelColumn(
        "quant",
        "quant",
        8,
        lambda model: _dash(model.file_type),
        lambda model: (model.file_type, model.name.lower()),
    ),
    ModelColumn(
        "layers",
        "layers",
        7,
        lambda model: f"{model.n_layer}" if model.n_layer else "—",
        lambda model: (model.n_layer, model.name.lower()),
        right=True,
        from_width=64,
    ),
    ModelColumn(
        "size",
        "size",
        10,
        lambda model: format_bytes(model.size_bytes),
        lambda model: (model.size_bytes,),
        right=True,
    ),
    ModelColumn(
        "context",
        "context",
        8,
        lambda model: context_text(model.n_ctx_train),
        lambda model: (model.n_ctx_train, model.name.lower()),
        right=True,
        from_width=84,
    ),
    ModelColumn(
        "source",
        "found in",
        11,
        lambda model: _dash(model.source),
        lambda model: (model.source, model.name.lower()),
        from_width=106,
    ),
    ModelColumn(
        "held_by",
        "held by",
        18,
        lambda model: _dash(", ".join(model.held_by)),
        lambda model: (-len(model.held_by), model.name.lower()),
        from_width=124,
    ),
)


def columns_at(width: int) -> list[ModelColumn]:
    """The columns that have room."""
    return [column for column in COLUMNS if column.from_width <= width]


def arrange_models(
    models: Iterable[ModelFile], query: str, order: SortOrder
) -> list[ModelFile]:
    """The models a query keeps: the best match first, else in the order wanted.

    Those that cannot be used come last.
    """
    column = next(column for column in COLUMNS if column.key == order.column)
    arranged = sorted(models, key=column.order, reverse=order.reverse)
    arranged.sort(key=lambda model: bool(model.problem))
    if not query.strip():
        return arranged
    matcher = Matcher(query.strip())
    scored = [(matcher.match(_haystack(model)), model) for model in arranged]
    kept = [pair for pair in scored if pair[0] > 0]
    return [model for _, model in sorted(kept, key=lambda pair: -pair[0])]


def _haystack(model: ModelFile) -> str:
    return f"{model.name} {model.arch} {model.file_type} {model.source}"


def cell_text(
    model: ModelFile, column: ModelColumn, width: int, *, current: bool
) -> Text:
    """One cell, exactly as wide as its column, dim for a model that cannot be used."""
    text = column.text(model)
    if column.key == "name":
        text = ("● " if current else "  ") + _name_and_problem(model)
    fitted = clip(text, width)
    if column.right:
        fitted = fitted.strip().rjust(width)
    style = "dim" if model.problem else "bold" if current else ""
    return Text(fitted, style=style, no_wrap=True)


def _name_and_problem(model: ModelFile) -> str:
    name = safe_line(f"{model.name} · {model.sparse}" if model.sparse else model.name)
    if model.problem:
        return f"{name} · {safe_line(model.problem)}"
    elsewhere = model.held_by and LOCAL not in model.held_by
    return f"{name} · on {', '.join(model.held_by)}" if elsewhere else name


def context_text(n_tokens: int) -> str:
    """``128k``, ``4096``, or a dash."""
    if not n_tokens:
        return "—"
    return short_count(n_tokens, THOUSANDS_FROM)


def looks_like_path(text: str) -> bool:
    """A path rather than words to look for."""
    text = text.strip()
    return text.startswith(("/", "~", "./", "../")) or text.endswith(".gguf")


def summary_text(catalogue: ModelCatalogue, shown: int) -> str:
    """``12 models · 84 GiB``, or that the search goes on."""
    total = sum(model.size_bytes for model in catalogue.models)
    counted = format_count(len(catalogue.models), "model")
    if shown != len(catalogue.models):
        counted = f"{shown} of {counted}"
    parts = [counted]
    if catalogue.models:
        parts.append(format_bytes(total))
    if catalogue.scanning:
        parts.append("scanning…")
    return " · ".join(parts)


def folders_text(catalogue: ModelCatalogue) -> str:
    """The folders that a search reads, in one sentence."""
    home = f"{Path.home()}/"
    folders = (
        f"~/{folder.removeprefix(home)}" if folder.startswith(home) else folder
        for folder in catalogue.folders
    )
    return safe_line(f"looked in {', '.join(folders)}")


def empty_text(catalogue: ModelCatalogue | None, query: str = "") -> str:
    """Why there is nothing in the list, and what to do."""
    if catalogue is None or (catalogue.scanning and not catalogue.models):
        return "Looking for models…"
    if catalogue.models:
        return f"No model matches “{query}”. {{models.unfilter}} shows all."
    folders = (
        "\n".join(f"· {safe_line(folder)}" for folder in catalogue.folders)
        or "· nowhere"
    )
    return (
        f"No GGUF file found. I looked in\n{folders}\n\n"
        "Put one there, add a folder to model_dirs in the configuration,\n"
        "press {models.path} to give a path, or start with  dllm-tui up PATH"
    )


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
