"""The fit of a model that could be got, in words for a table."""

from __future__ import annotations

from collections.abc import Sequence

from backends.split.layout import format_range
from backends.state import Fit, MemorySource
from backends.state.models import RemoteModel


def fits_text(model: RemoteModel) -> str:
    """``yes``, ``~yes`` where llama.cpp was not asked, ``no``; ``?``: not known."""
    if model.fit is None:
        return "?"
    if not model.fit.ctx_size:
        return "no"
    return "~yes" if model.fit.source is MemorySource.PREDICTED else "yes"


def context_text(model: RemoteModel) -> str:
    return str(model.fit.ctx_size) if model.fit and model.fit.ctx_size else ""


def split_text(fit: Fit | None) -> str:
    """``local/CPU 0–38, mini/MTL0 39–46 + output``."""
    if fit is None:
        return ""
    return ", ".join(f"{e.device} {format_range(e, fit.n_layer)}" for e in fit.layers)


def why_text(model: RemoteModel) -> str:
    """Why it does not fit, is not known to, or is only predicted to."""
    if model.problem or model.fit is None:
        return model.problem
    return model.fit.why or model.fit.note


def notes(models: Sequence[RemoteModel]) -> list[str]:
    """``Q8_0, BF16: why``, each reason once."""
    named: dict[str, list[str]] = {}
    for model in models:
        named.setdefault(why_text(model).rstrip("."), []).append(model.quant)
    return [f"{', '.join(quants)}: {why}." for why, quants in named.items() if why]
