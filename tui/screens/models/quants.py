"""A dialog with the models of a repository: what would fit here, before a download."""

from __future__ import annotations

from contextlib import aclosing

from msgspec.structs import replace
from textual import work
from textual.strip import Strip

from backends.errors import DllmError
from backends.state.models import RemoteModel
from backends.units import format_bytes, format_count
from tui.actions import bindings
from tui.api.services import ClusterService
from tui.dialogs.pick import PickDialog
from tui.model.finding import has_words
from tui.model.fit_words import context_text, fits_text, split_text, why_text
from tui.widgets.row_list import RowList
from tui.widgets.strips import clip, line

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
        return line(
            [
                ("▸ " if here else "  ", palette.key),
                (clip(row.quant, NAME_CELLS), palette.strong if here else palette.text),
                (format_bytes(row.size_bytes).rjust(SIZE_CELLS), palette.text),
                (f"  {fits:{FITS_CELLS}}", style),
                (f"{context_text(row):>{CONTEXT_CELLS}}  ", style),
                (split_text(row.fit) or why_text(row), palette.dim),
            ],
            width,
        )


class QuantsDialog(PickDialog[str | None]):
    """Dismisses with the source of the model to get."""

    HELP = """\
## Models of a repository

Each with its size, whether it fits on this machine and the peers that are ready, the
longest context it has there, and the layers of each device. `~yes` is predicted; `yes`
is llama.cpp's own answer to the header, which is all that was read. Only the model you
choose is downloaded.
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
