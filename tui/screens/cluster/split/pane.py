"""The pane of the split: bar, numbers per device, and how it stands to what runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.reactive import reactive
from textual.widget import Widget

from backends.units import format_bytes
from tui.app.messages import Copyable
from tui.model.launch_settings import ctx_text, launch_command, unusual, up_command
from tui.model.names import model_name
from tui.model.verdict import Verdict, verdict
from tui.screens.cluster.split.bar import SplitBar
from tui.screens.cluster.split.load_table import LoadTable
from tui.widgets.keys import takes_text, with_keys
from tui.widgets.sources import least_of, told
from tui.widgets.strips import StripWidget, clip, line, resubtitle, retitle

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.strip import Strip

    from tui.model.desk import Desk
    from tui.model.draft import Draft

EMPTY = Verdict("", "dim")
NAME_WIDTH_MIN = 12


class VerdictLine(StripWidget):
    """One sentence under the numbers."""

    ALLOW_SELECT = True
    DEFAULT_CSS = """
    VerdictLine {
        height: 1;
    }
    """

    verdict: reactive[Verdict] = reactive(EMPTY, init=False)

    def draw(self, width: int, height: int) -> list[Strip]:
        style = getattr(self.palette, self.verdict.tone)
        return [line([(self.verdict.text, style)], width)]

    def watch_verdict(self) -> None:
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

    def __init__(self, desk: Desk, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, classes="pane")
        self.border_title = "Split"
        self.bar = SplitBar(desk, id="split-bar")
        self._desk = desk
        self._table = LoadTable()
        self._verdict = VerdictLine()

    def compose(self) -> ComposeResult:
        self.bar.display = self._table.display = False
        yield self.bar
        yield self._table
        yield self._verdict

    def head_columns(self, headed: bool) -> None:
        """Name the columns of the table, if there is a row for that."""
        self._table.headed = headed

    def follow(self) -> None:
        """Show what lies on the desk beside what runs."""
        self.bar.follow()
        self._show_draft()

    def focus_default(self) -> None:
        """The bar is what one works with here; without a model there is none."""
        target = self.bar if self.bar.display else self
        if not target.has_focus:
            target.focus()

    def say_verdict(self) -> None:
        """Say how the split stands to what runs, with keys that work now."""
        said = verdict(self.bar.draft, self._desk.plan, self._desk.snapshot)
        text = with_keys(self.app, said.text, typing=takes_text(self.screen.focused))
        self._verdict.verdict = said._replace(text=text)

    def _title(self, draft: Draft | None) -> str:
        plan = self._desk.plan
        if draft is None or plan is None:
            return "Split"
        source = least_of(draft.loads)
        kv = sum(load.kv_bytes for load in draft.loads)
        weights = sum(load.weight_bytes for load in draft.loads)
        figures = (
            f"{draft.model.n_layer}+1 layers",
            told(format_bytes(weights), source),
            ctx_text(plan),
            f"KV {told(format_bytes(kv), source)}",
        )
        rest = " · ".join(("", *figures))
        room = self.size.width - len("╭─ Split ──  ─╮") - len(rest)
        name = clip(model_name(plan.model), max(room, NAME_WIDTH_MIN)).rstrip()
        return f"Split ── {name}{rest}"

    def on_focus(self) -> None:
        self.focus_default()

    def copyable(self) -> Copyable | None:
        """The command line that runs, else the one that would launch what is shown."""
        running = self._desk.snapshot if self._desk.unchanged else None
        if command := launch_command(running):
            return Copyable("the launch command", command)
        if (plan := self._desk.plan) is None:
            return None
        return Copyable("the command that launches this", up_command(plan))

    @on(SplitBar.Changed)
    def _show_draft(self) -> None:
        draft = self.bar.draft
        self.bar.display = self._table.display = draft is not None
        if self.has_focus:
            self.focus_default()
        self._table.draft = draft
        self.say_verdict()
        retitle(self, self._title(draft))
        resubtitle(self, unusual(self._desk.plan) if self._desk.plan else "")
