"""A line of text to be given: a name, the path of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.containers import Vertical
from textual.widgets import Input, Static

from tui.actions.keymap import bindings
from tui.dialogs.dialog import Dialog
from tui.widgets.inputs import LineInput
from tui.widgets.safe_text import safe_line
from tui.widgets.strips import retitle

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType


class LineDialog(Dialog[str | None]):
    """Dismisses with the typed line, or None when the user closes it."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("dialog")
    TYPING: ClassVar[bool] = True
    DEFAULT_CSS = """
    LineDialog Static { height: auto; margin: 1 0 0 0; color: $dim; }
    """

    def __init__(self, title: str, value: str, placeholder: str, remark: str) -> None:
        super().__init__()
        self._title = title
        self._remark = remark
        self._input = LineInput(value, placeholder=safe_line(placeholder))

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            retitle(box, self._title)
            self.show_keys(box, ("dialog.cancel", "cancels"))
            yield self._input
            yield Static(safe_line(self._remark), markup=False)

    def on_mount(self) -> None:
        self._input.focus()

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.dismiss(event.value)

    def action_cancel(self) -> None:
        self.dismiss(None)
