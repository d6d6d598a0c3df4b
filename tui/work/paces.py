"""The speed with a draft and without, both measured: in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.state import NGRAM_DRAFT, NO_DRAFT
from backends.units import format_rate, format_speed
from tui.work.names import model_name

if TYPE_CHECKING:
    from backends.state import ClusterSnapshot, Pace


def paces_text(snapshot: ClusterSnapshot) -> str:
    """``61.2 tok/s, 22.5 without a draft``; empty before both were measured."""
    plan = snapshot.plan
    if plan is None:
        return ""
    draft = plan.server.draft if plan.speculation else NO_DRAFT
    tokens = plan.server.draft_max if plan.speculation else 0
    mine = [p for p in snapshot.paces if (p.draft, p.draft_max) == (draft, tokens)]
    others = [p for p in snapshot.paces if (p.draft == NO_DRAFT) != (draft == NO_DRAFT)]
    if not mine or not others:
        return ""
    best = max(others, key=lambda pace: pace.tok_per_s)
    other = f"{format_rate(best.tok_per_s).strip()} {_way(best)}"
    return f"{format_speed(mine[0].tok_per_s)}, {other}"


def _way(pace: Pace) -> str:
    if pace.draft == NO_DRAFT:
        return "without a draft"
    name = pace.draft if pace.draft == NGRAM_DRAFT else model_name(pace.draft)
    return f"with {name} ({pace.draft_max} tokens)"
