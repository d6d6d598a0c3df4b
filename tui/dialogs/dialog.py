"""The base of all dialogs, and short questions: a decision or a line of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from textual import on
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Button, Input, Static

from backends.state import ClusterBrief, Peer
from tui.actions import bindings
from tui.model.names import model_name
from tui.widgets.background_errors import report_worker
from tui.widgets.inputs import LineInput
from tui.widgets.keys import key_link
from tui.widgets.row_list import Choice, ChoiceList
from tui.widgets.safe_text import safe, safe_line
from tui.widgets.strips import retitle

Result = TypeVar("Result")


class Dialog(ModalScreen[Result]):
    """Stands before the screen; the app lets no key through to the screen."""

    BINDINGS = bindings("dialogs")
    FIGURES = False
    """True if help explains how figures show their source."""

    TYPING = False
    """True if a text field takes letters here, so that hints name other keys."""

    # Here, all of them, so that the first screen's styles are read sooner.
    SCOPED_CSS = False
    DEFAULT_CSS = """
    Dialog { align: center middle; background: $background 60%; }

    .dialog {
        border: round $pane-border-focus;
        border-title-color: $pane-title;
        border-title-style: bold;
        border-subtitle-color: $dim;
        background: $surface;
        padding: 0 1;
        width: 64;
        max-width: 96%;
        height: auto;
        max-height: 90%;
    }

    .dialog-buttons {
        height: 1;
        align-horizontal: right;
        & > Button { margin: 0 0 0 1; min-width: 12; width: auto; }
    }

    ThemeDialog {
        align: right middle;
        background: transparent;
        & .dialog { width: 36; margin: 0 2; }
    }

    /* Beside what it is about. */
    MenuDialog {
        align: left top;
        background: transparent;
        & .dialog { max-width: 100%; }
    }

    /* The bar above shows the plan under the cursor. */
    BestDialog {
        align: center bottom;
        background: transparent;
        & .dialog { width: 96%; max-width: 110; margin: 0 0 1 0; }
    }

    HelpDialog .dialog { width: 88; scrollbar-size-vertical: 1; }
    HelpDialog Markdown { background: transparent; padding: 0; margin: 0; }
    HelpDialog MarkdownParagraph { margin: 0 0 1 0; }

    EventsDialog .dialog { width: 110; height: 90%; max-height: 34; }

    RawDialog .dialog { width: 110; height: 90%; }

    EvidenceDialog .dialog { width: 100; scrollbar-size-vertical: 1; }

    PeerDialog .dialog { width: 96; scrollbar-size-vertical: 1; }

    ProcessDialog .dialog { width: 120; scrollbar-size-vertical: 1; }

    ModelPicker .dialog { width: 92%; max-width: 104; height: 84%; max-height: 30; }

    FinderDialog .dialog { width: 104; height: 22; }

    ChatsDialog .dialog, PlansDialog .dialog { width: 92%; max-width: 100; }

    RaceSetup .dialog { width: 92%; max-width: 100; }
    RaceDialog .dialog { width: 96%; max-width: 180; height: 94%; max-height: 94%; }

    QuantsDialog .dialog { width: 110; max-width: 96%; }
    """

    on_worker_state_changed = report_worker

    def dismiss(self, result: Result | None = None) -> AwaitComplete:
        """Close with a result, once: fast typing may repeat the key.

        With what stands before it, as help does: it may have come while we asked.
        """
        stack = self.app.screen_stack
        if self not in stack:
            return AwaitComplete()
        for before in reversed(stack[stack.index(self) + 1 :]):
            before.dismiss(None)
        return super().dismiss(result)

    @on(Button.Pressed, "#cancel")
    def _cancel_pressed(self) -> None:
        self.action_cancel()

    def action_cancel(self) -> None:
        self.dismiss(None)

    def show_peers(self, peers: tuple[Peer, ...]) -> None:
        """Follow the peers, in a dialog about them."""

    def frame(
        self, title: str, *keys: tuple[str, str], box: type[Widget] = Vertical
    ) -> Widget:
        """The box of a dialog, for its content; its frame names these keys."""
        made = box(classes="dialog")
        retitle(made, title)
        self.show_keys(made, *keys)
        return made

    def buttons(self) -> Widget:
        return Horizontal(
            Button("Cancel", id="cancel", compact=True),
            Button("Reset", id="reset", compact=True),
            Button("Apply", id="apply", compact=True, variant="primary"),
            classes="dialog-buttons",
        )

    def show_keys(self, box: Widget, *named: tuple[str, str]) -> None:
        hints = [key_link(self.app, *one) for one in named]
        hints.append(key_link(self.app, "dialogs.help", "help", typing=self.TYPING))
        box.border_subtitle = " · ".join(filter(None, hints))


class ChoiceDialog(Dialog[str | None]):
    """Dismisses with the id of the answer, or None when it was closed."""

    BINDINGS = bindings("dialog")
    DEFAULT_CSS = "ChoiceDialog Static { margin: 0 0 1 0; }"

    def __init__(self, title: str, text: str, choices: Sequence[Choice]) -> None:
        super().__init__()
        self._title = title
        self._text = text
        self._choices = choices

    def compose(self) -> ComposeResult:
        keys = ("choice.choose", "chooses"), ("dialog.cancel", "cancels")
        with self.frame(self._title, *keys):
            yield Static(safe(self._text), markup=False)
            yield ChoiceList(self._choices)

    @on(ChoiceList.Picked)
    def _chosen(self, message: ChoiceList.Picked) -> None:
        message.stop()
        self.dismiss(message.row.id)


def confirm(title: str, text: str, verb: str, key: str) -> ChoiceDialog:
    """A dialog for something that ends or cuts off something: Cancel comes first."""
    return ChoiceDialog(
        title, text, (Choice("cancel", "Cancel", "n"), Choice("yes", verb, key))
    )


HOW_TO_ADD = "dllm-tui --cluster NAME opens another."


def clusters_dialog(briefs: Sequence[ClusterBrief], here: str) -> ChoiceDialog:
    """Offer the clusters, the present one first; the answer is a name."""
    others = [brief for brief in briefs if brief.name != here]
    present = [b for b in briefs if b.name == here] or [ClusterBrief(name=here)]
    choices = []
    for number, brief in enumerate(present + others, start=1):
        model = f"  {model_name(brief.model)}" if brief.model else ""
        is_here = "  (here)" if number == 1 else ""
        key, detail = str(number), f"{brief.state:9}{model}{is_here}"
        choices.append(Choice(brief.name, brief.name, key * (number < 10), detail))
    return ChoiceDialog("Clusters", HOW_TO_ADD, choices)


class LineDialog(Dialog[str | None]):
    """Dismisses with the typed line, or None when the user closes it."""

    BINDINGS = bindings("dialog")
    TYPING = True
    DEFAULT_CSS = "LineDialog Static { margin: 1 0 0 0; color: $dim; }"

    def __init__(self, title: str, value: str, placeholder: str, remark: str) -> None:
        super().__init__()
        self._title = title
        self._remark = remark
        self._input = LineInput(value, placeholder=safe_line(placeholder))

    def compose(self) -> ComposeResult:
        with self.frame(self._title, ("dialog.cancel", "cancels")):
            yield self._input
            yield Static(safe_line(self._remark), markup=False)

    def on_mount(self) -> None:
        self._input.focus()

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.dismiss(event.value)
