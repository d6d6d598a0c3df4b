"""To read: help, events with their evidence, a line of a log, and JSON."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable

import msgspec
from rich.table import Table
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.dom import DOMNode
from textual.screen import Screen
from textual.strip import Strip
from textual.widgets import Markdown, Static

from backends.redaction import without_keys
from backends.state import Event, EventTone, to_json
from tui.actions import bindings
from tui.app.messages import Copyable, LogWanted, Raw
from tui.dialogs.dialog import Dialog
from tui.model.events import SIGNS, Happening, facts, happening_of
from tui.model.peer_words import age_text
from tui.widgets.inputs import FilterBar
from tui.widgets.keys import with_keys
from tui.widgets.palette import palette_from
from tui.widgets.row_list import ChoiceList, RowList
from tui.widgets.safe_text import safe, safe_line
from tui.widgets.sources import LEGEND
from tui.widgets.strips import clip, line
from tui.widgets.text_search import TextLine, TextSearch

KEYS_WIDTH = 15
AGE_WIDTH = 6
LABEL_WIDTH = 9
AGE_EVERY_S = 10.0
MEMBER = re.compile(r'\s*"(?:[^"\\]|\\.)*":')
"""The name of a member, in indented JSON."""
TONES = {EventTone.INFORMATION: "ok", EventTone.WARNING: "warn", EventTone.ERROR: "bad"}


class HelpDialog(Dialog[None]):
    """Reads help and keys from the screen behind it."""

    BINDINGS = bindings("dialog", "reading")

    def __init__(self, about: Screen[object]) -> None:
        super().__init__()
        self._about = about

    def compose(self) -> ComposeResult:
        nodes = (self._about.focused or self._about).ancestors_with_self
        text = next(filter(None, (getattr(node, "HELP", "") for node in nodes)), "")
        title = "Help"
        if text.startswith("#"):
            heading, _, text = text.partition("\n")
            title = f"Help · {heading.lstrip('# ')}"
        keys = ("dialog.cancel", "closes")
        with self.frame(title, keys, box=VerticalScroll):
            if text:
                yield Markdown(with_keys(self.app, text))
            if getattr(self._about, "FIGURES", False):
                yield Markdown(LEGEND)
            yield Static(self._keys(), markup=False)

    def _keys(self) -> Table:
        palette = palette_from(self.app.theme_variables)
        table = Table.grid(padding=(0, 1), expand=True)
        table.add_column(style=palette.key, width=KEYS_WIDTH)
        table.add_column(ratio=1)
        for keys, text in keys_of(self._about):
            table.add_row(keys, text)
        return table


def keys_of(screen: Screen[object]) -> list[tuple[str, str]]:
    rows: dict[tuple[DOMNode, str], tuple[list[str], Binding]] = {}
    for node, binding, _enabled, _tooltip in screen.active_bindings.values():
        if not binding.id and not binding.tooltip:
            continue
        row = rows.setdefault((node, binding.action), ([], binding))
        key = screen.app.get_key_display(binding.with_key(binding.key))
        if key not in row[0]:
            row[0].append(key)
    answers = (choice for one in screen.query(ChoiceList) for choice in one.rows)
    return [
        *((choice.key, choice.label) for choice in answers if choice.key),
        *(
            ("  ".join(keys), binding.tooltip or binding.description)
            for keys, binding in rows.values()
        ),
    ]


class EventList(RowList, can_focus=True):
    """A line for each thing that happened; the newest is the last."""

    BINDINGS = bindings("events")
    DEFAULT_CSS = "EventList { height: 1fr; }"

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock

    def draw(self, width: int, height: int) -> list[Strip]:
        if not self.rows:
            return [line([("Nothing has happened yet.", self.palette.dim)], width)]
        return super().draw(width, height)

    def show(self, happenings: Iterable[Happening]) -> None:
        """Other lines; who looks at the newest goes on doing so."""
        at, at_end = self.selected, self.selected >= len(self.rows) - 1
        self.rows = tuple(happenings)
        self.selected = len(self.rows) if at_end else at

    def row(self, row: Happening, here: bool, width: int) -> Strip:
        palette = self.palette
        tone = getattr(palette, TONES[row.tone])
        cursor = palette.key if self.has_focus else palette.dim
        clock = time.strftime("%H:%M:%S", time.localtime(row.at))
        parts = [
            ("▸ " if here else "  ", cursor),
            (f"{clock} ", palette.dim),
            (clip(age_text(self._clock() - row.at), AGE_WIDTH), palette.dim),
            (f"{SIGNS[row.tone]} ", tone),
            (row.text, palette.strong if here else palette.text),
        ]
        return line(parts, width)


class EventsDialog(Dialog[None]):
    """A list to read and to filter; Enter shows the evidence."""

    HELP = """\
## Events

