"""A question that needs a decision, with its subject in plain words."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.containers import Vertical
from textual.widgets import Static

from backends.state import ClusterBrief
from tui.actions.keymap import bindings
from tui.dialogs.dialog import Dialog
from tui.model.names import model_name
from tui.widgets.choice_list import Choice, ChoiceList
from tui.widgets.safe_text import safe
from tui.widgets.strips import retitle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType


class ChoiceDialog(Dialog[str | None]):
    """Dismisses with the id of the answer, or None when it was closed."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("dialog")
    DEFAULT_CSS = """
    ChoiceDialog Static {
        height: auto;
        margin: 0 0 1 0;
    }
    """

    def __init__(self, title: str, text: str, choices: Sequence[Choice]) -> None:
        super().__init__()
        self._title = title
        self._text = text
        self._choices = choices

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            retitle(box, self._title)
            keys = ("choice.choose", "chooses"), ("dialog.cancel", "cancels")
            self.show_keys(box, *keys)
            yield Static(safe(self._text), markup=False)
            yield ChoiceList(self._choices)

    @on(ChoiceList.Chosen)
    def _chosen(self, message: ChoiceList.Chosen) -> None:
        message.stop()
        self.dismiss(message.choice.id)


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
    choices = [_choice(index, brief) for index, brief in enumerate(present + others)]
    return ChoiceDialog("Clusters", HOW_TO_ADD, choices)


def _choice(index: int, brief: ClusterBrief) -> Choice:
    model = f"  {model_name(brief.model)}" if brief.model else ""
    here = "  (here)" if index == 0 else ""
    key = str(index + 1) if index < 9 else ""
    return Choice(brief.name, brief.name, key, f"{brief.state:9}{model}{here}")
