"""The dialog of the best plans: one row each, and the bar behind shows the chosen."""

from __future__ import annotations

from collections.abc import Callable

from textual import events, on, work
from textual.app import ComposeResult
from textual.message import Message
from textual.strip import Strip
from textual.widgets import Static

from backends.errors import DllmError
from backends.split.cost import band_text
from backends.state import Forecast, Plan
from backends.units import (
    format_bytes,
    format_count,
    format_difference,
    format_rate,
    format_seconds,
)
from tui.actions.keymap import bindings
from tui.api.services import ClusterService
from tui.dialogs.dialog import Dialog
from tui.model.best_choices import (
    AIMS,
    AS_IT_IS,
    BestChoice,
    aims_of,
    change,
    with_found,
)
from tui.model.edit import Edit
from tui.model.editor import PlanEditor
from tui.model.launch_settings import ctx_text
from tui.model.names import device_label
from tui.widgets.palette import Palette
from tui.widgets.row_list import RowList
from tui.widgets.safe_text import safe_line
from tui.widgets.sources import predicted
from tui.widgets.strips import Part, StripWidget, clip, parts_width, spread

FIGURE_CELLS = 10
CHANGE_CELLS = 7
TITLES = ("tok/s", "first token", "per token")
COMPARED: tuple[tuple[str, Callable[[float], str], int], ...] = (
    ("tok_per_s", lambda rate: predicted(format_rate(rate).strip()), 1),
    ("first_token_s", lambda seconds: predicted(format_seconds(seconds)), -1),
    ("bytes_per_token", lambda n_bytes: predicted(format_bytes(n_bytes)), -1),
)
"""The compared figures of a forecast, their texts, and 1 where more is better."""
ROWS_AROUND = 18
"""The Split pane above, and what of the dialog is no row."""
ROWS_MIN = 4


class BestRows(RowList, can_focus=True):
    """The plans; the one under the cursor is shown on the bar."""

    MOST = 12

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
        figures = list(_figures(row.forecast, self.rows[0].forecast, palette))
        look = palette.text if row.plan else palette.dim
        left: list[Part] = [
            ("▸ " if here else "  ", palette.key),
            (f"{row.name} ", palette.strong if here else look),
        ]
        if not figures:
            left.append((clip(row.why, width - parts_width(left)), palette.dim))
        return spread(left, figures, width)


class BestHeading(StripWidget):
    """Titles over the figures."""

    def draw(self, width: int, height: int) -> list[Strip]:
        dim = self.palette.dim
        cells = FIGURE_CELLS + CHANGE_CELLS
        right = "".join(clip(f"{title:>{FIGURE_CELLS}}", cells) for title in TITLES)
        return [spread([("  plan", dim)], [(right, dim)], width)]


class BestDialog(Dialog[Plan | None]):
    """Dismisses with the plan to take, or None to keep the one there is."""

    FIGURES = True
    HELP = """\
## Best plans

The best split of these devices for several aims, and what else could be: a device
alone, without a machine, with another network. Beside each figure stands what it gains
or costs against the plan *as it is*. All of them are predicted (`~`) for one client.

The bar shows the plan under the cursor. **{best.choose}** takes it, and
**{split.undo}** then brings the one before back; **{best.cancel}** keeps the plan as
it was. Nothing runs before you launch. Faint rows cannot be taken: they need another
head, or what is not there.
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
        self._list = BestRows()
        first = BestChoice((AS_IT_IS,), edit.plan, edit.forecast)
        self._list.set_reactive(RowList.rows, (first,))
        self._detail = Static(id="best-detail", markup=False)
        self._said = Static(id="best-said", markup=False)

    def compose(self) -> ComposeResult:
        keys = ("best.choose", "takes it"), ("best.cancel", "cancels")
        with self.frame("Best plans", *keys):
            yield BestHeading()
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
        """Ask for one aim after the other; the controller reckons beside its loop."""
        aims = aims_of(self._plan)
        wrong = ""
        for number, aim in enumerate(aims):
            so_far = f"{number + 1} of {len(aims)}"
            self._say(wrong or f"looking for: {AIMS[aim]} ({so_far})…", wrong=wrong)
            try:
                found = await self._cluster.best(self._plan, aim)
            except DllmError as error:
                wrong = str(error)
                continue
            # What else could be is much the same for every aim.
            found = found if not number else found[:1]
            self._list.show(with_found(self._list.rows, aim, found, self._told))
        count = format_count(len(self._list.rows) - 1, "other plan")
        self._say(wrong or f"{count}, predicted for one client", wrong=wrong)

    def _told(self, plan: Plan) -> Forecast | None:
        edit = self._editor.drawn(plan)
        return edit.forecast if edit else None

    def _say(self, text: str, *, wrong: str = "") -> None:
        self._said.update(safe_line(text))
        self._said.set_class(bool(wrong), "-wrong")

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
    told: Forecast | None, now: Forecast | None, palette: Palette
) -> list[Part]:
    """The figures of a plan, each with what it gains or costs; empty without any."""
    if told is None:
        return []
    parts: list[Part] = []
    for name, text, better in COMPARED:
        value = getattr(told, name)
        part = change(value, getattr(now, name)) if now else None
        look = palette.ok if part and part * better > 0 else palette.warn
        said = format_difference(part) if part is not None else ""
        parts.append((f"{text(value):>{FIGURE_CELLS}}", palette.dim))
        parts.append((f"{said:>{CHANGE_CELLS}}", look))
    return parts


def _detail_text(choice: BestChoice) -> str:
    plan, told = choice.plan, choice.forecast
    if plan is None:
        return choice.why
    held = (s for s in plan.split.shares if s.layers)
    layers = " | ".join(f"{device_label(s.device)} {s.layers}" for s in held)
    band = f" · {band_text(told)}" if told else ""
    why = f" · {choice.why}" if choice.why else ""
    return f"{layers} · {ctx_text(plan)}{band}{why}"
