"""One row that appears on ``/`` to filter what is above it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.containers import Horizontal
from textual.message import Message
from textual.reactive import reactive
from textual.widgets import Input, Label

from tui.actions.keymap import bindings
from tui.widgets.choosy_input import LineInput
from tui.widgets.safe_text import safe_line

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType


class FilterBar(Horizontal):
    """A text field with a remark beside it; hidden while it filters nothing."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("filter")

    DEFAULT_CSS = """
    FilterBar {
        height: 1;
        display: none;
        background: $panel;
        &.-open { display: block; }
        & > .filter-sign {
            width: auto;
            padding: 0 1;
            color: $primary;
            text-style: bold;
        }
        & > LineInput { padding: 0; }
        & > .filter-note {
            width: auto;
            max-width: 60%;
            padding: 0 1;
            color: $dim;
            text-overflow: ellipsis;
            text-wrap: nowrap;
        }
        &.-wrong {
            height: auto;
            max-height: 4;
            layout: grid;
            grid-size: 2;
            grid-columns: auto 1fr;
            grid-rows: 1 auto;
            & > .filter-note {
                column-span: 2;
                width: 1fr;
                max-width: 100%;
                height: auto;
                color: $bad;
                text-wrap: wrap;
            }
        }
    }
    """

    note: reactive[str] = reactive("", layout=True)
    """The result of the filter: a count, or its error."""
    wrong: reactive[bool] = reactive(False, toggle_class="-wrong")
    """The note says what is wrong with the filter."""

    @dataclass
    class Changed(Message):
        """The user typed another filter; empty when it was cleared."""

        bar: FilterBar
        text: str

        @property
        def control(self) -> FilterBar:
            """The bar that changed."""
            return self.bar

    @dataclass
    class Left(Message):
        """The user is done typing; the focus belongs to what is filtered."""

        bar: FilterBar
        submitted: bool
        """With Enter, not with Esc."""

        @property
        def control(self) -> FilterBar:
            """The bar that was left."""
            return self.bar

    def __init__(
        self,
        placeholder: str,
        *,
        sign: str = "/",
        id: str | None = None,  # noqa: A002
    ) -> None:
        super().__init__(id=id)
        self._sign = sign
        self._input = LineInput(placeholder=placeholder)
        self._note = Label(classes="filter-note", markup=False)

    def compose(self) -> ComposeResult:
        yield Label(self._sign, classes="filter-sign", markup=False)
        yield self._input
        yield self._note

    @property
    def text(self) -> str:
        """The filter as typed."""
        return self._input.value

    def fill(self, text: str) -> None:
        """Put a text into the field, to go on from its end."""
        self._input.value = text
        self._input.cursor_position = len(text)

    def open(self) -> None:
        """Show the bar and type into it."""
        self.add_class("-open")
        self._input.focus()

    def watch_note(self, note: str) -> None:
        self._note.update(safe_line(note))

    def action_clear(self) -> None:
        self._input.value = ""
        self.remove_class("-open")
        self.post_message(self.Left(self, submitted=False))

    @on(Input.Changed)
    def _text_changed(self, event: Input.Changed) -> None:
        event.stop()
        self.post_message(self.Changed(self, event.value))

    @on(Input.Submitted)
    def _text_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if not event.value:
            self.remove_class("-open")
        self.post_message(self.Left(self, submitted=True))
