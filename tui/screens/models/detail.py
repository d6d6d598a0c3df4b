"""The details of one model: its layers, and the bytes of each part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from backends.state import ModelFile, ModelInfo
from backends.units import format_bytes, format_count
from tui.widgets.safe_text import safe_line
from tui.widgets.size_bars import (
    BAR_CELLS,
    LABEL_CELLS,
    group_bytes,
    quant_bytes,
    size_bars,
)
from tui.widgets.sources import predicted


class ModelDetail(VerticalScroll, can_focus=False):
    DEFAULT_CSS = """
    ModelDetail {
        height: 1fr;
        padding: 0 1;
        scrollbar-size: 1 1;
        & > Static { width: 1fr; height: auto; margin: 0 0 1 0; }
    }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, classes=classes)
        self._facts = Static(markup=False)
        self._bytes = Static(classes="detail-bytes", markup=False)

    def compose(self) -> ComposeResult:
        yield self._facts
        yield self._bytes

    def clear(self) -> None:
        self._show([], [])

    def show_file(self, model: ModelFile, refusal: str = "") -> None:
        note = refusal or model.problem or "reading the header…"
        tone = "$bad" if refusal else "$warn" if model.problem else "$dim"
        said = Content.styled(safe_line(note), tone)
        self._show([_title(model.name), said, _path(model.path)], [])

    def show_info(self, info: ModelInfo, held_by: Sequence[str] = ()) -> None:
        facts = fact_lines(info)
        if any(name != "local" for name in held_by):
            facts.insert(-1, _fact("held by", ", ".join(held_by)))
        self._show(facts, [*_group_lines(info), *_quant_lines(info)])

    def _show(self, facts: list[Content], sizes: list[Content]) -> None:
        self._facts.update(_join(facts))
        self._bytes.update(_join(sizes))
        self._bytes.display = bool(sizes)


def fact_lines(info: ModelInfo) -> list[Content]:
    return [
        _title(info.name or info.path.rpartition("/")[2]),
        Content(f"{safe_line(info.arch)} · {info.n_layer} layers + output"),
        *_facts(info),
        *([Content.styled(safe_line(info.caveat), "$warn")] if info.caveat else []),
        _path(info.path),
    ]


def _facts(info: ModelInfo) -> Iterable[Content]:
    yield _fact("size", _size_text(info))
    if info.n_ctx_train:
        yield _fact("context", format_count(info.n_ctx_train, "token"))
    if kv_bytes := sum(layer.kv_bytes_per_token for layer in info.layers):
        yield _fact("KV cache", f"{predicted(format_bytes(kv_bytes))} a token (f16)")
    if info.n_expert:
        yield _fact("experts", f"{info.n_expert}, {info.n_expert_used} used at a time")
    if not info.has_chat_template:
        yield _fact("template", "none: chat may read oddly")
    if info.unknown_types:
        yield _fact("unknown", ", ".join(info.unknown_types))


def _size_text(info: ModelInfo) -> str:
    size = format_bytes(info.size_bytes)
    return f"{size} in {len(info.files)} files" if len(info.files) > 1 else size


def _group_lines(info: ModelInfo) -> list[Content]:
    outside = {"output": info.output_bytes, "embedding": info.embedding_bytes}
    return size_bars(group_bytes(info.layers) | outside)


def _quant_lines(info: ModelInfo) -> list[Content]:
    lines = [
        _fact(name, f"{format_bytes(size):>{BAR_CELLS + 10}}")
        for name, size in quant_bytes(info.layers).most_common()
    ]
    return (
        [Content(""), Content.styled("layers by type", "$dim"), *lines] if lines else []
    )


def _title(name: str) -> Content:
    return Content.styled(safe_line(name), "bold")


def _fact(label: str, value: str) -> Content:
    return Content.assemble((f"{label:<{LABEL_CELLS}}", "$dim"), safe_line(value))


def _path(path: str) -> Content:
    return Content.styled(safe_line(path), "$dim")


def _join(lines: Iterable[Content]) -> Content:
    return Content("\n").join(lines)
