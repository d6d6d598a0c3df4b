"""The pane of the split: the bar, a table of memory, and how it stands."""

from __future__ import annotations

from collections.abc import Mapping

from rich.style import Style
from textual.app import ComposeResult
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from backends.split.device_memory import DeviceLoad
from backends.state import Plan
from backends.units import format_bytes
from tui.app.messages import Copyable, Raw
from tui.model.edit import Edit
from tui.model.editor import PlanEditor
from tui.model.launch_settings import ctx_text, launch_command, unusual, up_command
from tui.model.names import device_label, letter, model_name
from tui.model.plan_words import PlanVerdict, faster_text, speed_texts, verdict
from tui.model.quantities import common_unit, in_unit
from tui.screens.cluster.split_bar import SplitBar, layer_span, short_span, span_width
from tui.widgets.keys import takes_text, with_keys
from tui.widgets.sources import (
    OVER,
    PREDICTED,
    TIGHT,
    least_of,
    style_of,
    tick_of,
    told,
)
from tui.widgets.strips import (
    Drawn,
    Part,
    StripWidget,
    clip,
    fitting,
    line,
    memory_bar,
    parts_width,
    resubtitle,
    retitle,
    spread,
)

NAME_WIDTH_MAX = 16
BAR_WIDTH_MIN = 5
TICK_WIDTH = 2


