"""The list of models as text: which, in what order, in which columns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.text import Text
from textual.fuzzy import Matcher

from backends.places import LOCAL
from backends.units import format_bytes, format_count
from tui.model.quantities import short_count
from tui.widgets.safe_text import safe_line
from tui.widgets.strips import clip

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from backends.state import ModelCatalogue, ModelFile
    from tui.widgets.sort_order import SortOrder


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
