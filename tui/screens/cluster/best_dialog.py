"""The dialog of the best plans: one row each, and the bar behind shows the chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from textual import events, on, work
from textual.app import ComposeResult
from textual.message import Message
from textual.strip import Strip
from textual.widgets import Static

from backends.errors import DllmError
from backends.split.cost import band_text
from backends.state import NO_DRAFT, Plan
from backends.units import (
    format_bytes,
    format_count,
    format_difference,
    format_rate,
    format_seconds,
)
from tui.actions import bindings
from tui.api.services import ClusterService
from tui.dialogs.dialog import Dialog
from tui.model.best_choices import AS_IT_IS, BestChoice, change, choices_of
from tui.model.edit import Edit
from tui.model.editor import PlanEditor
from tui.model.launch_settings import ctx_text
from tui.model.names import device_label
from tui.widgets.palette import Palette
from tui.widgets.row_list import RowList
from tui.widgets.safe_text import safe_line
from tui.widgets.sources import predicted
from tui.widgets.strips import Drawn, Part, StripWidget, clip, parts_width, spread

FIGURE_CELLS = 9
CHANGE_CELLS = 7
NAME_CELLS_MIN = 22
ROWS_AROUND = 18
"""The Split pane above, and what of the dialog is no row."""
ROWS_MIN = 4


class FigureColumn(NamedTuple):
    title: str
    figure: Callable[[BestChoice], float | None]
    text: Callable[[float], str]
    better: int = 0
    """1 where more is better, -1 where less is; 0: it is not compared."""

    @property
    def cells(self) -> int:
        return FIGURE_CELLS + (CHANGE_CELLS if self.better else 0)


def _told(name: str) -> Callable[[BestChoice], float | None]:
    return lambda choice: getattr(choice.forecast, name, None)


def _rate_text(tok_per_s: float) -> str:
    return predicted(format_rate(tok_per_s).strip())


def best_columns(
    choices: Sequence[BestChoice], slots: int, width: int
) -> list[FigureColumn]:
    """The columns that tell plans apart, as far as there is room beside the names."""
    columns = [
        FigureColumn("tok/s", _told("tok_per_s"), _rate_text, 1),
        FigureColumn(
            "first token",
            _told("first_token_s"),
            lambda seconds: predicted(format_seconds(seconds)),
            -1,
        ),
        FigureColumn(
            "per token",
            _told("bytes_per_token"),
            lambda n_bytes: predicted(format_bytes(n_bytes)),
            -1,
        ),
    ]
    if slots > 1:
        columns.append(
            FigureColumn(f"{slots} clients", lambda c: c.all_slots, _rate_text, 1)
        )
    if len({choice.ctx_size for choice in choices if choice.ctx_size}) > 1:
        columns.append(
            FigureColumn(
                "context", lambda c: c.ctx_size or None, lambda n: str(round(n))
            )
        )
    while sum(c.cells for c in columns) > max(width - NAME_CELLS_MIN, FIGURE_CELLS * 3):
        columns.pop()
    return columns


class BestRows(RowList, can_focus=True):
    """The plans; the one under the cursor is shown on the bar."""

    MOST = 12

    def __init__(self, slots: int) -> None:
        super().__init__()
        self.slots = slots

    class Pointed(Message):
        """Another plan is under the cursor."""

    def watch_selected(self) -> None:
        self.post_message(self.Pointed())

    def show(self, choices: tuple[BestChoice, ...]) -> None:
        """Show more plans; the cursor stays on its plan."""
        chosen = self.chosen
        self.rows = choices
        plans = [choice.plan for choice in choices]
        if chosen is not None and chosen.plan in plans:
            self.selected = plans.index(chosen.plan)

    def row(self, row: BestChoice, here: bool, width: int) -> Strip:
        palette = self.palette
        columns = best_columns(self.rows, self.slots, width)
        figures = _figures(columns, row, self.rows[0], palette)
        look = palette.text if row.plan else palette.dim
        left: list[Part] = [
            ("▸ " if here else "  ", palette.key),
            (f"{row.name} ", palette.strong if here else look),
        ]
        if not figures:
            left.append((clip(row.why, width - parts_width(left)), palette.dim))
        return spread(left, figures, width)


class BestHeading(StripWidget):
    choices: Drawn[tuple[BestChoice, ...]] = Drawn(())

    def __init__(self, slots: int) -> None:
        super().__init__()
        self._slots = slots

    def draw(self, width: int, height: int) -> list[Strip]:
        dim = self.palette.dim
        columns = best_columns(self.choices, self._slots, width)
        titles, start = "", 0
        for column in columns:
            # A title ends where the figures end; a long one begins before them.
            titles += f"{column.title:>{start + FIGURE_CELLS - len(titles)}}"
            start += column.cells
        return [spread([("  plan", dim)], [(f"{titles:<{start}}", dim)], width)]


class BestDialog(Dialog[Plan | None]):
    """Dismisses with the plan to take, or None to keep the one there is."""

    FIGURES = True
    HELP = """\
## Best plans

