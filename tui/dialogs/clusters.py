"""The clusters of this machine, to go from one to another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.state import ClusterBrief
from tui.dialogs.choice import ChoiceDialog
from tui.kit.choice_list import Choice
from tui.work.names import model_name

if TYPE_CHECKING:
    from collections.abc import Sequence

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
