"""Going on with the streams of OpenAI's APIs.

Their events carry no ids. What carries them is asked for besides, and taken out of
every event again: what the client gets is, byte for byte, what it would get without.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import msgspec

from backends.engine.sse import DONE_EVENT, event_of
from backends.gateway.course import Course
from backends.gateway.timings import Timings
from backends.gateway.tokens import NOT_TOLD
from backends.state.base import Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from backends.gateway.course import Ask, Ending, Told
    from backends.gateway.wish import Wish

# Probabilities after sampling: those before it are over the whole vocabulary.
_IDS = b',"n_probs":1,"post_sampling_probs":true,"timings_per_token":true'
_VARYING = ("choices", "timings", "usage", "prompt_progress")
FIGURES = "only its figures are missing"
REASONING = "it broke off in the middle of a reasoning text"


class _Probability(Value, frozen=True):
    id: int


class _Probabilities(Value, frozen=True):
    content: list[_Probability] = []


class _Delta(Value, frozen=True):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(Value, frozen=True):
    text: str = ""
    delta: _Delta = _Delta()
    finish_reason: str | None = None
    logprobs: msgspec.Raw = msgspec.Raw(b"null")


class _Chunk(Value, frozen=True):
    choices: list[_Choice]
    id: str = ""
    timings: msgspec.Raw = msgspec.Raw()


class _Templated(Value, frozen=True):
    prompt: str


class OpenAiCourse(Course):
    """What both APIs have in common."""

    end = DONE_EVENT
    _head: dict[str, Any] | None = None
    """What every event of this answer says."""

    def first_body(self, raw: bytes) -> bytes:
        """The client's own words, and what makes ids and counts come with it."""
        return raw.rstrip().removesuffix(b"}") + _IDS + b"}"

    def _look(self, event: bytes, data: bytes) -> bytes:
        chunk = msgspec.json.decode(data, type=_Chunk)
        event = self._marked(event, data, chunk.id)
        choice = chunk.choices[0] if chunk.choices else None
        if choice is None or choice.finish_reason is not None:
            return self._at_the_end(event, chunk)
        found = msgspec.json.decode(choice.logprobs, type=_Probabilities | None)
        if found is not None or chunk.timings:
            self._remember(choice, found.content if found else (), chunk.timings)
        elif self._text(choice):
            self._tokens.why_not = NOT_TOLD
        return self._cleaned(event, choice, chunk.timings)

    def _marked(self, event: bytes, data: bytes, own: str) -> bytes:
        """An event of this answer, whichever llama-server it comes of."""
        if self._head is None:
            said = msgspec.json.decode(data)
            self._head = {k: v for k, v in said.items() if k not in _VARYING}
        first = str(self._head.get("id", own))
        old, new = (b'"id":"%s"' % one.encode() for one in (own, first))
        return event if old == new else event.replace(old, new, 1)

    def _remember(
        self, choice: _Choice, told: Sequence[_Probability], raw: msgspec.Raw
    ) -> None:
        timings = msgspec.json.decode(raw, type=Timings)
        self._prompt = Timings(cache_n=timings.cache_n, prompt_n=timings.prompt_n)
        token = told[0].id if told else None
        self._count(self._text(choice), token, timings.predicted_n)

    def _cleaned(self, event: bytes, choice: _Choice, timings: msgspec.Raw) -> bytes:
        """An event without what only we asked for."""
        event = self._without_ids(event, bytes(choice.logprobs))
        if timings and not self._wish.has_timings:
            event = event.replace(b',"timings":' + bytes(timings), b"", 1)
        return event

    def _at_the_end(self, event: bytes, chunk: _Chunk) -> bytes:
        """Remember that nothing but the end can follow."""
        self.is_told = not chunk.choices or not self._waits_for_usage
        self._tokens.why_not = "" if self.is_told else FIGURES
        return event

    _waits_for_usage = False
    """Whether the usage comes after the last choice."""

    @abstractmethod
    def _text(self, choice: _Choice) -> str: ...

    @abstractmethod
    def _without_ids(self, event: bytes, logprobs: bytes) -> bytes: ...

    # --- going on -----------------------------------------------------------------

    def _fields(self) -> dict[str, Any]:
        return {"stop": self._stops}

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        """An event with the marks of this answer."""
        return event_of({"choices": choices, **(self._head or {}), **more})

    def _piece(self, told: Told, data: bytes) -> bytes:
        timings = {"timings": self._whole(told.timings)} if told.timings else {}
        return self._text_chunk(told.content, timings)

    @abstractmethod
    def _text_chunk(self, text: str, more: dict[str, Any]) -> bytes: ...

    def _timings(self, ending: Ending) -> dict[str, Any]:
        whole = self._whole(ending.said.get("timings"), is_full=ending.is_full)
        return {"timings": whole}

    def _usage(self, ending: Ending) -> dict[str, Any]:
        prompt = self._before.prompt_tokens
        return {
            "usage": {
                "completion_tokens": ending.tokens,
                "prompt_tokens": prompt,
                "total_tokens": prompt + ending.tokens,
                "prompt_tokens_details": {"cached_tokens": self._before.cache_n},
            }
        }