class LoadTable(StripWidget):
    """The memory that the split takes of each device, in numbers."""

    DEFAULT_CSS = "LoadTable { height: auto; width: 1fr; }"

    edit: reactive[Edit | None] = reactive(None, init=False, repaint=False)

    headed: Drawn[bool] = Drawn(False, layout=True)
    """A row above says what the columns are."""
    stale: Drawn[bool] = Drawn(False)
    """The figures are not of what is set now."""

    def get_content_height(self, container: object, viewport: object, w: int) -> int:
        n_rows = _n_rows(self.edit)
        return n_rows + (self.headed and n_rows > 0)

    _rows: Mapping[tuple[object, ...], Strip] = {}
    """Drawn last, by all that decides their looks: a drag changes two of them."""

    def draw(self, width: int, height: int) -> list[Strip]:
        if (edit := self.edit) is None:
            return []
        loads = edit.loads
        unit = common_unit(max(load.total_bytes for load in loads))
        looks = width, self.headed, self.stale, self.palette
        shared = unit, *looks, edit.marks, edit.model.n_layer
        rows: dict[tuple[object, ...], Strip] = {}
        for load in loads:
            fits = load.device in edit.misfits, load.device in edit.tight
            key = load, edit.available.get(load.device), *fits, *shared
            rows[key] = self._rows.get(key) or self._row(edit, load, unit, width)
        self._rows = rows
        drawn = list(rows.values())
        return [self._heading(edit, unit, width), *drawn] if self.headed else drawn

    def watch_edit(self, before: Edit | None, now: Edit | None) -> None:
        if _n_rows(before) == _n_rows(now):
            self.redraw_changed()
        else:
            self._strips = None
            self.refresh(layout=True)

    def _row(self, edit: Edit, load: DeviceLoad, unit: str, width: int) -> Strip:
        name, span, shown, sums, room = self._fitted(edit, load, unit, width)
        bar = self._bar(edit, load, room - 2)
        verdict = self._verdict(load, edit)
        return line([*name, span, *shown, *sums, *bar, verdict], width)

    def _fitted(
        self, edit: Edit, load: DeviceLoad, unit: str, width: int
    ) -> tuple[list[Part], Part, list[Part], list[Part], int]:
        name, sums = self._label(edit, load), self._sums(edit, load, unit)
        parts = self._parts(load, unit)
        room = width - parts_width([*name, *sums]) - TICK_WIDTH
        span = self._span(edit, load, room, parts_width(parts))
        room -= parts_width([span])
        shown = parts if room >= parts_width(parts) else []
        return name, span, shown, sums, room - parts_width(shown)

    def _heading(self, edit: Edit, unit: str, width: int) -> Strip:
        load = edit.loads[0]
        name, span, shown, _sums, _room = self._fitted(edit, load, unit, width)
        titles = [f"{'device':<{parts_width(name)}}", f"{'layers':<{len(span[0])}}"]
        if shown:
            titles.append(f"{'weights':>7}   {'KV':>4}   {'buffers':>7}  ")
        titles.append(f"{'total':>5}")
        return line([("".join(titles), self.palette.dim)], width)

    def _label(self, edit: Edit, load: DeviceLoad) -> list[Part]:
        mark = edit.mark(load.device)
        longest = max(len(share.device) for share in edit.split.shares)
        label = clip(device_label(load.device), min(longest, NAME_WIDTH_MAX))
        return [
            (f"{letter(mark)} ", self.palette.device(mark)),
            (f"{label}  ", self.palette.text),
        ]

    def _span(self, edit: Edit, load: DeviceLoad, room: int, parts: int) -> Part:
        n_layer = edit.model.n_layer
        full, short = span_width(n_layer) + 1, span_width(n_layer, short=True) + 1
        if room >= full + parts or full <= room < short + parts:
            return clip(layer_span(load, n_layer), full), self.palette.text
        text = clip(short_span(load, n_layer), min(short, max(room, 0)))
        return text, self.palette.text

    def _verdict(self, load: DeviceLoad, edit: Edit) -> Part:
        if self.stale:
            return "  ", self.palette.dim
        if load.device in edit.misfits:
            return f" {OVER}", self.palette.bad
        if load.device in edit.tight:
            return f" {TIGHT}", self.palette.warn
        tick = tick_of(load.source)
        return f" {tick}", self.palette.dim if tick == PREDICTED else self.palette.ok

    def _style(self, load: DeviceLoad, edit: Edit) -> Style:
        if self.stale:
            return self.palette.dim
        if load.device in edit.misfits:
            return self.palette.bad
        if load.device in edit.tight:
            return self.palette.warn
        return style_of(load.source, self.palette)

    def _sums(self, edit: Edit, load: DeviceLoad, unit: str) -> list[Part]:
        available = edit.available.get(load.device)
        total, style = in_unit(load.total_bytes, unit), self._style(load, edit)
        if available is None:
            return [(f"{total:>5} {unit}", style)]
        whole_unit = common_unit(available)
        own = "" if unit == whole_unit else f" {unit}"
        whole = f" of {in_unit(available, whole_unit):>4} {whole_unit}"
        return [(f"{total:>5}{own}", style), (whole, self.palette.dim)]

    def _parts(self, load: DeviceLoad, unit: str) -> list[Part]:
        figures = load.weight_bytes, load.kv_bytes, load.compute_bytes
        weights, kv, compute = (in_unit(figure, unit) for figure in figures)
        text = f"{weights:>5} + {kv:>4} KV + {compute:>4} ="
        if self.headed:
            text = f"{weights:>7} + {kv:>4} + {compute:>7} ="
        style = self.palette.dim if self.stale else style_of(load.source, self.palette)
        return [(text, style)]

    def _bar(self, edit: Edit, load: DeviceLoad, width: int) -> list[Part]:
        available = edit.available.get(load.device)
        if available is None or width < BAR_WIDTH_MIN:
            return []
        full, empty = self.palette.device(edit.mark(load.device)), self.palette.track
        cells = memory_bar(load.total_bytes, available, width, full=full, empty=empty)
        return [("  ", self.palette.dim), *cells]


def _n_rows(edit: Edit | None) -> int:
    return len(edit.split.shares) if edit else 0


EMPTY = PlanVerdict("", "dim")
NAME_WIDTH_MIN = 12


