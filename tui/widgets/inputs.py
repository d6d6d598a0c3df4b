"""Text fields of one row, and a filter."""

from __future__ import annotations

from dataclasses import dataclass

from textual import on
from textual.containers import Horizontal
from textual.message import Message
from textual.reactive import reactive
from textual.widgets import Input, Label

from tui.actions import bindings
from tui.widgets.safe_text import safe_line


class LineInput(Input):
    """An input that fits where a row is all there is."""

    takes_digits = True
    """The key bar shows F1 for 1 while this has the focus."""

    DEFAULT_CSS = """
    LineInput {
        width: 1fr;
        height: 1;
        border: none;
        padding: 0 1;
        background: $panel;
        &:focus { border: none; background-tint: $foreground 0%; }
    }
    """


class FilterBar(Horizontal):
    """A text field with a remark beside it; hidden while it filters nothing."""

    BINDINGS = bindings("filter")

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

    @dataclass
    class Changed(Message):
        """The user typed another filter; empty when it was cleared."""

        bar: FilterBar
        text: str

        @property
        def control(self) -> FilterBar:
            return self.bar

    @dataclass
    class Left(Message):
        """The user is done typing; the focus belongs to what is filtered."""

        bar: FilterBar
        submitted: bool
        """With Enter, not with Esc."""

        @property
        def control(self) -> FilterBar:
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

    @property
    def text(self) -> str:
        return self._input.value

    def fill(self, text: str) -> None:
        self._input.value = text
        self._input.cursor_position = len(text)

    def open(self) -> None:
        self.add_class("-open")
        if self.is_attached and not self.children:
            # Most bars are never opened, and each widget costs the first paint some.
            sign = Label(self._sign, classes="filter-sign", markup=False)
            self.mount(sign, self._input, self._note)
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
