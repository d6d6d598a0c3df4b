"""What a cluster would go on with if it lost something, in a line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.split.layout import ranges_text

if TYPE_CHECKING:
    from backends.state import Fallback, Plan


def fallback_text(fallback: Fallback, plan: Plan | None) -> str:
    """``9 | 4 on studio/MTL0, nuc/CPU``; why nothing would do where nothing would."""
    if not fallback.split:
        return f"nothing goes on: {fallback.why}".rstrip(".")
    split = ranges_text(fallback.split)
    shorter = plan is not None and fallback.ctx_size < plan.ctx_size
    return f"{split}, context {fallback.ctx_size}" if shorter else split
