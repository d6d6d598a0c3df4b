"""What toasts have said, newest first."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from tui.actions import bindings
from tui.messages import Copyable
from tui.widgets.palette import palette_from

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType

    from tui.events import EventLog

_TONES = {"information": "ok", "warning": "warn", "error": "bad"}


class EventsDialog(ModalScreen[None]):
    """A list to read; ``y`` copies all of it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings("dialog"),
        ("e,q", "cancel", "close"),
        ("y", "app.copy", "copy"),
    ]
    DEFAULT_CSS = """
    EventsDialog Static {
        height: auto;
    }
    """

    def __init__(self, events: EventLog) -> None:
        """Show these events."""
        super().__init__(classes="dialog-screen")
        self._events = list(events)[::-1]

    def compose(self) -> ComposeResult:
        """One paragraph per event."""
        with VerticalScroll(classes="dialog") as box:
            box.border_title = "Events"
            box.border_subtitle = "y copies · esc closes"
            yield Static(self._text(), markup=False)

    def copyable(self) -> Copyable | None:
        """All events as text."""
        return Copyable("the events", self._text().plain)

    def action_cancel(self) -> None:
        """Close."""
        self.dismiss(None)

    def _text(self) -> Text:
        if not self._events:
            return Text("Nothing has happened yet.")
        palette = palette_from(self.app.theme_variables)
        text = Text()
        for event in self._events:
            clock = time.strftime("%H:%M:%S", time.localtime(event.at))
            text.append(f"{clock}  ", palette.dim)
            text.append("● ", getattr(palette, _TONES[event.severity]))
            text.append(f"{event.text}\n")
        text.right_crop(1)
        return text
