"""Picking a theme: the one under the cursor is shown at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.containers import Vertical
from textual.widgets import OptionList

from tui.actions.keymap import bindings
from tui.dialogs.dialog import Dialog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType


class ThemeDialog(Dialog[str | None]):
    """Dismisses with a theme's name; Esc brings the one before back."""

    HELP: ClassVar[str | None] = """\
## Theme

The theme under the cursor is shown at once. It is remembered when it is kept, and
what was before comes back when it is not.
"""
    BINDINGS: ClassVar[list[BindingType]] = bindings("dialog")
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
        with Vertical(classes="dialog") as box:
            box.border_title = "Theme"
            keys = ("choice.choose", "keeps"), ("dialog.cancel", "undoes")
            self.show_keys(box, *keys)
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
