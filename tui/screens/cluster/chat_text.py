"""The chat's lines of text: figures, progress, failures."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

import msgspec

from backends.split.layout import shares_text
from backends.state import Answering, ChatTimings, Failure, LayerRange, Reply, Turn
from backends.units import format_count, format_percent, format_seconds, format_speed
from tui.model.names import model_name

PROGRESS_CELLS = 10
"""Width of the bar that shows how much of the prompt was read."""

WORDS_CHARS = 32
"""Of a question, to tell it from the same in other words."""
WORDS_BEFORE = 8
"""Of these, before the first difference."""

_REASONS = {
    "stop": "",
    "error": "",
    "length": "stopped: token limit",
    "stopped": "stopped by you",
    "interrupted": "broken off: the controller ended",
    "tool_calls": "asked for a tool",
}


def finish_text(reason: str) -> str:
    """Why an answer ended, in words; empty when it simply was complete."""
    return _REASONS.get(reason, reason.replace("_", " "))


def figures_text(timings: ChatTimings | None, reason: str = "") -> str:
    """``21.3 tok/s · first token 0.88 s · 42 tokens · stopped: token limit``."""
    parts = []
    if timings is not None:
        if timings.tok_per_s > 0:
            parts.append(format_speed(timings.tok_per_s))
        if timings.first_token_s is not None:
            parts.append(f"first token {format_seconds(timings.first_token_s)}")
        parts.append(format_count(timings.tokens, "token"))
    return " · ".join(filter(None, [*parts, finish_text(reason)]))


def coming_text(reply: Reply, answering: Answering | None) -> str:
    """The progress of an answer: its place in the queue, prompt read, speed."""
    if reply.text or reply.reasoning:
        return figures_text(reply.timings)
    if answering is None:
        return waiting_text(None)
    if answering.waiting:
        return answering.waiting
    if answering.ahead:
        return f"{format_count(answering.ahead, 'request')} ahead"
    return waiting_text(answering.prompt_progress)


def waiting_text(prompt_progress: float | None) -> str:
    """The progress before the first token, as far as the server reports it."""
    if prompt_progress is None:
        return "waiting for the first token"
    done = min(max(prompt_progress, 0.0), 1.0)
    full = round(done * PROGRESS_CELLS)
    bar = "━" * full + "─" * (PROGRESS_CELLS - full)
    return f"reading the prompt {bar} {format_percent(done):>5}"


def ended_text(turn: Turn) -> str:
    """The line under an answer: its figures, or its failure."""
    several = len(turn.replies) > 1
    which = f"answer {turn.shown + 1} of {len(turn.replies)}" if several else ""
    return " · ".join(filter(None, (which, *_ended_parts(turn))))


def _ended_parts(turn: Turn) -> Iterator[str]:
    reply = turn.reply
    if reply.failure is not None:
        yield failure_text(reply.failure)
        return
    if not (reply.text or reply.reasoning or finish_text(reply.finish_reason)):
        yield "The model said nothing." if reply.timings else "No answer came."
    yield figures_text(reply.timings, reply.finish_reason)
    if len({other.model for other in turn.replies}) > 1:
        yield model_name(reply.model)
    if reply.layers:
        after = layers_text(reply.layers_after)
        yield layers_text(reply.layers) + (f", then {after}" if after else "")
    for name in reply.sampling.__struct_fields__:
        # Only what is not left to the server.
        if (value := getattr(reply.sampling, name)) is not None:
            yield f"{name.replace('_', ' ')} {value:g}"


def variant_texts(turn: Turn) -> list[str]:
    """Of every answer to a question what to compare them by."""
    worded = len({reply.question for reply in turn.replies}) > 1
    texts = []
    for index, reply in enumerate(turn.replies):
        this = msgspec.structs.replace(turn, shown=index)
        parts = [*_ended_parts(this)]
        if worded:
            parts.append(f"“{_telling_words(turn, this.asked)}”")
        if reply.then:
            parts.append(f"{format_count(len(reply.then), 'question')} followed")
        texts.append(" · ".join(filter(None, parts)))
    return texts


def _telling_words(turn: Turn, asked: str) -> str:
    words = " ".join(asked.split())
    others = (reply.question or turn.question for reply in turn.replies)
    letters = zip(*(" ".join(one.split()) for one in others), strict=False)
    shared = len(list(takewhile(lambda each: len(set(each)) == 1, letters)))
    start = min(max(0, shared - WORDS_BEFORE), max(0, len(words) - WORDS_CHARS))
    part = words[start : start + WORDS_CHARS].strip()
    is_end = start + WORDS_CHARS >= len(words)
    return f"{'…' if start else ''}{part}{'' if is_end else '…'}"


def layers_text(layers: tuple[LayerRange, ...]) -> str:
    """``worker1 6 | worker2 7``: whole layers by place, the output counted."""
    counts: dict[str, int] = {}
    for part in layers:
        place = part.device.partition("/")[0]
        counts[place] = counts.get(place, 0) + part.last - part.first + 1
    return shares_text(counts)


def failure_text(failure: Failure) -> str:
    return failure.sentence.rstrip(".") + "."
