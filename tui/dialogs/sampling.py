"""The dialog for the system prompt and for the sampling of tokens."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.containers import Grid, Horizontal, VerticalScroll
from textual.widgets import Button, Input, Label, Static, TextArea

from backends.state import Sampling
from tui.actions.keymap import bindings
from tui.dialogs.dialog import Dialog
from tui.model.chat_settings import FIELDS, ChatSettings, SamplingField, parse_sampling
from tui.widgets.inputs import LineInput

OPENING = "Empty means the server's default."


class SamplingInput(Horizontal):
    """A label and a field for one number."""

    DEFAULT_CSS = """
    SamplingInput {
        height: 1;
        & > Label { width: 16; color: $dim; }
        &.-wrong > Label { color: $bad; }
    }
    """

    def __init__(self, field: SamplingField, text: str) -> None:
        super().__init__()
        self.field = field
        hint = field.hint or field.range_text
        self.input = LineInput(text, placeholder=hint, id=field.name)

    def compose(self) -> ComposeResult:
        yield Label(self.field.label)
        yield self.input

    def check(self) -> str:
        try:
            self.field.parse(self.input.value)
        except ValueError as error:
            self.add_class("-wrong")
            return str(error)
        self.remove_class("-wrong")
        return ""


class SamplingDialog(Dialog[ChatSettings | None]):
    """Asks for a system prompt and sampling settings; None when cancelled."""

    HELP = """\
## Chat settings

The **system prompt** opens every request. An **empty** number leaves it to
llama-server. Settings count from the next question on and are remembered.

**Enter** in a number applies too.
"""

    VERTICAL_BREAKPOINTS = [
        (0, "-short"),
        (24, "-tall"),
    ]

    BINDINGS = bindings("sampling")
    TYPING = True

    DEFAULT_CSS = """
    SamplingDialog {
        & .sampling-scroll { height: auto; max-height: 1fr; scrollbar-size: 1 1; }
        & TextArea {
            height: 5;
            border: none;
            padding: 0 1;
            background: $panel;
            &:focus { border: none; }
        }
        & .sampling-caption { color: $dim; }
        & Grid {
            grid-size: 2;
            grid-gutter: 0 2;
            grid-rows: 1;
            height: auto;
            margin: 1 0;
        }
        & .sampling-remark {
            height: 1;
            color: $dim;
            &.-wrong { color: $bad; }
        }
        & .sampling-buttons {
            height: 1;
            align-horizontal: right;
            & > Button { margin: 0 0 0 1; min-width: 12; width: auto; }
        }
    }
    SamplingDialog.-short TextArea { height: 3; }
    """

    def __init__(self, settings: ChatSettings) -> None:
        super().__init__()
        self._system = TextArea(
            settings.system,
            placeholder="For example: Answer in one paragraph.",
            compact=True,
            highlight_cursor_line=False,
            id="system",
        )
        self._numbers = [
            SamplingInput(field, field.shown(settings.sampling)) for field in FIELDS
        ]
        self._remark = Static(OPENING, classes="sampling-remark", markup=False)

    def compose(self) -> ComposeResult:
        keys = ("sampling.apply", "applies"), ("sampling.cancel", "cancels")
        with self.frame("Chat settings", *keys) as box:
            box.styles.width = 72
            with VerticalScroll(classes="sampling-scroll", can_focus=False):
                yield Label("System prompt", classes="sampling-caption")
                yield self._system
                with Grid():
                    yield from self._numbers
            yield self._remark
            with Horizontal(classes="sampling-buttons"):
                yield Button("Cancel", id="cancel", compact=True)
                yield Button("Reset", id="reset", compact=True)
                yield Button("Apply", id="apply", compact=True, variant="primary")

    def on_mount(self) -> None:
        self._system.focus()
        self._system.move_cursor(self._system.document.end)

    @on(Input.Changed)
    def _checked(self) -> None:
        self._is_wrong()

    def _is_wrong(self) -> bool:
        complaints = [number.check() for number in self._numbers]
        first = next(filter(None, complaints), "")
        self._remark.update(first or OPENING)
        self._remark.set_class(bool(first), "-wrong")
        return bool(first)

    @on(Input.Submitted)
    @on(Button.Pressed, "#apply")
    def action_apply(self) -> None:
        if self._is_wrong():
            return
        texts = {number.field.name: number.input.value for number in self._numbers}
        settings = ChatSettings(self._system.text.strip(), parse_sampling(texts))
        self.dismiss(settings)

    @on(Button.Pressed, "#reset")
    def _reset(self) -> None:
        self._system.load_text("")
        for number in self._numbers:
            number.input.value = number.field.shown(Sampling())

    @on(Button.Pressed, "#cancel")
    def action_cancel(self) -> None:
        self.dismiss(None)
