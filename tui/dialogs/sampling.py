"""The settings of a chat: system prompt and sampling, as fields in a dialog."""

from __future__ import annotations

import math
from typing import NamedTuple

from textual import on
from textual.app import ComposeResult
from textual.containers import Grid, Horizontal, VerticalScroll
from textual.widgets import Button, Input, Label, Static, TextArea

from backends.state import Sampling
from tui.actions import bindings
from tui.dialogs.dialog import Dialog
from tui.widgets.inputs import LineInput


class ChatSettings(NamedTuple):
    system: str
    sampling: Sampling


class SamplingField(NamedTuple):
    """One number, and the range the server accepts."""

    name: str
    """Name of the attribute of ``Sampling``."""
    label: str
    low: float
    high: float
    whole: bool = False
    """Takes no fraction."""
    hint: str = ""
    """Shown while empty, besides the range."""

    @property
    def range_text(self) -> str:
        """``0–2``, ``1 or more``."""
        if self.high == math.inf:
            return f"{self.low:g} or more"
        return f"{self.low:g}–{self.high:.10g}"

    def parse(self, text: str) -> float | int | None:
        """The number typed; None leaves it to the server.

        Raises:
            ValueError: it is no such number; the message is a sentence.
        """
        text = text.strip()
        if not text:
            return None
        value = self._number(text)
        if value is None or not self.low <= value <= self.high:
            kind = "a whole number" if self.whole else "a number"
            raise ValueError(f"{self.label} takes {kind}, {self.range_text}.")
        return value

    def _number(self, text: str) -> float | int | None:
        try:
            value = int(text) if self.whole else float(text.replace(",", "."))
        except ValueError:
            return None
        return value if math.isfinite(value) else None

    def shown(self, sampling: Sampling) -> str:
        value = getattr(sampling, self.name)
        return "" if value is None else f"{value:.10g}"


FIELDS = (
    SamplingField("temperature", "temperature", 0, 5),
    SamplingField("top_p", "top p", 0, 1),
    SamplingField("top_k", "top k", 0, 1_000_000, whole=True, hint="0: all"),
    SamplingField("min_p", "min p", 0, 1),
    SamplingField("repeat_penalty", "repeat penalty", 0, 10, hint="1: none"),
    SamplingField("max_tokens", "max tokens", 1, math.inf, whole=True, hint="no limit"),
    SamplingField("seed", "seed", 0, 2**32 - 1, whole=True, hint="random"),
)


def parse_sampling(texts: dict[str, str]) -> Sampling:
    """Settings from the texts of all fields, by name."""
    values = {field.name: field.parse(texts.get(field.name, "")) for field in FIELDS}
    return Sampling(**values)  # type: ignore[arg-type]


OPENING = "Empty means the server's default."


class SamplingInput(Horizontal):
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

    VERTICAL_BREAKPOINTS = [(0, "-short"), (24, "-tall")]

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
            yield self.buttons()

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
