"""The list of events: the cluster's story and earlier toasts, newest last."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.containers import Vertical
from textual.message import Message
from textual.reactive import reactive

from backends.state import EventTone
from tui.actions.keymap import bindings
from tui.app.messages import Copyable, LogWanted
from tui.dialogs.dialog import Dialog
from tui.dialogs.evidence import EvidenceDialog
from tui.model.events import Happening, age_text, happening_of, sign
from tui.widgets.inputs import FilterBar
from tui.widgets.strips import WheelList, clip, line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from textual import events
    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.strip import Strip

    from backends.state import Event
    from tui.model.events import ToastHistory

AGE_WIDTH = 6
AGE_EVERY_S = 10.0
TONES = {
    EventTone.INFORMATION: "ok",
    EventTone.WARNING: "warn",
    EventTone.ERROR: "bad",
}


class EventList(WheelList, can_focus=True):
    """A line for each thing that happened; the newest is the last."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("events")
    DEFAULT_CSS = """
    EventList { height: 1fr; }
    """

    shown: reactive[tuple[Happening, ...]] = reactive((), init=False)
    """The events that pass the filter, oldest first."""
    selected: reactive[int] = reactive(0, init=False)
    """Index of the line under the cursor."""

    class Opened(Message):
        """The user wants to know more of the selected line."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock

    def draw(self, width: int, height: int) -> list[Strip]:
        top = self._top(height)
        lines = self.shown[top : top + height]
        if not lines:
            return [line([("Nothing has happened yet.", self.palette.dim)], width)]
        return [self._row(top + y, one, width) for y, one in enumerate(lines)]

    def show(self, happenings: Iterable[Happening]) -> None:
        """Other lines; who looks at the newest goes on doing so."""
        at_end = self.selected >= len(self.shown) - 1
        self.shown = tuple(happenings)
        self.selected = len(self.shown) if at_end else self.selected
        self.redraw()

    def validate_selected(self, selected: int) -> int:
        return min(max(selected, 0), max(len(self.shown) - 1, 0))

    def watch_selected(self) -> None:
        self.redraw()

    def watch_has_focus(self, has_focus: bool) -> None:
        super().watch_has_focus(has_focus)
        self.redraw()

    def move(self, by: int) -> None:
        """Another line."""
        self.selected += by

    def action_select(self, by: int) -> None:
        self.move(by)

    def action_open(self) -> None:
        if self.shown:
            self.post_message(self.Opened())

    def on_click(self, event: events.Click) -> None:
        y = event.get_content_offset_capture(self).y
        index = self._top(self.content_size.height) + y
        if y >= 0 and index < len(self.shown):
            if index == self.selected:
                self.action_open()
            self.selected = index

    def _top(self, rows: int) -> int:
        last = max(len(self.shown) - rows, 0)
        return min(max(self.selected - rows // 2, 0), last)

    def _row(self, index: int, one: Happening, width: int) -> Strip:
        palette, here = self.palette, index == self.selected
        tone = getattr(palette, TONES[one.tone])
        cursor = palette.key if self.has_focus else palette.dim
        clock = time.strftime("%H:%M:%S", time.localtime(one.at))
        parts = [
            ("▸ " if here else "  ", cursor),
            (f"{clock} ", palette.dim),
            (clip(age_text(self._clock() - one.at), AGE_WIDTH), palette.dim),
            (f"{sign(one.tone)} ", tone),
            (one.text, palette.strong if here else palette.text),
        ]
        return line(parts, width)


class EventsDialog(Dialog[None]):
    """A list to read and to filter; Enter shows the evidence."""

    HELP: ClassVar[str | None] = """\
## Events

What happened to the cluster in the last days: who launched and stopped it, what died
and was mended, which machine was away, and what this console has told. The newest is
at the end; each has its evidence.
"""
    BINDINGS: ClassVar[list[BindingType]] = bindings("dialog", "reading")

    def __init__(self, told: ToastHistory, clock: Callable[[], float]) -> None:
        super().__init__()
        self._happenings = [
            Happening(event.at, EventTone(event.severity), event.text) for event in told
        ]
        self._filter = FilterBar("part of what happened")
        self._list = EventList(clock)

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = "Events"
            keys = (
                ("events.open", "more"),
                ("events.filter", "filters"),
                ("reading.copy", "copies"),
                ("dialog.cancel", "closes"),
            )
            self.show_keys(box, *keys)
            yield self._list
            yield self._filter

    def on_mount(self) -> None:
        self._list.focus()
        self._show()
        self.set_interval(AGE_EVERY_S, self._list.redraw)

    def add(self, story: Iterable[Event]) -> None:
        """More of the story."""
        known = {one.event.number for one in self._happenings if one.event}
        new = (event for event in story if event.number not in known)
        self._happenings += map(happening_of, new)
        self._happenings.sort(key=lambda one: one.at)
        if self.is_mounted:
            self._show()

    def copyable(self) -> Copyable | None:
        """The lines that are shown, as text."""
        lines = [
            f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(one.at))}  {one.text}"
            for one in self._list.shown
        ]
        return Copyable("the events", "\n".join(lines))

    def action_filter(self) -> None:
        self._filter.open()

    @on(FilterBar.Changed)
    def _filtered(self) -> None:
        self._show()

    @on(FilterBar.Left)
    def _left(self) -> None:
        self._list.focus()

    @on(EventList.Opened)
    def _opened(self) -> None:
        chosen = self._list.shown[self._list.selected]
        self.app.push_screen(EvidenceDialog(chosen), self._answered)

    def _answered(self, process: str | None) -> None:
        if process:
            self.dismiss(None)
            self.app.post_message(LogWanted(process))

    def _show(self) -> None:
        wanted = self._filter.text.lower()
        self._list.show(one for one in self._happenings if wanted in one.text.lower())
        count = f"{len(self._list.shown)} of {len(self._happenings)}"
        self._filter.note = count
