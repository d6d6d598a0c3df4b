"""What ``--draft auto`` says of ways to guess: names, figures, networks."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from backends.planning.speculating import PLAIN, way_of
from backends.state import NGRAM_DRAFT
from backends.units import format_count, format_factor, format_speed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from backends.planning.speculating import Way
    from backends.state import DraftTrial


def told(way: Way) -> str:
    """``with small, 8 tokens``, or ``without a draft``."""
    if way == PLAIN:
        return "without a draft"
    name = PurePath(way.draft.rpartition(":")[2]).stem
    name = NGRAM_DRAFT if way.draft == NGRAM_DRAFT else name
    return f"with {name}, {format_count(way.draft_max, 'token')}"


def measured_text(way: Way, tok_per_s: float) -> str:
    """``Measured with small, 8 tokens: 61.2 tok/s``."""
    return f"Measured {told(way)}: {format_speed(tok_per_s).strip()}"


def verdict_text(speedup: float | None) -> str:
    """``×2.72 against none``, or that nothing is better than none."""
    if speedup is None:
        return "what was measured tells no difference"
    if speedup == 1.0:
        return "no way to guess was faster"
    return f"{format_factor(speedup)} against none"


def chosen_text(way: Way, before: Way | None, trials: Iterable[DraftTrial]) -> str:
    """``Chosen: with small, 8 tokens (61.2 tok/s, ×2.72 against none); before: …``.

    ``trials`` are judged; ``before`` is what it takes the place of, where that is told.
    """
    by_way = {way_of(trial): trial for trial in trials}
    text = f"Chosen: {told(way)}{_figures(by_way.get(way))}"
    if before in (None, way):
        return text
    return f"{text}; before: {told(before)}{_figures(by_way.get(before))}"


def _figures(trial: DraftTrial | None) -> str:
    """`` (61.2 tok/s, ×2.72 against none)``; empty where it was not measured here."""
    if trial is None:
        return ""
    rate = format_speed(trial.tok_per_s).strip()
    if way_of(trial) == PLAIN or trial.speedup is None:
        return f" ({rate})"
    factor = f"{format_factor(trial.speedup)} against none"
    if trial.live_guesses is None:
        return f" ({rate}, {factor})"
    return f" ({rate} when tried, {factor} by what clients asked for since)"
