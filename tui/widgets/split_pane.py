"""The pane of the split: bar, numbers per device, and how it stands to what runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.reactive import reactive
from textual.widget import Widget

from backends.units import format_bytes
from tui.messages import Copyable
from tui.widgets.load_table import LoadTable
from tui.widgets.split_bar import SplitBar
from tui.widgets.strips import StripWidget, line, retitle
from tui.widgets.verdict import Verdict, verdict

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.strip import Strip

    from backends.state import ClusterSnapshot, Plan
    from tui.widgets.draft import Draft

EMPTY = Verdict("", "dim")


class VerdictLine(StripWidget):
    """One sentence under the numbers."""

    DEFAULT_CSS = """
    VerdictLine {
        height: 1;
    }
    """

    verdict: reactive[Verdict] = reactive(EMPTY, init=False)
    """What it says."""

    def draw(self, width: int, height: int) -> list[Strip]:
        """The sentence in its tone."""
        style = getattr(self.palette, self.verdict.tone)
        return [line([(self.verdict.text, style)], width)]

    def watch_verdict(self) -> None:
        """Another sentence."""
        self.redraw()


class SplitPane(Widget, can_focus=True):
    """Everything about the split of one model."""

    HELP: ClassVar[str | None] = SplitBar.HELP
    DEFAULT_CSS = """
    SplitPane {
        layout: vertical;
        padding: 0 1;
    }
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        """Make an empty pane."""
        super().__init__(id=id, classes="pane")
        self.border_title = "Split"
        self.bar = SplitBar(id="split-bar")
        self._table = LoadTable()
        self._verdict = VerdictLine()
        self._plan: Plan | None = None
        self._snapshot: ClusterSnapshot | None = None

    def compose(self) -> ComposeResult:
        """Bar, table, verdict."""
        self.bar.display = self._table.display = False
        yield self.bar
        yield self._table
        yield self._verdict

    def show(
        self, draft: Draft | None, plan: Plan | None, snapshot: ClusterSnapshot | None
    ) -> None:
        """Show the plan being edited beside what runs."""
        self._plan, self._snapshot = plan, snapshot
        self.bar.show_draft(draft)
        self._show_draft(self.bar.draft)

    def focus_default(self) -> None:
        """The bar is what one works with here; without a model there is none."""
        target = self.bar if self.bar.display else self
        if not target.has_focus:
            target.focus()

    def on_focus(self) -> None:
        """A click beside the bar means the bar."""
        self.focus_default()

    def copyable(self) -> Copyable | None:
        """The command line that runs, else the counts."""
        processes = self._snapshot.processes if self._snapshot else ()
        for process in processes:
            if process.role == "server" and process.argv:
                return Copyable("the launch command", _shell(process.argv))
        draft = self.bar.draft
        counts = ",".join(map(str, draft.counts)) if draft else ""
        return Copyable("the split", counts) if counts else None

    @on(SplitBar.Changed)
    def _bar_changed(self) -> None:
        self._show_draft(self.bar.draft)

    def _show_draft(self, draft: Draft | None) -> None:
        self.bar.display = self._table.display = draft is not None
        if self.has_focus:
            self.focus_default()
        self._table.draft = draft
        self._verdict.verdict = verdict(draft, self._plan, self._snapshot)
        retitle(self, _title(draft))


def _title(draft: Draft | None) -> str:
    if draft is None:
        return "Split"
    kv = sum(load.kv_bytes for load in draft.loads)
    weights = sum(load.weight_bytes for load in draft.loads)
    return (
        f"Split ── {draft.model.n_layer}+1 layers · {format_bytes(weights)}"
        f" · ctx {draft.ctx_size} · KV {format_bytes(kv)}"
    )


def _shell(argv: tuple[str, ...]) -> str:
    # Imported when needed: a start of the console does not copy.
    from shlex import join

    return join(argv)
