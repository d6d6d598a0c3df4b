"""Models: the files found, what is in the one under the cursor, and what to get."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import aclosing

from msgspec.structs import replace
from textual import on, work
from textual.app import ComposeResult
from textual.containers import Container, Vertical, VerticalScroll
from textual.content import Content
from textual.strip import Strip
from textual.widgets import Static
from textual.worker import Worker

from backends.errors import DllmError
from backends.machine_names import LOCAL, at_peer
from backends.state import ClusterSnapshot, ModelCatalogue, ModelFile, ModelInfo
from backends.state.models import Download, RemoteModel
from backends.units import Transfer, format_bytes, format_count
from tui.actions import bindings
from tui.api.services import ClusterService
from tui.app.console import console_of
from tui.app.frame import ConsoleScreen
from tui.app.messages import Copyable, Raw
from tui.dialogs.dialog import confirm
from tui.dialogs.pick import PickDialog
from tui.model.finding import has_words
from tui.model.plan_words import (
    context_text,
    fits_text,
    quant_speed_text,
    split_text,
    why_text,
)
from tui.screens.models.search import POLL_S, PathBar, check_path, watch_catalogue
from tui.screens.models.table import ModelTable, empty_text, removal_text, summary_text
from tui.widgets.inputs import FilterBar
from tui.widgets.keys import with_keys
from tui.widgets.panes import LIST_AND_DETAIL, PaneRow
from tui.widgets.row_list import RowList
from tui.widgets.safe_text import safe_line
from tui.widgets.size_bars import (
    BAR_CELLS,
    fact,
    group_bytes,
    quant_bytes,
    size_bars,
)
from tui.widgets.sources import predicted
from tui.widgets.strips import clip, fitting, line
from tui.widgets.table import FilteredTable

NAME_CELLS = 20
SIZE_CELLS = 9
FITS_CELLS = 4
CONTEXT_CELLS = 8


class QuantRows(RowList):
    MOST = 16

    def row(self, row: RemoteModel, here: bool, width: int) -> Strip:
        palette = self.palette
        fits = fits_text(row)
        style = palette.dim if fits in ("no", "?") else palette.text
        where = split_text(row.fit) or why_text(row)
        speeds = (quant_speed_text(row, short=short) for short in (False, True))
        rests = ["  ".join(filter(None, (speed, where))) for speed in speeds]
        room = width - NAME_CELLS - SIZE_CELLS - FITS_CELLS - CONTEXT_CELLS - 6
        return line(
            [
                ("▸ " if here else "  ", palette.key),
                (clip(row.quant, NAME_CELLS), palette.strong if here else palette.text),
                (format_bytes(row.size_bytes).rjust(SIZE_CELLS), palette.text),
                (f"  {fits:{FITS_CELLS}}", style),
                (f"{context_text(row):>{CONTEXT_CELLS}}  ", style),
                (fitting(rests, room) or rests[-1], palette.dim),
            ],
            width,
        )


class QuantsDialog(PickDialog[str | None]):
    """Dismisses with the source of the model to get."""

    HELP = """\
## Models of a repository