class Standing(StripWidget):
    """The predicted speed, and a sentence on what stands between it and what runs."""

    ALLOW_SELECT = True
    speeds: Drawn[tuple[str, ...]] = Drawn(())
    """The prediction, the longest text first; empty without one."""
    verdict: Drawn[PlanVerdict] = Drawn(EMPTY)

    def draw(self, width: int, height: int) -> list[Strip]:
        said: Part = self.verdict.text, getattr(self.palette, self.verdict.tone)
        speed = fitting(self.speeds, width)
        if height < 2 and speed:
            # The shortest stands beside the verdict.
            speed = f"  {self.speeds[-1]}"
            return [spread([said], [(speed, self.palette.dim)], width)]
        lines = [line([said], width)]
        return [line([(speed, self.palette.dim)], width), *lines] if speed else lines


class SplitPane(Widget, can_focus=True):
    HELP = SplitBar.HELP
    DEFAULT_CSS = "SplitPane { layout: vertical; padding: 0 1; }"

    def __init__(self, editor: PlanEditor, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, classes="pane")
        self.border_title = "Split"
        self.bar = SplitBar(editor, id="split-bar")
        self._editor = editor
        self._table = LoadTable()
        self.standing = Standing()
        self._shown: tuple[Edit, Plan] | None = None
        """Of the title, at any width; the editor may be ahead."""

    def compose(self) -> ComposeResult:
        self.bar.display = self._table.display = False
        yield self.bar
        yield self._table
        yield self.standing

    def head_columns(self, headed: bool) -> None:
        self._table.headed = headed

    def follow(self) -> None:
        self.bar.follow()
        edit = self._editor.edit
        self.bar.display = self._table.display = edit is not None
        if self.screen.focused is self:
            self.focus_default()
        self._table.edit = edit
        self.standing.speeds = speed_texts(edit, self._editor.snapshot) if edit else ()
        self.say_verdict()
        plan = self._editor.plan
        self._shown = (edit, plan) if edit and plan else None
        retitle(self, self._title())
        faster = faster_text(edit, self._editor.others) if edit else ""
        faster = with_keys(self.app, f"{{split.best}} {faster}") if faster else ""
        said = (unusual(plan) if plan else "", faster)
        resubtitle(self, " · ".join(filter(None, said)))

    def focus_default(self) -> None:
        target = self.bar if self.bar.display else self
        if self.screen.focused is not target:
            self.screen.set_focus(target)

    def say_verdict(self) -> None:
        """Say how the split stands to what runs, with keys that work now."""
        said = verdict(self.bar.edit, self._editor.plan, self._editor.snapshot)
        text = with_keys(self.app, said.text, typing=takes_text(self.screen.focused))
        self.standing.verdict = said._replace(text=text)

    def _title(self) -> str:
        if self._shown is None:
            return "Split"
        edit, plan = self._shown
        source = least_of(edit.loads)
        kv = told(format_bytes(sum(load.kv_bytes for load in edit.loads)), source)
        weights = sum(load.weight_bytes for load in edit.loads)
        size, n_layer = told(format_bytes(weights), source), edit.model.n_layer
        rest = f" · {n_layer}+1 layers · {size} · {ctx_text(plan)} · KV {kv}"
        room = self.size.width - len("╭─ Split ──  ─╮") - len(rest)
        name = clip(model_name(plan.model), max(room, NAME_WIDTH_MIN)).rstrip()
        return f"Split ── {name}{rest}"

    def on_resize(self) -> None:
        retitle(self, self._title())

    def on_focus(self) -> None:
        self.focus_default()

    @property
    def subject(self) -> str:
        plan = self._editor.plan
        return model_name(plan.model) if plan else ""

    def copyable(self) -> Copyable | None:
        running = self._editor.snapshot if self._editor.unchanged else None
        if command := launch_command(running):
            return Copyable("the launch command", command)
        if (plan := self._editor.plan) is None:
            return None
        return Copyable("the command that launches this", up_command(plan))

    def raw(self) -> Raw | None:
        plan = self._editor.plan
        return Raw("the plan", plan) if plan else None
