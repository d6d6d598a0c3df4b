"""Dialogs that find one of many: anything by its name, a chat, a theme, a kept plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.strip import Strip
from textual.widgets import Input, OptionList, Static

from backends.plan_files import KeptPlan, PlanFile, plan_changes
from backends.state import ChatBrief
from backends.units import format_count
from tui.actions import bindings
from tui.dialogs.dialog import Dialog, Result
from tui.model.finding import Entry, found, has_words, near
from tui.model.names import model_name
from tui.model.peer_words import age_text
from tui.widgets.inputs import LineInput
from tui.widgets.row_list import RowList
from tui.widgets.safe_text import safe_line
from tui.widgets.strips import Part, clip, spread

KIND_WIDTH = 9
NOTHING = "No match."
PERHAPS = "No match. Did you mean:"
MODEL_CELLS = 24
FACTS_CELLS = 6
NARROW_BELOW = 60


class PickDialog(Dialog[Result]):
    """A field above the rows that match it; Enter or a click takes one."""

    TITLE: ClassVar[str]
    PLACEHOLDER: str
    HINTS: tuple[tuple[str, str], ...]
    """Action ids and their effect, for the frame."""
    TYPING = True
    DEFAULT_CSS = """
    PickDialog {
        & RowList { margin: 1 0 0 0; }
        & Static { height: auto; margin: 1 0 0 0; color: $dim; }
    }
    """

    def __init__(self, rows: RowList) -> None:
        super().__init__()
        self.rows = rows
        self.input = LineInput(placeholder=self.PLACEHOLDER)
        self.remark = Static(markup=False)
        self.remark.display = False

    def compose(self) -> ComposeResult:
        with self.frame(self.TITLE, *self.HINTS):
            yield self.input
            yield self.rows
            yield self.remark

    def search(self) -> None:
        raise NotImplementedError

    def result_of(self, row: Any) -> Any:
        return row

    def on_mount(self) -> None:
        self.input.focus()
        self.search()

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        self.search()

    def action_move(self, by: int) -> None:
        self.rows.move(by)

    @on(Input.Submitted)
    def action_choose(self) -> None:
        if self.rows.chosen is None:
            self.app.bell()
        self.rows.action_choose()

    @on(RowList.Picked)
    def _picked(self, message: RowList.Picked) -> None:
        message.stop()
        self.dismiss(self.result_of(message.row))


# --- anything ------------------------------------------------------------------------


class FoundList(RowList):
    DEFAULT_CSS = "FoundList { height: 1fr; }"

    def row(self, row: Entry, here: bool, width: int) -> Strip:
        palette = self.palette
        left: list[Part] = [
            ("▸ " if here else "  ", palette.key),
            (clip(row.kind, KIND_WIDTH), palette.dim),
            (f"{row.name}  ", palette.strong if here else palette.text),
            (row.detail, palette.dim),
        ]
        return spread(left, [(f" {row.key}", palette.key)], width)


class FinderDialog(PickDialog[Entry | None]):
    """Dismisses with the chosen entry."""

    HELP = """\
## Find anything

