"""Asking for models: the catalogue while it grows, and any file by its path."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence

from textual import work

from backends.errors import DllmError
from backends.state import ModelCatalogue
from tui.actions import bindings
from tui.api.services import ClusterService
from tui.model.names import whole_path
from tui.widgets.background_errors import report_worker
from tui.widgets.inputs import FilterBar

POLL_S = 0.4
NAMES_SHOWN = 12


async def watch_catalogue(
    cluster: ClusterService, *, poll_s: float = POLL_S
) -> AsyncIterator[ModelCatalogue]:
    """The models as they are known, then as the folders are searched again."""
    catalogue = await cluster.catalogue(refresh=True)
    yield catalogue
    while catalogue.scanning:
        await asyncio.sleep(poll_s)
        catalogue = await cluster.catalogue()
        yield catalogue


async def check_path(cluster: ClusterService, text: str) -> str:
    path = whole_path(text)
    await cluster.inspect(path)
    return path


async def complete_path(
    cluster: ClusterService, typed: str
) -> tuple[str, tuple[str, ...]]:
    """Extend a typed path as far as it is unique; also the names that may follow."""
    folder, slash, part = typed.rpartition("/") if typed != "~" else ("~", "/", "")
    whole = whole_path(f"{folder}{slash}" or ".").rstrip("/")
    names = await cluster.names_after(f"{whole}/{part}")
    # Of names, letter by letter, as wanted here.
    common = os.path.commonprefix(names)  # noqa: RUF071
    return f"{folder}{slash}{common or part}", names


def names_text(names: Sequence[str]) -> str:
    if not names:
        return "nothing there begins like that"
    more = "  …" if len(names) > NAMES_SHOWN else ""
    return "  ".join(names[:NAMES_SHOWN]) + more


class PathBar(FilterBar):
    """Completes what is typed as far as that is certain, and names what may follow."""

    BINDINGS = bindings("path")

    def __init__(self, cluster: ClusterService, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__("/path/to/model.gguf · Enter uses it", sign="path", id=id)
        self._cluster = cluster
        self._completed = ""

    on_worker_state_changed = report_worker

    def forget(self) -> None:
        """Forget the note on an earlier path, unless the path is its completion."""
        if self.text != self._completed:
            self.wrong = False
            self.note = ""

    def refuse(self, why: str) -> None:
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