What happened to the cluster in the last days: who launched and stopped it, what died
and was mended, which machine was away, and what this console has told. The newest is
at the end; each has its evidence.
"""
    BINDINGS = bindings("dialog", "reading", "json")

    def __init__(self, told: Iterable[Happening], clock: Callable[[], float]) -> None:
        super().__init__()
        self._happenings = list(told)
        self._filter = FilterBar("part of what happened")
        self._list = EventList(clock)

    def compose(self) -> ComposeResult:
        keys = (
            ("events.open", "more"),
            ("events.filter", "filters"),
            ("reading.copy", "copies"),
            ("dialog.cancel", "closes"),
        )
        with self.frame("Events", *keys):
            yield self._list
            yield self._filter

    def on_mount(self) -> None:
        self._list.focus()
        self._show()
        self.set_interval(AGE_EVERY_S, self._list.redraw)

    def add(self, story: Iterable[Event]) -> None:
        known = {one.event.number for one in self._happenings if one.event}
        new = (event for event in story if event.number not in known)
        self._happenings += map(happening_of, new)
        self._happenings.sort(key=lambda one: one.at)
        if self.is_mounted:
            self._show()

    def raw(self) -> Raw | None:
        return _raw(self._list.chosen)

    def copyable(self) -> Copyable | None:
        lines = [
            f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(one.at))}  {one.text}"
            for one in self._list.rows
        ]
        return Copyable("the events", "\n".join(lines))

    def action_filter(self) -> None:
        self._filter.open()

    @on(FilterBar.Left)
    def _left(self) -> None:
        self._list.focus()

    @on(EventList.Picked)
    def _opened(self, message: EventList.Picked) -> None:
        self.app.push_screen(EvidenceDialog(message.row), self._answered)

    def _answered(self, process: str | None) -> None:
        if process:
            self.dismiss(None)
            self.app.post_message(LogWanted(process))

    @on(FilterBar.Changed)
    def _show(self) -> None:
        wanted = self._filter.text.lower()
        self._list.show(one for one in self._happenings if wanted in one.text.lower())
        self._filter.note = f"{len(self._list.rows)} of {len(self._happenings)}"


class EvidenceDialog(Dialog[str | None]):
    """Dismisses with the process whose log is wanted."""

    HELP = """\
## Event

One thing that happened, with its evidence: the last lines that the process wrote, as
they were then. The log itself may have gone on since.
"""
    BINDINGS = bindings("dialog", "reading", "evidence", "json")

    def __init__(self, happening: Happening) -> None:
        super().__init__()
        self._happening = happening

    @property
    def _process(self) -> str:
        event = self._happening.event
        return event.process if event else ""

    def compose(self) -> ComposeResult:
        log = [("evidence.log", "opens the log")] if self._process else []
        keys = (*log, ("reading.copy", "copies"), ("dialog.cancel", "closes"))
        with self.frame("Event", *keys, box=VerticalScroll):
            yield Static(self._text(), markup=False)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "open_log" or bool(self._process)

    def action_open_log(self) -> None:
        self.dismiss(self._process)

    def raw(self) -> Raw | None:
        return _raw(self._happening)

    def copyable(self) -> Copyable | None:
        return Copyable("the event", self._text().plain)

    def _text(self) -> Text:
        palette = palette_from(self.app.theme_variables)
        text = Text().append(f"{safe(self._happening.text)}\n", palette.strong)
        for label, fact in facts(self._happening):
            text.append(f"\n{label:{LABEL_WIDTH}}", palette.dim)
            text.append(safe_line(fact), palette.text)
        event = self._happening.event
        for said in event.evidence if event else ():
            text.append(f"\n  {safe_line(said)}", palette.dim)
        return text


class WholeLineDialog(Dialog[None]):
    HELP = """\
## Line

The selected line of a log, from its first character to its last.
"""
    BINDINGS = bindings("dialog", "reading")

    def __init__(self, log: str, text: str) -> None:
        super().__init__()
        self._log = log
        self._text = text

    def compose(self) -> ComposeResult:
        keys = ("reading.copy", "copies"), ("dialog.cancel", "closes")
        with self.frame(f"Line of {self._log}", *keys, box=VerticalScroll):
            yield Static(self._text, markup=False)

    def copyable(self) -> Copyable:
        return Copyable("the line", self._text)


def _raw(happening: Happening | None) -> Raw | None:
    event = happening.event if happening else None
    return Raw(f"event {event.number}", event) if event else None


def raw_text(value: object) -> str:
    """The JSON of a value of the API, indented, with secrets left out."""
    found = msgspec.json.decode(to_json(value))
    return to_json(without_keys(found), indent=2)


class RawDialog(Dialog[None]):
    HELP = """\
## JSON

What you had selected, as the controller's API gives it to this console and to scripts.
Keys, passwords and paths of key files are left out.

- **{search.find}** searches, **{search.next} {search.previous}** go from match to match
- **{reading.copy}** copies all of it, or what is selected with the mouse
"""
    BINDINGS = bindings("dialog", "raw")

    def __init__(self, raw: Raw, text: str) -> None:
        super().__init__()
        self._raw = raw
        self._text = text
        lines = map(TextLine, text.split("\n"))
        self._search = TextSearch(lines, labels=MEMBER)

    def compose(self) -> ComposeResult:
        keys = (
            ("search.find", "searches"),
            ("raw.copy", "copies"),
            ("dialog.cancel", "closes"),
        )
        with self.frame(f"JSON · {self._raw.what}", *keys):
            yield self._search

    def on_mount(self) -> None:
        self._search.text.focus()

    def copyable(self) -> Copyable:
        if selected := self.get_selected_text():
            return Copyable("the selection", selected)
        return Copyable(f"the JSON of {self._raw.what}", self._text)

    @on(TextSearch.Left)
    def _left(self) -> None:
        self.dismiss(None)
