"""The pane of the split: the bar, a table of memory, and how it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.reactive import reactive
from textual.widget import Widget

from backends.units import format_bytes
from tui.app.messages import Copyable
from tui.model.launch_settings import ctx_text, launch_command, unusual, up_command
from tui.model.names import device_label, letter, model_name
from tui.model.quantities import common_unit, in_unit
from tui.model.verdict import Verdict, verdict
from tui.screens.cluster.split_bar import SplitBar, layer_span, short_span, span_width
from tui.widgets.keys import takes_text, with_keys
from tui.widgets.sources import PREDICTED, least_of, style_of, tick_of, told
from tui.widgets.strips import (
    Part,
    StripWidget,
    clip,
    line,
    memory_bar,
    parts_width,
    resubtitle,
    retitle,
)

if TYPE_CHECKING:
    from rich.style import Style
    from textual.app import ComposeResult
    from textual.strip import Strip

    from backends.split.loads import DeviceLoad
    from tui.model.desk import Desk
    from tui.model.draft import Draft


NAME_WIDTH_MAX = 16
BAR_WIDTH_MIN = 5
TICK_WIDTH = 2


class LoadTable(StripWidget):
    """The memory that the split takes of each device, in numbers."""

    DEFAULT_CSS = """
    LoadTable {
        height: auto;
        width: 1fr;
    }
    """

    draft: reactive[Draft | None] = reactive(None, init=False, repaint=False)
    """The split shown by the bar."""

    headed: reactive[bool] = reactive(False, init=False, layout=True)
    """A row above says what the columns are."""
    stale: reactive[bool] = reactive(False, init=False, repaint=False)
    """The figures are not of what is set now."""

    def get_content_height(self, container: object, viewport: object, w: int) -> int:
        n_rows = _n_rows(self.draft)
        return n_rows + (self.headed and n_rows > 0)

    def draw(self, width: int, height: int) -> list[Strip]:
        if self.draft is None:
            return []
        loads = self.draft.loads
        unit = common_unit(max(load.total_bytes for load in loads))
        rows = [self._row(self.draft, load, unit, width) for load in loads]
        return [self._heading(self.draft, unit, width), *rows] if self.headed else rows

    def watch_draft(self, before: Draft | None, now: Draft | None) -> None:
        if _n_rows(before) == _n_rows(now):
            self.redraw_changed()
        else:
            self._strips = None
            self.refresh(layout=True)

    def watch_headed(self) -> None:
        self.redraw()

    def watch_stale(self) -> None:
        self.redraw_changed()

    def _row(self, draft: Draft, load: DeviceLoad, unit: str, width: int) -> Strip:
        misfit = load.device in draft.misfits
        tail: list[Part] = [self._verdict(load, misfit)]
        name, span, shown, sums, room = self._fitted(draft, load, unit, width)
        bar = self._bar(draft, load, room - 2)
        return line([*name, span, *shown, *sums, *bar, *tail], width)

    def _fitted(
        self, draft: Draft, load: DeviceLoad, unit: str, width: int
    ) -> tuple[list[Part], Part, list[Part], list[Part], int]:
        """Name, layers, parts and sum of a device, and the room left for its bar."""
        name, sums = self._label(draft, load), self._sums(draft, load, unit)
        parts = self._parts(load, unit)
        room = width - parts_width([*name, *sums]) - TICK_WIDTH
        span = self._span(draft, load, room, parts_width(parts))
        room -= parts_width([span])
        shown = parts if room >= parts_width(parts) else []
        return name, span, shown, sums, room - parts_width(shown)

    def _heading(self, draft: Draft, unit: str, width: int) -> Strip:
        """The columns' names, over the figures of the first device."""
        load = draft.loads[0]
        name, span, shown, _sums, _room = self._fitted(draft, load, unit, width)
        titles = [f"{'device':<{parts_width(name)}}", f"{'layers':<{len(span[0])}}"]
        if shown:
            titles.append(f"{'weights':>7}   {'KV':>4}   {'buffers':>7}  ")
        titles.append(f"{'total':>5}")
        return line([("".join(titles), self.palette.dim)], width)

    def _label(self, draft: Draft, load: DeviceLoad) -> list[Part]:
        mark = draft.mark(load.device)
        longest = max(len(share.device) for share in draft.split.shares)
        label = clip(device_label(load.device), min(longest, NAME_WIDTH_MAX))
        return [
            (f"{letter(mark)} ", self.palette.device(mark)),
            (f"{label}  ", self.palette.text),
        ]

    def _span(self, draft: Draft, load: DeviceLoad, room: int, parts: int) -> Part:
        """The layers; in full only where the parts still have room beside."""
        n_layer = draft.model.n_layer
        full, short = span_width(n_layer) + 1, span_width(n_layer, short=True) + 1
        if room >= full + parts or full <= room < short + parts:
            return clip(layer_span(load, n_layer), full), self.palette.text
        text = clip(short_span(load, n_layer), min(short, max(room, 0)))
        return text, self.palette.text

    def _verdict(self, load: DeviceLoad, misfit: bool) -> Part:
        """The sign for a load that fits; only a checked figure gets a tick."""
        if self.stale:
            return "  ", self.palette.dim
        if misfit:
            return " ✗", self.palette.bad
        tick = tick_of(load.source)
        return f" {tick}", self.palette.dim if tick == PREDICTED else self.palette.ok

    def _style(self, load: DeviceLoad) -> Style:
        return self.palette.dim if self.stale else style_of(load.source, self.palette)

    def _sums(self, draft: Draft, load: DeviceLoad, unit: str) -> list[Part]:
        available = draft.available.get(load.device)
        total = in_unit(load.total_bytes, unit)
        if available is None:
            return [(f"{total:>5} {unit}", self._style(load))]
        whole_unit = common_unit(available)
        own = "" if unit == whole_unit else f" {unit}"
        whole = in_unit(available, whole_unit)
        return [
            (f"{total:>5}{own}", self._style(load)),
            (f" of {whole:>4} {whole_unit}", self.palette.dim),
        ]

    def _parts(self, load: DeviceLoad, unit: str) -> list[Part]:
        weights, kv, compute = (
            in_unit(value, unit)
            for value in (load.weight_bytes, load.kv_bytes, load.compute_bytes)
        )
        text = (
            f"{weights:>7} + {kv:>4} + {compute:>7} ="
            if self.headed
            else f"{weights:>5} + {kv:>4} KV + {compute:>4} ="
        )
        return [(text, self._style(load))]

    def _bar(self, draft: Draft, load: DeviceLoad, width: int) -> list[Part]:
        available = draft.available.get(load.device)
        if available is None or width < BAR_WIDTH_MIN:
            return []
        full = self.palette.device(draft.mark(load.device))
        empty = self.palette.track
        total = load.total_bytes
        cells = memory_bar(total, available, width, full=full, empty=empty)
        return [("  ", self.palette.dim), *cells]


def _n_rows(draft: Draft | None) -> int:
    return len(draft.split.shares) if draft else 0


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
