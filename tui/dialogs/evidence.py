"""All of one event: its origin, time, advice and the last lines of the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.containers import VerticalScroll
from textual.widgets import Static

from tui.actions.keymap import bindings
from tui.app.messages import Copyable
from tui.dialogs.dialog import Dialog
from tui.model.events import facts
from tui.widgets.palette import palette_from
from tui.widgets.safe_text import safe, safe_line

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType

    from tui.model.events import Happening

LABEL_WIDTH = 9


class EvidenceDialog(Dialog[str | None]):
    """Dismisses with the process whose log is wanted."""

    HELP: ClassVar[str | None] = """\
## Event

One thing that happened, with its evidence: the last lines that the process wrote, as
they were then. The log itself may have gone on since.
"""
    BINDINGS: ClassVar[list[BindingType]] = bindings("dialog", "reading", "evidence")
    DEFAULT_CSS = """
    EvidenceDialog Static { height: auto; }
    """

    def __init__(self, happening: Happening) -> None:
        super().__init__()
        self._happening = happening

    @property
    def _process(self) -> str:
        event = self._happening.event
        return event.process if event else ""

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog") as box:
            box.border_title = "Event"
            log = [("evidence.log", "opens the log")] if self._process else []
            keys = (*log, ("reading.copy", "copies"), ("dialog.cancel", "closes"))
            self.show_keys(box, *keys)
            yield Static(self._text(), markup=False)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "open_log" or bool(self._process)

    def action_open_log(self) -> None:
        self.dismiss(self._process)

    def copyable(self) -> Copyable | None:
        """All of it as text."""
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
