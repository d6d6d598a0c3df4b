"""The speed with a draft and without, and of several clients, measured: in a line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.state import NGRAM_DRAFT, NO_DRAFT
from backends.units import format_rate, format_speed
from tui.work.names import model_name

if TYPE_CHECKING:
    from backends.state import ClusterSnapshot, Pace


def paces_text(snapshot: ClusterSnapshot) -> str:
    """``61.2 tok/s, 22.5 without a draft``; empty before both were measured."""
    draft, tokens = _present(snapshot)
    alone = [p for p in snapshot.paces if p.clients == 1]
    mine = [p for p in alone if (p.draft, p.draft_max) == (draft, tokens)]
    others = [p for p in alone if (p.draft == NO_DRAFT) != (draft == NO_DRAFT)]
    if not mine or not others:
        return ""
    best = max(others, key=lambda pace: pace.tok_per_s)
    other = f"{format_rate(best.tok_per_s).strip()} {_way(best)}"
    return f"{format_speed(mine[0].tok_per_s)}, {other}"


def together_text(snapshot: ClusterSnapshot) -> str:
    """``4 clients 64.0 tok/s together``; empty before several were answered at once."""
    several = sorted(
        (pace.clients, pace.tok_per_s)
        for pace in snapshot.paces
        if pace.clients > 1 and (pace.draft, pace.draft_max) == _present(snapshot)
    )
    told = (f"{n} clients {format_rate(rate).strip()}" for n, rate in several)
    return f"{', '.join(told)} tok/s together" if several else ""


def _present(snapshot: ClusterSnapshot) -> tuple[str, int]:
    """What guesses now, and how far."""
    plan = snapshot.plan
    if plan is None or plan.speculation is None:
        return NO_DRAFT, 0
    return plan.server.draft, plan.server.draft_max


def _way(pace: Pace) -> str:
    if pace.draft == NO_DRAFT:
        return "without a draft"
    name = pace.draft if pace.draft == NGRAM_DRAFT else model_name(pace.draft)
    return f"with {name} ({pace.draft_max} tokens)"
