"""One row of the launch settings: what it is called, its field, and what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.containers import Horizontal, Vertical
from textual.widgets import Input, Label, Static

from tui.kit.option_strip import OptionStrip

if TYPE_CHECKING:
    from textual.app import ComposeResult


class LaunchRow(Vertical):
    """A label and a field; what is to know beside it, what is wrong beneath it."""

    DEFAULT_CSS = """
    LaunchRow {
        height: auto;
        & > Horizontal { height: 1; }
        & Label { width: 17; color: $dim; }
        & Input { width: 14; }
        &.-wide Input { width: 1fr; }
        & .launch-hint { width: 1fr; height: 1; padding: 0 0 0 1; color: $dim; }
        &.-wide .launch-hint { display: none; }
        & .launch-wrong {
            display: none;
            height: auto;
            padding: 0 0 0 17;
            color: $bad;
        }
        &.-wrong Label { color: $bad; }
        &.-wrong .launch-wrong { display: block; }
    }
    """

    def __init__(self, name: str, label: str, field: Input | OptionStrip) -> None:
        super().__init__(id=f"row-{name}")
        self.key = name
        self.field = field
        self._label = label
        self._hint = Static("", markup=False, classes="launch-hint")
        self._wrong = Static("", markup=False, classes="launch-wrong")
        wide = isinstance(field, OptionStrip) or name in ("extra_args", "draft")
        self.set_class(wide, "-wide")

    def compose(self) -> ComposeResult:
        yield Horizontal(Label(self._label), self.field, self._hint)
        yield self._wrong

    @property
    def text(self) -> str:
        """What stands in the field."""
        return self.field.value

    def put(self, text: str) -> None:
        """Write into the field."""
        self.field.value = text

    def say(self, hint: str, wrong: str) -> None:
        """Show what is worth knowing, and what is wrong."""
        self._hint.update(hint)
        self._wrong.update(wrong)
        self.set_class(bool(wrong), "-wrong")
        if wrong and self.field.has_focus:
            # It is beneath the field, which may be the last row that is seen.
            self.call_after_refresh(self.scroll_visible, animate=False)