Each with its size, whether it fits on this machine and the peers that are ready, the
longest context it has there, its predicted speed, and the layers of each device.
`~yes` is predicted; `yes` is llama.cpp's own answer to the header, which is all that
was read. Only the model you choose is downloaded.
"""
    BINDINGS = bindings("finder")
    TITLE = "Models of a repository"
    PLACEHOLDER = "part of a name"
    HINTS = (("finder.choose", "downloads"), ("finder.cancel", "closes"))

    def __init__(self, cluster: ClusterService, source: str) -> None:
        super().__init__(QuantRows())
        self._cluster = cluster
        self._source = source
        self._found: dict[str, RemoteModel] = {}

    def on_mount(self) -> None:
        super().on_mount()
        self.remark.display = True
        self.remark.update(f"Asking for {self._source}…")
        self._ask()

    @work(exclusive=True, exit_on_error=False)
    async def _ask(self) -> None:
        try:
            async with aclosing(self._cluster.remote_models(self._source)) as told:
                async for one in told:
                    self._found[one.source] = one
                    self.search()
        except DllmError as error:
            self.remark.update(str(error))
            return
        self._found = {
            name: one if one.fit else replace(one, problem=one.problem or "not known")
            for name, one in self._found.items()
        }
        self.search()

    def search(self) -> None:
        chosen = self.rows.chosen
        query = self.input.value
        shown = [one for one in self._found.values() if has_words(one.source, query)]
        self.rows.rows = tuple(shown)
        sources = [one.source for one in shown]
        if chosen is not None and chosen.source in sources:
            self.rows.selected = sources.index(chosen.source)
        if self._found:
            known = sum(bool(one.fit or one.problem) for one in self._found.values())
            left = len(self._found) - known
            text = format_count(len(self._found), "model")
            reading = f", reading the headers of {left}" if left else ""
            self.remark.update(f"{text}{reading}")

    def result_of(self, row: RemoteModel) -> str:
        return row.source


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
            facts.insert(-1, fact("held by", ", ".join(held_by)))
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
    yield fact("size", _size_text(info))
    if info.n_ctx_train:
        yield fact("context", format_count(info.n_ctx_train, "token"))
    if kv_bytes := sum(layer.kv_bytes_per_token for layer in info.layers):
        yield fact("KV cache", f"{predicted(format_bytes(kv_bytes))} a token (f16)")
    if info.n_expert:
        yield fact("experts", f"{info.n_expert}, {info.n_expert_used} used at a time")
    if not info.has_chat_template:
        yield fact("template", "none: chats are written in ChatML")
    if info.unknown_types:
        yield fact("unknown", ", ".join(info.unknown_types))


def _size_text(info: ModelInfo) -> str:
    size = format_bytes(info.size_bytes)
    return f"{size} in {len(info.files)} files" if len(info.files) > 1 else size


def _group_lines(info: ModelInfo) -> list[Content]:
    outside = {"output": info.output_bytes, "embedding": info.embedding_bytes}
    return size_bars(group_bytes(info.layers) | outside)


def _quant_lines(info: ModelInfo) -> list[Content]:
    lines = [
        fact(name, f"{format_bytes(size):>{BAR_CELLS + 10}}")
        for name, size in quant_bytes(info.layers).most_common()
    ]
    return (
        [Content(""), Content.styled("layers by type", "$dim"), *lines] if lines else []
    )


def _title(name: str) -> Content:
    return Content.styled(safe_line(name), "bold")


def _path(path: str) -> Content:
    return Content.styled(safe_line(path), "$dim")


def _join(lines: Iterable[Content]) -> Content:
    return Content("\n").join(lines)


REST_S = 0.1
"""A cursor that rests this long gets its model's header read."""


