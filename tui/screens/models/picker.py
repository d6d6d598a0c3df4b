"""A dialog to pick a model: type to filter, Enter to use it."""

from __future__ import annotations

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Input, Static

from backends.errors import DllmError
from backends.state import ModelCatalogue
from tui.actions import bindings
from tui.api.services import ClusterService
from tui.dialogs.dialog import Dialog
from tui.screens.models.search import (
    POLL_S,
    check_path,
    complete_path,
    names_text,
    watch_catalogue,
)
from tui.screens.models.table import (
    ModelTable,
    empty_text,
    folders_text,
    looks_like_path,
    summary_text,
)
from tui.widgets.inputs import LineInput
from tui.widgets.keys import with_keys
from tui.widgets.safe_text import safe

PATH_REMARK = (
    "{picker.choose} uses the file at this path, {path.complete} completes it."
)


class ModelPicker(Dialog[str | None]):
    """Picks a model file; None when the user cancels."""

    HELP = """\
## Pick a model

Type part of a name, or paste the path of a GGUF file. Nothing is launched yet.
"""

    BINDINGS = bindings("picker", "path")
    TYPING = True

    DEFAULT_CSS = """
    ModelPicker {
        & ModelTable { margin: 1 0 0 0; background: $surface; }
        & .picker-empty { display: none; height: 1fr; padding: 1 1; color: $dim; }
        & .-empty > ModelTable { display: none; }
        & .-empty > .picker-empty { display: block; }
        & .picker-remark {
            height: auto;
            max-height: 4;
            color: $dim;
            padding: 0 1;
            &.-wrong { color: $bad; }
        }
    }
    """

    def __init__(
        self, cluster: ClusterService, *, current: str = "", poll_s: float = POLL_S
    ) -> None:
        super().__init__()
        self._cluster = cluster
        self._poll_s = poll_s
        self._catalogue: ModelCatalogue | None = None
        self._completed, self._may_follow = "", ""
        self._input = LineInput(placeholder="part of a name, or a path")
        self._table = ModelTable()
        self._table.current = current
        self._table.can_focus = False
        self._empty = Static(empty_text(None), classes="picker-empty", markup=False)
        self._remark = Static(classes="picker-remark", markup=False)
        self._box = Vertical(classes="dialog -empty")

    def compose(self) -> ComposeResult:
        self._box.border_title = "Pick a model"
        keys = ("picker.choose", "uses"), ("picker.cancel", "cancels")
        self.show_keys(self._box, *keys)
        with self._box:
            yield self._input
            yield self._table
            yield self._empty
            yield self._remark

    def on_mount(self) -> None:
        self._input.focus()
        self._search()

    @work(group="models", exclusive=True, exit_on_error=False)
    async def _search(self) -> None:
        try:
            async for catalogue in watch_catalogue(self._cluster, poll_s=self._poll_s):
                self._catalogue = catalogue
                self._table.show_models(catalogue.models)
                self._summarise()
        except DllmError as error:
            self._say(str(error), wrong=True)

    def _summarise(self) -> None:
        text, shown = self._input.value, len(self._table.shown)
        is_path = looks_like_path(text)
        self._box.set_class(not shown and not is_path, "-empty")
        self._empty.update(with_keys(self.app, empty_text(self._catalogue, text)))
        if is_path:
            self._say(self._may_follow or PATH_REMARK)
        elif self._catalogue is not None:
            summary = summary_text(self._catalogue, shown)
            self._say(f"{summary}\n{folders_text(self._catalogue)}")

    def _say(self, remark: str, *, wrong: bool = False) -> None:
        self._remark.update(with_keys(self.app, safe(remark)))
        self._remark.set_class(wrong, "-wrong")

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        if event.value != self._completed:
            self._may_follow = ""
        is_path = looks_like_path(event.value)
        self._table.set_filter("" if is_path else event.value)
        self._summarise()

    @on(Input.Submitted)
    def action_choose(self) -> None:
        if looks_like_path(self._input.value):
            self._use_path(self._input.value)
        else:
            self._table.pick()

    @on(ModelTable.Picked)
    def _picked(self, event: ModelTable.Picked) -> None:
        event.stop()
        if event.model.problem:
            self._say(f"It cannot be used: {event.model.problem}.", wrong=True)
        else:
            self.dismiss(event.model.path)

    @work(group="model-path", exclusive=True, exit_on_error=False)
    async def _use_path(self, text: str) -> None:
        try:
            self.dismiss(await check_path(self._cluster, text))
        except DllmError as error:
            self._say(str(error), wrong=True)

    def action_complete(self) -> None:
        if looks_like_path(self._input.value):
            self._complete(self._input.value)

    @work(group="complete", exclusive=True, exit_on_error=False)
    async def _complete(self, typed: str) -> None:
        try:
            completed, names = await complete_path(self._cluster, typed)
        except DllmError as error:
            self._say(str(error), wrong=True)
            return
        if self._input.value == typed:
            self._completed = completed
            self._may_follow = "" if len(names) == 1 else names_text(names)
            self._input.value = completed
            self._input.cursor_position = len(completed)
            self._summarise()

    def action_move(self, rows: int) -> None:
        self._table.move(rows)