class CompletionsCourse(OpenAiCourse):
    """``/v1/completions``."""

    drops = ("logprobs", "stream_options")

    def _text(self, choice: _Choice) -> str:
        return choice.text

    def _without_ids(self, event: bytes, logprobs: bytes) -> bytes:
        return event.replace(b'"logprobs":' + logprobs, b'"logprobs":null', 1)

    def _text_chunk(self, text: str, more: dict[str, Any]) -> bytes:
        return self._chunk([_completion(text)], **more)

    def _last(self, ending: Ending) -> bytes:
        more = {**self._usage(ending), **self._timings(ending)}
        return self._chunk([_completion("", ending.finish_reason)], **more)


def _completion(text: str, finish_reason: str | None = None) -> dict[str, Any]:
    return {"text": text, "index": 0, "logprobs": None, "finish_reason": finish_reason}


class ChatCourse(OpenAiCourse):
    """``/v1/chat/completions``: the text alone, not what is parsed out of it."""

    drops = (
        *("messages", "stream_options", "logprobs", "top_logprobs", "tools"),
        *("tool_choice", "response_format", "functions"),
    )
    _has_role = False
    _knows_role = False
    _reasons = False

    def __init__(self, wish: Wish) -> None:
        """Nothing has come yet."""
        super().__init__(wish)
        self._waits_for_usage = wish.has_usage

    @property
    def begins_anew(self) -> bool:
        """Also where nothing came but whose turn it is."""
        return not (self.sent or self.is_continued or self.why_not)

    @property
    def why_not(self) -> str:
        """Why it could not be gone on with, also for what only a parser knows."""
        return super().why_not or (REASONING if self._reasons else "")

    def _text(self, choice: _Choice) -> str:
        delta = choice.delta
        if text := (delta.reasoning_content or "") + (delta.content or ""):
            self._reasons = not delta.content
        return text

    def ask_anew(self) -> None:
        """The same from the beginning; whose turn it is need not be told twice."""
        super().ask_anew()
        self._knows_role = self._has_role

    def _cleaned(self, event: bytes, choice: _Choice, timings: msgspec.Raw) -> bytes:
        if choice.delta.role:
            self._has_role = True
            if self._knows_role:
                return b""
        return super()._cleaned(event, choice, timings)

    def _without_ids(self, event: bytes, logprobs: bytes) -> bytes:
        return event.replace(b',"logprobs":' + logprobs, b"", 1)

    async def _asked(self, ask: Ask) -> list[Any]:
        """The prompt that the model's template makes of the messages."""
        raw = self._wish.with_fields({}, drop=("stream", "stream_options"))
        found = msgspec.json.decode(await ask("/apply-template", raw), type=_Templated)
        return [found.prompt]

    def _text_chunk(self, text: str, more: dict[str, Any]) -> bytes:
        return self._chunk([_said({"content": text})], **more) if text else b""

    def _last(self, ending: Ending) -> bytes:
        finish = [_said({}, ending.finish_reason)]
        if not self._wish.has_usage:
            return self._chunk(finish, **self._timings(ending))
        more = {**self._usage(ending), **self._timings(ending)}
        return self._chunk(finish) + self._chunk([], **more)


def _said(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"finish_reason": finish_reason, "index": 0, "delta": delta}