The best plans of these devices: for each aim the best one, others that no plan beats in
every aim (*2 devices, first token* is the best of two devices for that), and what else
could be: a device alone, without a machine, with another network, a part of each tensor
on every device, experts on another device than their layers. Beside each figure stands
what it gains or costs against the plan *as it is*. All of them are predicted (`~`) for
one client and without a draft; with several slots one column is of an answer in each of
them.

The bar shows the plan under the cursor. **{best.choose}** takes it, and
**{split.undo}** then brings the one before back; **{best.cancel}** keeps the plan as
it was. Nothing runs before you launch. Faint rows cannot be taken, and say why: they
need another head, or what is not there.
"""
    BINDINGS = bindings("best")
    DEFAULT_CSS = """
    BestDialog {
        & Static { height: 1; color: $dim; }
        & #best-detail { height: auto; max-height: 2; }
        & #best-said.-wrong { height: auto; max-height: 3; color: $bad; }
    }
    """

    def __init__(self, editor: PlanEditor, cluster: ClusterService, edit: Edit) -> None:
        super().__init__(classes="")
        self._editor = editor
        self._cluster = cluster
        self._plan = edit.plan
        slots = edit.plan.server.slots
        self._list, self._heading = BestRows(slots), BestHeading(slots)
        first = BestChoice((AS_IT_IS,), edit.plan, edit.forecast)
        self._list.set_reactive(RowList.rows, (first,))
        self._detail = Static(id="best-detail", markup=False)
        self._said = Static(id="best-said", markup=False)

    def compose(self) -> ComposeResult:
        keys = ("best.choose", "takes it"), ("best.cancel", "cancels")
        with self.frame("Best plans", *keys):
            yield self._heading
            yield self._list
            yield self._detail
            yield self._said

    def on_mount(self) -> None:
        self._list.focus()
        self._point()
        self._search()

    def on_resize(self, event: events.Resize) -> None:
        most = max(event.size.height - ROWS_AROUND, ROWS_MIN)
        self._list.styles.max_height = most

    @work(group="best", exclusive=True, exit_on_error=False)
    async def _search(self) -> None:
        """Ask once for all aims; the controller reckons beside its loop."""
        self._say("looking for the best plans…")
        try:
            found = await self._cluster.best(self._plan)
        except DllmError as error:
            self._say(str(error), wrong=True)
            return
        choices = choices_of(self._plan, found)
        self._heading.choices = choices
        self._list.show(choices)
        self._point()
        self._say(_said(choices))

    def _say(self, text: str, *, wrong: bool = False) -> None:
        self._said.update(safe_line(text))
        self._said.set_class(wrong, "-wrong")

    def action_move(self, by: int) -> None:
        self._list.move(by)

    def action_choose(self) -> None:
        self._list.action_choose()

    @on(BestRows.Pointed)
    def _point(self) -> None:
        choice: BestChoice = self._list.chosen
        self._editor.preview(choice.plan)
        self._detail.update(safe_line(_detail_text(choice)))

    @on(RowList.Picked)
    def _picked(self, message: RowList.Picked) -> None:
        message.stop()
        if message.row.plan is None:
            self.app.bell()
        else:
            self.dismiss(message.row.plan)


def _figures(
    columns: Sequence[FigureColumn],
    choice: BestChoice,
    now: BestChoice,
    palette: Palette,
) -> list[Part]:
    """The figures of a plan, each with what it gains or costs; empty without any."""
    if choice.forecast is None:
        return []
    parts: list[Part] = []
    for column in columns:
        value, before = column.figure(choice), column.figure(now)
        said = column.text(value) if value is not None else ""
        parts.append((f"{said:>{FIGURE_CELLS}}", palette.dim))
        if column.better:
            part = change(value, before) if value is not None and before else None
            look = palette.ok if part and part * column.better > 0 else palette.warn
            gain = format_difference(part) if part is not None else ""
            parts.append((f"{gain:>{CHANGE_CELLS}}", look))
    return parts


def _said(choices: Sequence[BestChoice]) -> str:
    said = f"{format_count(len(choices) - 1, 'other plan')}, predicted for one client"
    now = choices[0]
    if told := now.forecast:
        said += f" and a prompt of {format_count(told.prompt_tokens, 'token')}"
    if now.plan and now.plan.server.draft != NO_DRAFT:
        said += ", without the draft"
    return said


def _detail_text(choice: BestChoice) -> str:
    plan, told = choice.plan, choice.forecast
    if plan is None:
        return choice.why
    held = (s for s in plan.split.shares if s.layers)
    layers = " | ".join(f"{device_label(s.device)} {s.layers}" for s in held)
    band = f" · {band_text(told)}" if told else ""
    if choice.all_slots:
        band += f", {_rate_text(choice.all_slots)} for {plan.server.slots} clients"
    why = f" · {choice.why}" if choice.why else ""
    # The row may have no room for several names.
    name = f"{choice.name}: " if len(choice.names) > 1 else ""
    return f"{name}{layers} · {ctx_text(plan)}{band}{why}"
