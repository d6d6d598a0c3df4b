"""The line on drafting and on the results of its trials."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.state import NGRAM_DRAFT, NO_DRAFT
from backends.units import format_count, format_factor, format_speed
from tui.model.names import model_name

if TYPE_CHECKING:
    from backends.state import ClusterSnapshot, DraftTrial


def auto_text(snapshot: ClusterSnapshot) -> str:
    """The draft that ``auto`` runs, and why; empty if the plan says the draft."""
    now = snapshot.draft_now
    if now is None:
        return ""
    chosen = draft_name(*snapshot.drafts_with)
    return " · ".join(filter(None, (f"auto: {chosen}", now.why, now.doing)))


def trials_text(snapshot: ClusterSnapshot) -> tuple[str, ...]:
    """The measured speed of each draft."""
    now = snapshot.draft_now
    return tuple(map(_trial, now.trials)) if now else ()


def _trial(trial: DraftTrial) -> str:
    rate = format_speed(trial.tok_per_s)
    times = "" if trial.speedup is None else f" ({format_factor(trial.speedup)})"
    return f"{draft_name(trial.draft, trial.draft_max)}: {rate}{times}"


def draft_name(draft: str, draft_max: int) -> str:
    """``with small (8 tokens)``, or ``without a draft``."""
    if draft == NO_DRAFT:
        return "without a draft"
    name = draft if draft == NGRAM_DRAFT else model_name(draft)
    return f"with {name} ({format_count(draft_max, 'token')})"
