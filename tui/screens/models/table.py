"""The list of models: their order, their columns, their cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text
from textual.fuzzy import Matcher
from textual.message import Message

from backends.machine_names import LOCAL
from backends.state import ModelCatalogue, ModelFile
from backends.state.models import Removal
from backends.units import format_bytes, format_count
from tui.model.quantities import short_count
from tui.widgets.safe_text import safe_line
from tui.widgets.strips import clip
from tui.widgets.table import SortableTable, SortOrder, TableColumn

THOUSANDS_FROM = 8192
REMOVED_SHOWN = 8
"""Files named in the question before they are deleted."""


def _dash(value: str) -> str:
    return safe_line(value) or "—"


def _name(model: ModelFile) -> str:
    return model.name.lower()


def _layers(model: ModelFile) -> str:
    return f"{model.n_layer}" if model.n_layer else "—"


COLUMNS: tuple[TableColumn[ModelFile], ...] = (
    TableColumn("name", "model", 0, lambda m: safe_line(m.name), _name),
    TableColumn(
        "arch", "arch", 10, lambda m: _dash(m.arch), lambda m: m.arch, from_width=94
    ),
    TableColumn(
        "quant", "quant", 8, lambda m: _dash(m.file_type), lambda m: m.file_type
    ),
    TableColumn("layers", "layers", 7, _layers, lambda m: m.n_layer, True, 64),
    TableColumn(
        "size",
        "size",
        10,
        lambda m: format_bytes(m.size_bytes),
        lambda m: m.size_bytes,
        True,
    ),
    TableColumn(
        "context",
        "context",
        8,
        lambda m: tokens_text(m.n_ctx_train),
        lambda m: m.n_ctx_train,
        True,
        84,
    ),
    TableColumn(
        "source",
        "found in",
        11,
        lambda m: _dash(m.source),
        lambda m: m.source,
        from_width=106,
    ),
    TableColumn(
        "held_by",
        "held by",
        18,
        lambda m: _dash(", ".join(m.held_by)),
        lambda m: -len(m.held_by),
        from_width=124,
    ),
)


def arrange_models(
    models: Iterable[ModelFile], query: str, order: SortOrder
) -> list[ModelFile]:
    """The models a query keeps: the best match first, else in the order wanted.

    Those that cannot be used come last.
    """
    column = next(column for column in COLUMNS if column.key == order.column)
    arranged = sorted(models, key=_name, reverse=order.reverse)
    arranged.sort(key=column.order, reverse=order.reverse)
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
    model: ModelFile, column: TableColumn[ModelFile], width: int, *, current: bool
) -> Text:
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


def tokens_text(n_tokens: int) -> str:
    """``128k``, ``4096``, or a dash."""
    if not n_tokens:
        return "—"
    return short_count(n_tokens, THOUSANDS_FROM)


def looks_like_path(text: str) -> bool:
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
    home = f"{Path.home()}/"
    folders = (
        f"~/{folder.removeprefix(home)}" if folder.startswith(home) else folder
        for folder in catalogue.folders
    )
    return safe_line(f"looked in {', '.join(folders)}")


GET = "To get one from elsewhere: Models ({app.models}), then {models.get}."


def empty_text(catalogue: ModelCatalogue | None, query: str = "") -> str:
    """Why there is nothing in the list, and what to do."""
    if catalogue is None or (catalogue.scanning and not catalogue.models):
        return "Looking for models…"
    if catalogue.models:
        return f"No model matches “{query}”. {{models.unfilter}} shows all.\n\n{GET}"
    folders = (
        "\n".join(f"· {safe_line(folder)}" for folder in catalogue.folders)
        or "· nowhere"
    )
    return (
        f"No GGUF file found. I looked in\n{folders}\n\n"
        "Put one there, add a folder to model_dirs in the configuration,\n"
        "press {models.path} to give a path, or start with  dllm-tui up PATH\n\n" + GET
    )


def removal_text(removal: Removal, held_by: Sequence[str]) -> str:
    """The files that would go, the last few of many by their number, and what stays."""
    shown = removal.files[:REMOVED_SHOWN]
    lines = [f"{format_bytes(f.size_bytes):>9}  {safe_line(f.path)}" for f in shown]
    if more := len(removal.files) - len(shown):
        lines.append(f"{'':9}  and {more} more")
    others = [name for name in held_by if name != removal.machine]
    lines += filter(None, ["", safe_line(removal.kept)])
    if others:
        lines.append(f"Copies on {', '.join(map(safe_line, others))} stay.")
    return "\n".join(lines).rstrip()


class ModelTable(SortableTable[ModelFile]):
    COLUMNS = COLUMNS
    REST_CELLS_MIN = 18

    HELP = """\
## Models

GGUF files found on this machine. `●` marks the model in use; dim ones cannot be used,
and say why.

- **{models.choose}** uses the model: the split is planned anew, nothing is launched yet
- **{models.filter}** filters (letters in order are enough: `q3c` finds *Qwen3-Coder*),
  **{models.unfilter}** clears
- **{models.sort}** sorts by the next column, **{models.reverse}** turns the order
  round; a click on a header too
- **{models.rescan}** looks through the folders again, **{models.path}** takes any path
- **{models.remove}** deletes the model's files, after a question that names them
- **{models.detail_up} {models.detail_down}** scroll the details,
  **{app.copy}** copies the path
"""

    @dataclass
    class Picked(Message):
        model: ModelFile

    @dataclass
    class Pointed(Message):
        """The cursor is on another model; None in an empty list."""

        model: ModelFile | None

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(SortOrder("name"), id=id)
        self.current = ""
        self._models: tuple[ModelFile, ...] = ()

    def show_models(self, models: Sequence[ModelFile]) -> None:
        self._models = tuple(models)
        self.list_rows()

    def set_filter(self, query: str) -> None:
        self.query_text = query
        self.label_columns()
        self.list_rows(keep_cursor=not query, follow=True)

    def set_current(self, path: str) -> None:
        if path != self.current:
            self.current = path
            self.list_rows()

    @property
    def all_rows(self) -> tuple[ModelFile, ...]:
        return self._models

    def arranged(self) -> list[ModelFile]:
        return arrange_models(self._models, self.query_text, self.order)

    def key_of(self, row: ModelFile) -> str:
        return row.path

    def cell_of(
        self, row: ModelFile, column: TableColumn[ModelFile], width: int
    ) -> Text:
        return cell_text(row, column, width, current=row.path == self.current)

    def title_of(self, column: TableColumn[ModelFile]) -> str:
        title = column.label if self.query_text else super().title_of(column)
        return f"  {title}" if column.key == "name" else title

    def first_row(self) -> int:
        paths = [model.path for model in self.shown]
        if self.query_text or self.current not in paths:
            return 0
        return paths.index(self.current)

    def tell(self) -> None:
        self.post_message(self.Pointed(self.pointed))

    def pick(self) -> None:
        if self.pointed is not None:
            self.post_message(self.Picked(self.pointed))
