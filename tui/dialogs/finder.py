"""Everything by its name: type part of it, Enter goes there or does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.containers import Vertical
from textual.message import Message
from textual.reactive import reactive
from textual.widgets import Input

from tui.actions.keymap import bindings
from tui.dialogs.dialog import Dialog
from tui.model.finding import Entry, found, near
from tui.widgets.inputs import LineInput
from tui.widgets.strips import Part, WheelList, clip, line, spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual import events
    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.strip import Strip

KIND_WIDTH = 9
ROWS = 16
NOTHING = "No match."
PERHAPS = "No match. Did you mean:"


class FoundList(WheelList):
    """The matches, a window of them around the selected one."""

    DEFAULT_CSS = """
    FoundList { height: 1fr; margin: 1 0 0 0; }
    """

    entries: reactive[tuple[Entry, ...]] = reactive((), init=False)
    """The entries that match."""
    remark: reactive[str] = reactive("", init=False)
    """Said above the entries."""
    selected: reactive[int] = reactive(0, init=False)
    """Index of the entry Enter takes."""

    class Picked(Message):
        """The user clicked an entry, which is now selected."""

    def draw(self, width: int, height: int) -> list[Strip]:
        lines = [line([(self.remark, self.palette.warn)], width)] if self.remark else []
        top = self._top(height - len(lines))
        shown = self.entries[top : top + height - len(lines)]
        return lines + [self._row(top + y, one, width) for y, one in enumerate(shown)]

    def _top(self, rows: int) -> int:
        last = max(len(self.entries) - rows, 0)
        return min(max(self.selected - rows // 2, 0), last)

    def move(self, by: int) -> None:
        """Select another match."""
        self.selected += by

    def validate_selected(self, selected: int) -> int:
        return min(max(selected, 0), max(len(self.entries) - 1, 0))

    def watch_entries(self) -> None:
        self.selected = 0
        self.redraw()

    def watch_remark(self) -> None:
        self.redraw()

    def watch_selected(self) -> None:
        self.redraw()

    @property
    def chosen(self) -> Entry | None:
        """The selected entry; None if nothing matches."""
        return self.entries[self.selected] if self.entries else None

    def on_click(self, event: events.Click) -> None:
        y = event.get_content_offset_capture(self).y - bool(self.remark)
        index = self._top(self.content_size.height - bool(self.remark)) + y
        if y >= 0 and index < len(self.entries):
            self.selected = index
            self.post_message(self.Picked())

    def _row(self, index: int, entry: Entry, width: int) -> Strip:
        palette, here = self.palette, index == self.selected
        left: list[Part] = [
            ("▸ " if here else "  ", palette.key),
            (clip(entry.kind, KIND_WIDTH), palette.dim),
            (f"{entry.name}  ", palette.strong if here else palette.text),
            (entry.detail, palette.dim),
        ]
        return spread(left, [(f" {entry.key}", palette.key)], width)


class FinderDialog(Dialog[Entry | None]):
    """Dismisses with the chosen entry."""

    HELP: ClassVar[str | None] = """\
## Find anything

Part of a name is enough, and of several words each counts: actions, peers, models,
logs, themes, settings and clusters. An action of another pane or screen takes you
there. The key at the right is the one that does it without this dialog.
"""
    BINDINGS: ClassVar[list[BindingType]] = bindings("finder")
    TYPING: ClassVar[bool] = True

    def __init__(self, entries: Sequence[Entry]) -> None:
        super().__init__()
        self._entries = list(entries)
        self._input = LineInput(placeholder="Search actions, models, settings…")
        self._list = FoundList()

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = "Find"
            keys = ("finder.choose", "goes there"), ("finder.cancel", "closes")
            self.show_keys(box, *keys)
            yield self._input
            yield self._list

    def on_mount(self) -> None:
        self._input.focus()
        self._search()

    def add(self, entries: Sequence[Entry]) -> None:
        """Add entries that took a moment to find; the selection stays on its entry."""
        self._entries += entries
        if self.is_mounted:
            chosen = self._list.chosen if self._list.selected else None
            self._search()
            if chosen is not None and chosen in self._list.entries:
                self._list.selected = self._list.entries.index(chosen)

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        self._search()

    def _search(self) -> None:
        query = self._input.value
        matches = found(query, self._entries)
        self._list.remark = ""
        if not matches:
            matches = near(query, self._entries)
            self._list.remark = PERHAPS if matches else NOTHING
        self._list.entries = tuple(matches)

    def action_move(self, by: int) -> None:
        self._list.move(by)

    @on(Input.Submitted)
    @on(FoundList.Picked)
    def action_choose(self) -> None:
        if chosen := self._list.chosen:
            self.dismiss(chosen)
        else:
            self.app.bell()
