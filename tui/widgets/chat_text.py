"""What the chat says in one line: figures, progress, failures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.units import format_seconds

if TYPE_CHECKING:
    from backends.state import ChatDelta, ChatTimings, Failure

PROGRESS_CELLS = 10
"""Width of the bar that shows how much of the prompt was read."""

_REASONS = {
    "stop": "",
    "length": "cut at the token limit",
    "stopped": "stopped by you",
    "tool_calls": "asked for a tool",
}


def finish_text(reason: str) -> str:
    """Why an answer ended, in words; empty when it simply was complete."""
    return _REASONS.get(reason, reason.replace("_", " "))


def figures_text(timings: ChatTimings | None, reason: str = "") -> str:
    """``21.3 tok/s · first token 0.88 s · 42 tokens · cut at the token limit``."""
    parts = [] if timings is None else _figures(timings)
    if ended := finish_text(reason):
        parts.append(ended)
    return " · ".join(parts)


def _figures(timings: ChatTimings) -> list[str]:
    """Speed, first token and length, as far as they are known."""
    parts = []
    if timings.tok_per_s > 0:
        parts.append(f"{timings.tok_per_s:.1f} tok/s")
    if timings.first_token_s is not None:
        parts.append(f"first token {format_seconds(timings.first_token_s)}")
    parts.append(count_text(timings.tokens, "token"))
    return parts


def count_text(count: int, noun: str) -> str:
    """``1 token``, ``42 tokens``, ``20 000 lines``."""
    number = f"{count:,}".replace(",", " ")
    return f"{number} {noun}" if count == 1 else f"{number} {noun}s"


def waiting_text(delta: ChatDelta | None) -> str:
    """What happens before the first token, as far as the server says."""
    if delta is None or delta.prompt_progress is None:
        return "waiting for the first token"
    done = min(max(delta.prompt_progress, 0.0), 1.0)
    full = round(done * PROGRESS_CELLS)
    bar = "━" * full + "─" * (PROGRESS_CELLS - full)
    return f"reading the prompt {bar} {done * 100:3.0f} %"


def failure_text(failure: Failure) -> str:
    """What went wrong, as one sentence."""
    return failure.sentence.rstrip(".") + "."