Part of a name is enough, and of several words each counts: actions, peers, models,
logs, themes, settings and clusters. An action of another pane or screen takes you
there. The key at the right is the one that does it without this dialog.
"""
    BINDINGS = bindings("finder")
    TITLE = "Find"
    PLACEHOLDER = "Search actions, models, settings…"
    HINTS = (("finder.choose", "goes there"), ("finder.cancel", "closes"))

    def __init__(self, entries: Sequence[Entry]) -> None:
        super().__init__(FoundList())
        self._entries = list(entries)

    def add(self, entries: Sequence[Entry]) -> None:
        """Add entries that took a moment to find; the selection stays on its entry."""
        self._entries += entries
        if self.is_mounted:
            chosen = self.rows.chosen if self.rows.selected else None
            self.search()
            if chosen in self.rows.rows:
                self.rows.selected = self.rows.rows.index(chosen)

    def search(self) -> None:
        query = self.input.value
        matches = found(query, self._entries)
        similar = [] if matches else near(query, self._entries)
        self.rows.remark = "" if matches else PERHAPS if similar else NOTHING
        self.rows.rows = (*matches, *similar)


# --- chats ---------------------------------------------------------------------------


class ChatRows(RowList):
    MOST = 12

    def __init__(self, current: str, cluster: str, now: float) -> None:
        super().__init__()
        self._current = current
        self._cluster = cluster
        self._now = now

    def row(self, row: ChatBrief, here: bool, width: int) -> Strip:
        palette = self.palette
        sign = "●" if row.id == self._current else " "
        left = [
            ("▸ " if here else "  ", palette.key),
            (f"{sign} ", palette.key),
            (row.title, palette.strong if here else palette.text),
        ]
        elsewhere = row.cluster != self._cluster
        about = model_name(row.model) + (f" @{row.cluster}" if elsewhere else "")
        model = "" if width < NARROW_BELOW else clip(about, MODEL_CELLS)
        age = age_text(self._now - row.changed_at)
        facts = f" {row.turns:>4} asked {age:>{FACTS_CELLS}}"
        return spread(left, [(f" {model}{facts}", palette.dim)], width)


class ChatsDialog(PickDialog[str | None]):
    """Dismisses with the id of a chat; None keeps the present one."""

    HELP = """\
## Chats

Type words of a title or a model. **{chats.up} {chats.down}** move,
**{chats.choose}** opens the chat and
goes on with it, **{chats.cancel}** keeps the present one. A chat held with another
model goes on with the one that runs now.
"""
    BINDINGS = bindings("chats")
    TITLE = "Chats"
    PLACEHOLDER = "words of a title or model"
    HINTS = (("chats.choose", "opens"), ("chats.cancel", "cancels"))

    def __init__(
        self, chats: Sequence[ChatBrief], current: str, cluster: str, now: float
    ) -> None:
        super().__init__(ChatRows(current, cluster, now))
        self._chats = tuple(chats)

    def search(self) -> None:
        query = self.input.value
        self.rows.rows = tuple(
            chat
            for chat in self._chats
            if has_words(f"{chat.title} {model_name(chat.model)} {chat.cluster}", query)
        )
        self.remark.display = True
        text = format_count(len(self._chats), "chat")
        if query.strip():
            text = f"{len(self.rows.rows)} of {text}"
        self.remark.update(text if self._chats else "No chat is kept yet.")

    def result_of(self, row: ChatBrief) -> str:
        return row.id


# --- themes --------------------------------------------------------------------------


class ThemeDialog(Dialog[str | None]):
    """Dismisses with a theme's name; Esc brings the one before back."""

    HELP = """\
## Theme

The theme under the cursor is shown at once. It is remembered when it is kept, and
what was before comes back when it is not.
"""
    BINDINGS = bindings("dialog")
    DEFAULT_CSS = """
    ThemeDialog OptionList {
        height: auto;
        max-height: 16;
        border: none;
        padding: 0;
        background: transparent;
        scrollbar-size-vertical: 1;
        &:focus { border: none; }
    }
    """

    def __init__(self, names: Sequence[str], current: str) -> None:
        super().__init__(classes="")
        self._names = list(names)
        self._before = current

    def compose(self) -> ComposeResult:
        keys = ("choice.choose", "keeps"), ("dialog.cancel", "undoes")
        with self.frame("Theme", *keys):
            yield OptionList(*self._names, markup=False)

    def on_mount(self) -> None:
        options = self.query_one(OptionList)
        if self._before in self._names:
            options.highlighted = self._names.index(self._before)
        options.focus()

    @on(OptionList.OptionHighlighted)
    def _preview(self, message: OptionList.OptionHighlighted) -> None:
        self.app.theme = self._names[message.option_index]

    @on(OptionList.OptionSelected)
    def _keep(self, message: OptionList.OptionSelected) -> None:
        self.dismiss(self._names[message.option_index])

    def action_cancel(self) -> None:
        self.app.theme = self._before
        self.dismiss(None)


# --- kept plans -------------------------------------------------------------------


NAME_CELLS = 20
AGE_CELLS = 9
SHOWN_MAX = 4
"""Differences told in a line."""


class KeptRows(RowList):
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
    DEFAULT_CSS = "PlansDialog Static { height: 2; }"

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
