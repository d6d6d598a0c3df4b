"""What of a request decides whether, and how, its answer can be gone on with."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from backends.state.base import NOT_JSON, Value

CONTINUED_BYTES_MAX = 1 << 20
"""The answer to a longer request is not gone on with: reading it would take long."""
CONSTRAINED = ("grammar", "json_schema", "response_format", "tools", "functions")
"""What holds an answer to a form begins anew with every request."""
SEVERAL = ("n", "n_cmpl", "best_of")
SHAPED = (
    *("n_probs", "logprobs", "top_logprobs", "post_sampling_probs"),
    *("response_fields", "backend_sampling", "t_max_predict_ms", "n_indent", "verbose"),
)
"""What changes the events, or counts from the beginning of an answer."""
LIMITS = ("n_predict", "max_completion_tokens", "max_tokens")
"""The first that is given counts."""


RANDOM_SEEDS = (None, -1, 0xFFFFFFFF)
"""Seeds that leave the draw to chance."""


class StreamOptions(Value, frozen=True):
    """What the client wants besides the text."""

    include_usage: bool = False


class Wish(Value, frozen=True):
    """A request whose answer can be gone on with."""

    fields: dict[str, msgspec.Raw]
    limit: int = -1
    """Most tokens of the answer; -1 without any."""
    has_timings: bool = False
    has_usage: bool = False

    def with_fields(self, fields: dict[str, Any], *, drop: tuple[str, ...]) -> bytes:
        """The request with these fields instead of its own."""
        kept = {k: v for k, v in self.fields.items() if k not in drop}
        return msgspec.json.encode({**kept, **fields})


def wish_of(raw: bytes) -> Wish | None:
    """What is asked for; None where the answer is no stream, or not to be gone on with.

    ``tools`` and the like that are empty ask for nothing.
    """
    try:
        fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        if not _read(fields, "stream", bool, default=False):
            return None
        if any(_says_something(fields, name) for name in (*CONSTRAINED, *SHAPED)):
            return None
        if _is_several(fields):
            return None
        return _wish(fields)
    except NOT_JSON:
        return None


class Draw(Value, frozen=True):
    """How a streamed answer is drawn that can be told again."""

    is_random: bool
    """Whether neither the temperature nor a seed settles what is drawn."""


def draw_of(raw: bytes) -> Draw | None:
    """What is asked for; None where the answer is no stream, or not to be told again.

    Several answers at once come in an order of their own, and a clock says how far
    one goes that has a limit of time.
    """
    try:
        fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        if not _read(fields, "stream", bool, default=False) or _is_several(fields):
            return None
        if _says_something(fields, "t_max_predict_ms"):
            return None
        if "prompt" in fields and not is_one_prompt(fields["prompt"]):
            return None
        temperature = _read(fields, "temperature", float | None, default=None)
        seed = _read(fields, "seed", int | None, default=None)
    except NOT_JSON:
        return None
    is_greedy = temperature is not None and temperature <= 0
    return Draw(is_random=seed in RANDOM_SEEDS and not is_greedy)


def _is_several(fields: dict[str, msgspec.Raw]) -> bool:
    return any(
        (_read(fields, name, int | None, default=1) or 1) != 1 for name in SEVERAL
    )


def _wish(fields: dict[str, msgspec.Raw]) -> Wish:
    limits = (_read(fields, name, int | None, default=None) for name in LIMITS)
    options = _read(fields, "stream_options", StreamOptions | None, default=None)
    return Wish(
        fields=fields,
        limit=next((limit for limit in limits if limit is not None), -1),
        has_timings=_read(fields, "timings_per_token", bool, default=False),
        has_usage=options is not None and options.include_usage,
    )


def _read(fields: dict[str, msgspec.Raw], name: str, kind: Any, *, default: Any) -> Any:
    raw = fields.get(name)
    return default if raw is None else _decoder(kind).decode(raw)


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Made once: a union takes longer to read than what is of it."""
    return msgspec.json.Decoder(kind)


def _says_something(fields: dict[str, msgspec.Raw], name: str) -> bool:
    """Whether a field is there and asks for anything."""
    value = _read(fields, name, Any, default=None)
    return bool(value) and value != {"type": "text"}


def is_one_prompt(raw: msgspec.Raw | None) -> bool:
    """Whether a prompt is one text, or ids with texts among them, and nothing else."""
    try:
        parts = _decoder(str | list[int | str]).decode(raw or b"null")
    except NOT_JSON:
        return False
    return isinstance(parts, str) or any(isinstance(part, int) for part in parts)
