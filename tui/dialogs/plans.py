"""The dialog of kept plans: those saved by name, and the last launches."""

from __future__ import annotations

from collections.abc import Sequence

from textual.strip import Strip

from backends.plan_files import KeptPlan, PlanFile, plan_changes
from tui.actions.keymap import bindings
from tui.dialogs.pick import PickDialog
from tui.model.finding import has_words
from tui.model.names import model_name
from tui.model.peer_words import age_text
from tui.widgets.row_list import RowList
from tui.widgets.safe_text import safe_line
from tui.widgets.strips import clip, spread

NAME_CELLS = 20
AGE_CELLS = 9
SHOWN_MAX = 4
"""Differences told in a line."""


class KeptRows(RowList):
    """The plans that match."""

    MOST = 12

    def __init__(self, launched: Sequence[KeptPlan], now: float) -> None:
        super().__init__()
        self._launched = frozenset(kept.path for kept in launched)
        self._now = now

    def row(self, row: KeptPlan, here: bool, width: int) -> Strip:
        palette = self.palette
        launched = row.path in self._launched
        name = "launched" if launched else row.name
        counts = " | ".join(str(c) for c in row.plan.split.values() if c)
        left = [
            ("▸ " if here else "  ", palette.key),
            (clip(name, NAME_CELLS), palette.dim if launched else palette.text),
            (f" {model_name(row.plan.model)}  ", palette.text),
            (f"{counts} · ctx {row.plan.context}", palette.dim),
        ]
        age = age_text(self._now - row.at)
        return spread(left, [(f" {age:>{AGE_CELLS}}", palette.dim)], width)


class PlansDialog(PickDialog[KeptPlan | None]):
    """Dismisses with the plan to work on; None keeps the present one."""

    HELP = """\
## Plans

Plans saved by name, then the last launches, the newest first. Type words of a name or
a model. Below stands what differs from the plan in the Split pane.

**{plans.choose}** puts the plan in the Split pane, where **{split.undo}** brings the
one before back; nothing runs before you launch. **{split.save}** there saves a plan.
Plans are small files: `dllm-tui plans` lists, compares and shares them.
"""
    BINDINGS = bindings("plans")
    TITLE = "Plans"
    PLACEHOLDER = "words of a name or model"
    HINTS = (("plans.choose", "takes it"), ("plans.cancel", "cancels"))
    DEFAULT_CSS = """
    PlansDialog Static { height: 2; }
    """

    def __init__(
        self,
        saved: Sequence[KeptPlan],
        launched: Sequence[KeptPlan],
        present: PlanFile | None,
        now: float,
    ) -> None:
        super().__init__(KeptRows(launched, now))
        self._all = (*saved, *launched)
        self._present = present

    def search(self) -> None:
        query = self.input.value
        self.rows.rows = tuple(
            k for k in self._all if has_words(f"{k.name} {k.plan.model}", query)
        )
        self.remark.display = True
        self._tell()

    def action_move(self, by: int) -> None:
        super().action_move(by)
        self._tell()

    def _tell(self) -> None:
        self.remark.update(safe_line(self._said()))

    def _said(self) -> str:
        kept: KeptPlan | None = self.rows.chosen
        if kept is None:
            return "No plan matches." if self._all else "No plan is kept yet."
        if self._present is None:
            return ""
        changes = plan_changes(self._present, kept.plan)
        if not changes:
            return "as the plan in the Split pane"
        texts = [f"{name} {old} → {new}" for name, old, new in changes[:SHOWN_MAX]]
        if (rest := len(changes) - SHOWN_MAX) > 0:
            texts.append(f"and {rest} more")
        return " · ".join(texts)

    def result_of(self, row: KeptPlan) -> KeptPlan:
        return row
