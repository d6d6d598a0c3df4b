"""The chat's lines of text: figures, progress, failures."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

import msgspec

from backends.units import format_count, format_percent, format_seconds, format_speed
from tui.model.names import model_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backends.state import (
        Answering,
        ChatTimings,
        Failure,
        LayerRange,
        Reply,
        Sampling,
        Turn,
    )


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
    parts = [] if timings is None else _figures(timings)
    if ended := finish_text(reason):
        parts.append(ended)
    return " · ".join(parts)


def _figures(timings: ChatTimings) -> list[str]:
    parts = []
    if timings.tok_per_s > 0:
        parts.append(format_speed(timings.tok_per_s))
    if timings.first_token_s is not None:
        parts.append(f"first token {format_seconds(timings.first_token_s)}")
    parts.append(format_count(timings.tokens, "token"))
    return parts


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
    reply = turn.reply
    parts = [variant_text(turn)]
    if reply.failure is not None:
        parts.append(failure_text(reply.failure))
    else:
        said = "" if reply.text else _nothing_text(reply)
        parts += [said, figures_text(reply.timings, reply.finish_reason)]
        parts += made_with(turn)
    return " · ".join(filter(None, parts))


def _nothing_text(reply: Reply) -> str:
    if reply.reasoning or finish_text(reply.finish_reason):
        return ""
    return "The model said nothing." if reply.timings else "No answer came."


def variant_text(turn: Turn) -> str:
    """``answer 2 of 3``, where there are several."""
    if len(turn.replies) < 2:
        return ""
    return f"answer {turn.shown + 1} of {len(turn.replies)}"


def variant_texts(turn: Turn) -> list[str]:
    """Of every answer to a question what to compare them by."""
    words = {reply.question for reply in turn.replies}
    return [
        " · ".join(filter(None, _variant_parts(turn, index, len(words) > 1)))
        for index in range(len(turn.replies))
    ]


def _variant_parts(turn: Turn, index: int, worded: bool) -> Iterator[str]:
    this = msgspec.structs.replace(turn, shown=index)
    yield ended_text(this).removeprefix(variant_text(this)).removeprefix(" · ")
    if worded:
        yield f"“{_telling_words(turn, this.asked)}”"
    if then := this.reply.then:
        yield f"{format_count(len(then), 'question')} followed"


def _telling_words(turn: Turn, asked: str) -> str:
    words = " ".join(asked.split())
    others = (reply.question or turn.question for reply in turn.replies)
    letters = zip(*(" ".join(one.split()) for one in others), strict=False)
    shared = len(list(takewhile(lambda each: len(set(each)) == 1, letters)))
    start = min(max(0, shared - WORDS_BEFORE), max(0, len(words) - WORDS_CHARS))
    part = words[start : start + WORDS_CHARS].strip()
    is_end = start + WORDS_CHARS >= len(words)
    return f"{'…' if start else ''}{part}{'' if is_end else '…'}"


def made_with(turn: Turn) -> Iterator[str]:
    """Split and settings of an answer, and the model where others answered too."""
    reply = turn.reply
    if len({other.model for other in turn.replies}) > 1:
        yield model_name(reply.model)
    if reply.layers:
        after = split_text(reply.layers_after)
        yield split_text(reply.layers) + (f", then {after}" if after else "")
    yield from settings_text(reply.sampling)


def split_text(layers: tuple[LayerRange, ...]) -> str:
    """``worker1 6 | worker2 7``: whole layers by place, the output counted."""
    counts: dict[str, int] = {}
    for part in layers:
        place = part.device.partition("/")[0]
        counts[place] = counts.get(place, 0) + part.last - part.first + 1
    return " | ".join(f"{place} {count}" for place, count in counts.items() if count)


def settings_text(sampling: Sampling) -> Iterator[str]:
    """``temperature 0.7``: only what is not left to the server."""
    for name in sampling.__struct_fields__:
        value = getattr(sampling, name)
        if value is not None:
            yield f"{name.replace('_', ' ')} {value:g}"


def failure_text(failure: Failure) -> str:
    return failure.sentence.rstrip(".") + "."
