"""A row to type the path of a model into."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import work

from backends.errors import DllmError
from tui.actions.keymap import bindings
from tui.screens.models.search import complete_path, names_text
from tui.widgets.filter_bar import FilterBar
from tui.widgets.worker_reports import report_worker

if TYPE_CHECKING:
    from textual.binding import BindingType
    from textual.worker import Worker

    from tui.api.cluster import Cluster


class PathBar(FilterBar):
    """Completes what is typed as far as that is certain, and names what may follow."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("path")

    def __init__(self, cluster: Cluster, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__("/path/to/model.gguf · Enter uses it", sign="path", id=id)
        self._cluster = cluster
        self._completed = ""

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        report_worker(self, event)

    def forget(self) -> None:
        """Forget the note on an earlier path, unless the path is its completion."""
        if self.text != self._completed:
            self.wrong = False
            self.note = ""

    def refuse(self, why: str) -> None:
        """Say why the path cannot be used."""
        self.wrong = True
        self.note = why

    def action_complete(self) -> None:
        self._complete(self.text)

    @work(group="complete", exclusive=True, exit_on_error=False)
    async def _complete(self, typed: str) -> None:
        try:
            completed, names = await complete_path(self._cluster, typed)
        except DllmError as error:
            self.refuse(str(error))
            return
        if self.text == typed:
            self._completed = completed
            self.fill(completed)
            self.wrong = False
            self.note = "" if len(names) == 1 else names_text(names)
