"""The speed with a draft and without, and of several clients, measured: in a line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.state import NGRAM_DRAFT, NO_DRAFT
from backends.units import format_count, format_factor, format_rate, format_speed
from tui.work.names import model_name
from tui.work.quantities import acceptance_text

if TYPE_CHECKING:
    from backends.state import ClusterSnapshot, DraftTrial


def paces_text(snapshot: ClusterSnapshot) -> str:
    """``61.2 tok/s, 22.5 without a draft``; empty before both were measured."""
    draft, tokens = snapshot.drafts_with
    alone = [p for p in snapshot.paces if p.clients == 1]
    mine = [p for p in alone if (p.draft, p.draft_max) == (draft, tokens)]
    others = [p for p in alone if (p.draft == NO_DRAFT) != (draft == NO_DRAFT)]
    if not mine or not others:
        return ""
    best = max(others, key=lambda pace: pace.tok_per_s)
    other = draft_name(best.draft, best.draft_max)
    rate = format_rate(best.tok_per_s).strip()
    return f"{format_speed(mine[0].tok_per_s)}, {rate} {other}"


def draft_speed_text(snapshot: ClusterSnapshot) -> str:
    """The acceptance, and the speed with a draft and without, as far as known."""
    told = acceptance_text(snapshot.speed.acceptance), paces_text(snapshot)
    return " · ".join(filter(None, told))


def together_text(snapshot: ClusterSnapshot) -> str:
    """``4 clients 64.0 tok/s together``; empty before several were answered at once."""
    several = sorted(
        (pace.clients, pace.tok_per_s)
        for pace in snapshot.paces
        if pace.clients > 1 and (pace.draft, pace.draft_max) == snapshot.drafts_with
    )
    told = (f"{n} clients {format_rate(rate).strip()}" for n, rate in several)
    return f"{', '.join(told)} tok/s together" if several else ""


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