class ModelsScreen(FilteredTable, ConsoleScreen):
    """A list of models, and the one under the cursor in detail."""

    table: ModelTable
    AUTO_FOCUS = "ModelTable"

    HELP = ModelTable.HELP

    BINDINGS = bindings("models")
    LAYOUTS = LIST_AND_DETAIL

    DEFAULT_CSS = """
    ModelsScreen {
        & #models-body { height: 1fr; layout: horizontal; }
        & #models-list { width: 1fr; height: 1fr; }
        & #models-detail { width: 42; height: 1fr; }
        & #models-empty { display: none; height: 1fr; padding: 1 2; color: $dim; }
        & .-empty ModelTable { display: none; }
        & .-empty #models-empty { display: block; }
        &.-narrow #models-body { layout: vertical; }
        &.-narrow #models-detail { width: 1fr; height: 40%; layout: horizontal; }
        &.-narrow .detail-bytes { width: 34; margin: 0 0 0 2; }
        &.-narrow.-short #models-detail { display: none; }
        &.-wide #models-detail { width: 50; }
        &.-as-below #models-body { layout: vertical; }
        &.-as-below #models-detail { width: 1fr; height: 40%; layout: horizontal; }
        &.-as-below .detail-bytes { width: 34; margin: 0 0 0 2; }
        &.-as-list #models-detail { display: none; }
    }
    """

    def __init__(self, cluster: ClusterService, *, poll_s: float = POLL_S) -> None:
        super().__init__()
        self._cluster = cluster
        self._poll_s = poll_s
        self._catalogue: ModelCatalogue | None = None
        self._infos: dict[tuple[str, int, str], ModelInfo] = {}
        self.table = ModelTable(id="models-table")
        self._empty = Static(empty_text(None), id="models-empty", markup=False)
        self.filter_bar = FilterBar("part of a name", id="models-filter")
        self._path_bar = PathBar(cluster, id="models-path")
        self._get_bar = FilterBar(
            "owner/name:Q4_K_M, a URL or pypi:name", sign="get", id="models-get"
        )
        self._getting: Worker[None] | None = None
        self._list = Container(id="models-list", classes="pane -empty")
        self._detail = ModelDetail(id="models-detail", classes="pane")

    def compose_body(self) -> ComposeResult:
        self._list.border_title = "Models"
        self._detail.border_title = "Detail"
        with PaneRow(least=(40, 30), id="models-body"):
            with self._list, Vertical():
                yield self.table
                yield self._empty
                yield self.filter_bar
                yield self._path_bar
                yield self._get_bar
            yield self._detail

    def show_snapshot(self, snapshot: ClusterSnapshot) -> None:
        super().show_snapshot(snapshot)
        self.table.set_current(snapshot.plan.model if snapshot.plan else "")

    def on_screen_resume(self) -> None:
        self._search()

    def on_screen_suspend(self) -> None:
        self.workers.cancel_group(self, "models")

    @work(group="models", exclusive=True, exit_on_error=False)
    async def _search(self) -> None:
        try:
            async for catalogue in watch_catalogue(self._cluster, poll_s=self._poll_s):
                self._show_catalogue(catalogue)
        except DllmError as error:
            console_of(self).report(error.failure())

    def _show_catalogue(self, catalogue: ModelCatalogue) -> None:
        self._catalogue = catalogue
        self.table.show_models(catalogue.models)
        self.summarise()

    def summarise(self) -> None:
        shown = len(self.table.shown)
        query = self.table.query_text
        self._empty.update(with_keys(self.app, empty_text(self._catalogue, query)))
        self._list.set_class(not shown, "-empty")
        if self._catalogue is not None:
            self._list.border_subtitle = summary_text(self._catalogue, shown)
        self.filter_bar.note = f"{shown} found" if query else ""

    @on(ModelTable.Pointed)
    def _pointed(self, event: ModelTable.Pointed) -> None:
        event.stop()
        self._show_detail(event.model)

    @work(group="model-detail", exclusive=True, exit_on_error=False)
    async def _show_detail(self, model: ModelFile | None) -> None:
        if model is None:
            self._detail.clear()
            return
        key = (model.path, model.size_bytes, model.identity)
        if key not in self._infos:
            self._detail.show_file(model)
            if model.problem or not await self._inspect(model):
                return
        self._detail.show_info(self._infos[key], model.held_by)

    async def _inspect(self, model: ModelFile) -> bool:
        await asyncio.sleep(REST_S)
        try:
            info = await self._cluster.inspect(model.path)
        except DllmError as error:
            self._detail.show_file(model, str(error))
            return False
        self._infos[model.path, model.size_bytes, model.identity] = info
        return True

    def action_choose(self) -> None:
        self.table.pick()

    @on(ModelTable.Picked)
    def _picked(self, event: ModelTable.Picked) -> None:
        event.stop()
        model = event.model
        if model.problem:
            refusal = f"{model.name} cannot be used: {model.problem}."
            console_of(self).tell(refusal, "warning")
        else:
            console_of(self).use_model(model.path)

    def action_rescan(self) -> None:
        self._list.border_subtitle = "scanning…"
        self._search()

    def action_scroll_detail(self, rows: int) -> None:
        self._detail.scroll_relative(y=rows, animate=False)

    def action_open_path(self) -> None:
        self._path_bar.open()

    @on(FilterBar.Changed, "#models-path")
    def _path_changed(self, event: FilterBar.Changed) -> None:
        event.stop()
        self._path_bar.forget()

    @on(FilterBar.Left, "#models-path")
    def _path_left(self, event: FilterBar.Left) -> None:
        event.stop()
        if event.submitted and self._path_bar.text.strip():
            self._use_path(self._path_bar.text)
        else:
            self.table.focus()

    @work(group="model-path", exclusive=True, exit_on_error=False)
    async def _use_path(self, text: str) -> None:
        try:
            path = await check_path(self._cluster, text)
        except DllmError as error:
            self._path_bar.refuse(str(error))
            return
        self._path_bar.action_clear()
        console_of(self).use_model(path)

    # --- deleting a model ---------------------------------------------------------

    def action_remove(self) -> None:
        if self.table.pointed is not None:
            console_of(self).open(self._remove(self.table.pointed), group="remove")

    async def _remove(self, model: ModelFile) -> None:
        machine, path = at_peer(model.path) or (LOCAL, model.path)
        planned = await self._cluster.removal(path, machine=machine)
        text = removal_text(planned, model.held_by)
        dialog = confirm("Delete?", text, "Delete it", "y")
        if await console_of(self).push_screen_wait(dialog) == "yes":
            gone = await self._cluster.remove_model(path, machine=machine)
            size = format_bytes(gone.size_bytes)
            console_of(self).tell(f"Deleted {model.name} ({size}).")
            self.action_rescan()

    # --- getting a model ----------------------------------------------------------

    def action_get(self) -> None:
        if self._getting is None:
            self._get_bar.open()
        else:
            console_of(self).tell("A model is being downloaded already.", "warning")

    def action_cancel_get(self) -> None:
        if self._getting is not None:
            self._getting.cancel()
            console_of(self).tell("Cancelled; getting it again resumes.")

    @on(FilterBar.Changed, "#models-get")
    def _source_changed(self, event: FilterBar.Changed) -> None:
        event.stop()
        self._get_bar.wrong = False
        self._get_bar.note = ""

    @on(FilterBar.Left, "#models-get")
    def _source_left(self, event: FilterBar.Left) -> None:
        event.stop()
        self.table.focus()
        source = self._get_bar.text.strip()
        if event.submitted and source and self._getting is None:
            if ":" in source or "/" not in source:
                self._getting = self._get(source)
            else:
                self._choose_quant(source)

    def _choose_quant(self, repository: str) -> None:
        def chosen(source: str | None) -> None:
            if source is None:
                self._get_bar.action_clear()
            elif self._getting is None:
                self._getting = self._get(source)

        self.app.push_screen(QuantsDialog(self._cluster, repository), chosen)

    @work(group="models-get", exit_on_error=False)
    async def _get(self, source: str) -> None:
        bar = self._get_bar
        try:
            got = await self._got(source)
        except DllmError as error:
            bar.open()
            bar.wrong = True
            bar.note = str(error)
        except asyncio.CancelledError:
            bar.action_clear()
            raise
        else:
            bar.action_clear()
            name = got.path.rpartition("/")[2]
            console_of(self).tell(f"Got {name} ({got.verified_by}).")
            self.action_rescan()
        finally:
            self._getting = None

    async def _got(self, source: str) -> Download:
        now, transfer = None, Transfer()
        keys = with_keys(self.app, "{models.cancel:short} cancels")
        async with aclosing(self._cluster.get_model(source)) as progress:
            async for now in progress:
                text = f"{now.file}…"
                if now.size_bytes:
                    text = transfer.text(now.done_bytes, now.size_bytes)
                self._get_bar.note = f"{keys} · {text}"
        if now is None or not now.path:
            raise DllmError(f"The download of {source} ended early", "Get it again.")
        return now

    def raw(self) -> Raw | None:
        model = self.table.pointed
        return Raw("the model file", model) if model else super().raw()

    @property
    def subject(self) -> str:
        model = self.table.pointed
        return model.name if model else ""

    def copyable(self) -> Copyable | None:
        model = self.table.pointed
        return Copyable(what="the path", text=model.path) if model else None
