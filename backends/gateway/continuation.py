"""Continuing a stream by the ids of its tokens.

``/completion`` gets the prompt and all that the client has the text of. Its events are
told in the words of the client's API. Events of OpenAI's APIs carry no ids.
What carries them is asked for besides, and taken out of every event again.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from backends.engine.sse import DONE_EVENT, event_of, payload
from backends.gateway.request import LIMITS, RequestOptions
from backends.state.base import NOT_JSON, Value

Post = Callable[[str, bytes], Awaitable[bytes]]

TOKENS_MAX = 1 << 18
"""A longer answer is not continued: a mebibyte of ids."""
GAPS_MAX = 1024
GAP_CHARACTERS_MAX = 1024
UNKNOWN = -1
TOO_LONG = "the answer is too long to be gone on with"
NOT_TOLD = "llama-server did not tell every token of it"
NOT_SURE = "some of its tokens are not known"
MAY_BE_OVER = "what it said last may be what came before a stop word"
STRANGE = "llama-server answered in words that the gateway does not know"
OTHER_PROMPT = "its prompt has other tokens than before"
_ERROR = b'{"error"'
_ERROR_EARLIER = b"error: "
"""The beginning of an error event of earlier releases."""
_OURS = (*LIMITS, "prompt")
# Probabilities after sampling: those before it are over the whole vocabulary.
_IDS = b',"n_probs":1,"post_sampling_probs":true,"timings_per_token":true'
_VARYING = ("choices", "timings", "usage", "prompt_progress")
FIGURES = "only its figures are missing"
REASONING = "it broke off in the middle of a reasoning text"


class CannotResume(Exception):
    """An answer that broke off cannot be resumed honestly."""


class Gap(Value, frozen=True):
    """Tokens, perhaps some without ids, and the text that they make together."""

    start: int
    end: int
    text: str


class Tokens:
    """Ids, and how many of them the client has the text of.

    ``has_stops``: a stop word may cut the text of the last one.
    """

    def __init__(self, *, has_stops: bool = False) -> None:
        self._ids = array("i")
        self._has_stops = has_stops
        self._gaps: list[Gap] = []
        self._last = Gap(0, 0, "")
        self._holed = False
        self.sent = 0
        """Number of tokens that the client has the text of."""
        self.why_not = ""
        """Why nothing can continue from these; empty if something can."""

    def add(self, text: str, token: int | None, count: int) -> None:
        """Add one more; ``count`` says how many there are with it.

        llama-server tells no id of half a character. A chat tells none of a token
        whose text is held back because it may begin a stop word.
        """
        missing = count - 1 - len(self._ids)
        if self.why_not:
            return
        if token is None or missing < 0:
            self.why_not = NOT_TOLD
        elif count > TOKENS_MAX:
            self.why_not = TOO_LONG
        else:
            self._ids.extend([UNKNOWN] * missing)
            self._ids.append(token)
            self._holed = self._holed or missing > 0
            if text:
                self._sent(text, count)

    def _sent(self, text: str, count: int) -> None:
        self._last = Gap(start=self.sent, end=count, text=text)
        if self._holed:
            self._gaps.append(self._last)
            if len(self._gaps) > GAPS_MAX or len(text) > GAP_CHARACTERS_MAX:
                self.why_not = TOO_LONG
        self._holed = False
        self.sent = count

    def __len__(self) -> int:
        return len(self._ids)

    async def until_now(
        self,
        tokenize: Callable[[str], Awaitable[list[int]]],
        detokenize: Callable[[list[int]], Awaitable[str]],
    ) -> list[int]:
        """The ids of all that the client has; what it has not is forgotten."""
        if self.why_not:
            raise CannotResume(self.why_not)
        del self._ids[self.sent :]
        self._holed = False
        while self._gaps:
            gap = self._gaps[-1]
            self._fill(gap, await tokenize(gap.text))
            self._gaps.pop()
        ids, last = self._ids.tolist(), self._last
        if self._has_stops and await detokenize(ids[last.start :]) != last.text:
            raise CannotResume(MAY_BE_OVER)
        return ids

    def _fill(self, gap: Gap, found: list[int]) -> None:
        """Take the ids that a text has, if all we know of them agrees."""
        told = self._ids[gap.start : gap.end]
        agree = (
            one in (UNKNOWN, other) for one, other in zip(told, found, strict=False)
        )
        if len(told) != len(found) or not all(agree):
            raise CannotResume(NOT_SURE)
        self._ids[gap.start : gap.end] = array("i", found)


class Timings(Value, frozen=True):
    """Timings of one answer so far, in the words of llama-server."""

    cache_n: int = 0
    prompt_n: int = 0
    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0

    @property
    def prompt_tokens(self) -> int:
        return self.cache_n + self.prompt_n

    def and_then(self, last: Mapping[str, Any]) -> dict[str, Any]:
        """These with those of the last llama-server.

        The prompt is that of the client alone; what was read again, and the time
        without any llama-server, is not counted.
        """
        predicted_n = self.predicted_n + int(last.get("predicted_n", 0))
        predicted_ms = self.predicted_ms + float(last.get("predicted_ms", 0.0))
        return {
            **last,
            "cache_n": self.cache_n,
            "prompt_n": self.prompt_n,
            "prompt_ms": self.prompt_ms,
            **_rates("prompt", self.prompt_n, self.prompt_ms),
            "predicted_n": predicted_n,
            "predicted_ms": predicted_ms,
            **_rates("predicted", predicted_n, predicted_ms),
        }


def _rates(what: str, number: int, duration_ms: float) -> dict[str, float]:
    return {
        f"{what}_per_token_ms": duration_ms / number if number else 0.0,
        f"{what}_per_second": 1000 * number / duration_ms if duration_ms else 0.0,
    }


class Stopwatch:
    """Measures what one llama-server takes, which tells it only at the end."""

    def __init__(self) -> None:
        self._asked = time.monotonic()
        self._first: float | None = None
        self._last = 0.0

    def token(self) -> None:
        self._last = time.monotonic()
        if self._first is None:
            self._first = self._last

    @property
    def prompt_ms(self) -> float:
        return 1000 * (self._first - self._asked) if self._first is not None else 0.0

    @property
    def predicted_ms(self) -> float:
        return 1000 * (self._last - self._first) if self._first is not None else 0.0


class CompletionEvent(Value, frozen=True):
    content: str = ""
    tokens: tuple[int, ...] = ()
    stop: bool = False
    tokens_predicted: int = 0
    tokens_evaluated: int = 0
    timings: dict[str, Any] | None = None


class Ending(Value, frozen=True):
    said: dict[str, Any]
    """The last event of ``/completion``."""
    tokens: int
    """Of the whole answer."""
    is_full: bool
    """True if it had reached its limit before it broke off."""

    @property
    def finish_reason(self) -> str:
        by_itself = self.said.get("stop_type") in ("eos", "word")
        return "stop" if by_itself and not self.is_full else "length"


class _Tokenized(Value, frozen=True):
    tokens: list[int]


class _Detokenized(Value, frozen=True):
    content: str


class StreamAdapter(ABC):
    """One answer in the words of one API, continued by ``/completion``."""

    end = b""
    """The end of a stream of this API, after its last event."""
    drops: tuple[str, ...] = ()
    """Fields of the request that ``/completion`` has no use for."""

    def __init__(self, options: RequestOptions) -> None:
        self._options = options
        self._tokens = self._no_tokens()
        self._base = 0
        """Number of tokens from the llama-servers before this one."""
        self._before = Timings()
        """Their timings."""
        self._watch = Stopwatch()
        self._prompt = Timings()
        """Timings of the client's prompt, as far as they are known."""
        self.begun = False
        """True if the client has got anything of it."""
        self.is_told = False
        """True if the client lacks nothing but the word that ends the stream."""
        self._has_ended = False
        self.is_continued = False
        """True if events of ``/completion`` come now."""

    @property
    def why_not(self) -> str:
        """Why it could not be continued; empty as long as it could."""
        return self._tokens.why_not

    def first_body(self, raw: bytes) -> bytes:
        return raw

    def take(self, event: bytes) -> bytes:
        """Take an event of llama-server's; what the client gets of it.

        Raises:
            CannotResume: what comes is no continuation of what was.
        """
        data = payload(event)
        if not data:
            if event == self.end or event.startswith(_ERROR_EARLIER):
                self.is_told = self._has_ended = True
            return event
        self.begun = True
        if data.startswith(_ERROR):
            self.is_told = self._has_ended = True
            return event
        try:
            if self.is_continued:
                return self._continued(data)
            return self._look(event, data)
        except NOT_JSON:
            self._tokens.why_not = STRANGE
            if self.is_continued:
                raise CannotResume(STRANGE) from None
            return event

    @abstractmethod
    def _look(self, event: bytes, data: bytes) -> bytes: ...

    def _count(self, text: str, token: int | None, count: int) -> None:
        if count:
            self._watch.token()
            self._tokens.add(text, token, self._base + count)

    def _no_tokens(self) -> Tokens:
        return Tokens(has_stops=bool(self._options.stops))

    def _count_told(self, told: CompletionEvent) -> None:
        token = told.tokens[0] if told.tokens else None
        self._count(told.content, token, told.tokens_predicted)

    def ending(self) -> bytes:
        return b"" if self._has_ended else self.end

    @property
    def begins_anew(self) -> bool:
        """True if so little came that the same is asked from the beginning."""
        return not self.begun

    def ask_anew(self) -> None:
        """Forget what came: the same is asked from the beginning."""
        self._tokens = self._no_tokens()
        self._watch = Stopwatch()

    async def next_body(self, post: Post) -> bytes:
        """The request for ``/completion`` that continues the answer.

        Raises:
            CannotResume: none does, honestly.
        """
        if self.why_not:
            raise CannotResume(self.why_not)
        try:
            prompt = await self._asked(post)
            ids = await self._tokens.until_now(
                partial(_tokenized, post), partial(_detokenized, post)
            )
        except NOT_JSON as error:
            raise CannotResume(STRANGE) from error
        self._before, self._base = self._so_far(len(ids)), len(ids)
        self.is_continued = True
        self._watch = Stopwatch()
        fields = {**self._fields(), "prompt": [*prompt, *ids], "stream": True}
        if self._options.limit >= 0:
            # The end is told only after a token: that one is left out.
            fields["n_predict"] = max(self._options.limit - self._base, 1)
        return self._options.with_fields(fields, drop=(*_OURS, *self.drops))

    async def _asked(self, post: Post) -> list[Any]:
        prompt = msgspec.json.decode(self._options.fields["prompt"])
        return prompt if isinstance(prompt, list) else [prompt]

    def _fields(self) -> dict[str, Any]:
        return {}

    def _so_far(self, tokens: int) -> Timings:
        before = self._before if self.is_continued else self._prompt
        prompt_ms = before.prompt_ms or self._watch.prompt_ms
        predicted_ms = before.predicted_ms + self._watch.predicted_ms
        return replace(
            before, prompt_ms=prompt_ms, predicted_n=tokens, predicted_ms=predicted_ms
        )

    def _continued(self, data: bytes) -> bytes:
        told = msgspec.json.decode(data, type=CompletionEvent)
        prompt_tokens = told.tokens_evaluated - self._base
        if not self._before.prompt_tokens:
            # Nothing has told until now.
            self._before = replace(self._before, prompt_n=prompt_tokens)
        if prompt_tokens != self._before.prompt_tokens:
            raise CannotResume(OTHER_PROMPT)
        is_full = 0 <= self._options.limit <= self._base
        if told.stop:
            tokens = self._base + (0 if is_full else told.tokens_predicted)
            said = msgspec.json.decode(data)
            self.is_told = True
            return self._last(Ending(said=said, tokens=tokens, is_full=is_full))
        if is_full:
            return b""
        piece = self._piece(told, data)
        self._count_told(told)
        return piece

    def _whole(self, timings: dict[str, Any] | None, *, is_full: bool = False) -> Any:
        return self._before.and_then({} if is_full else timings or {})

    @abstractmethod
    def _piece(self, told: CompletionEvent, data: bytes) -> bytes: ...

    @abstractmethod
    def _last(self, ending: Ending) -> bytes: ...


async def _tokenized(post: Post, text: str) -> list[int]:
    body = msgspec.json.encode({"content": text, "add_special": False})
    return msgspec.json.decode(await post("/tokenize", body), type=_Tokenized).tokens


async def _detokenized(post: Post, tokens: list[int]) -> str:
    body = msgspec.json.encode({"tokens": tokens})
    return msgspec.json.decode(
        await post("/detokenize", body), type=_Detokenized
    ).content


class NativeAdapter(StreamAdapter):
    """``/completion`` itself: later events count from the beginning."""

    _sent_bytes = 0
    _sent_before = 0
    _has_new_line = False
    _told = 0
    """Number of ids that the client has, also of text that is held back."""

    def _look(self, event: bytes, data: bytes) -> bytes:
        told = msgspec.json.decode(data, type=CompletionEvent)
        self.is_told = told.stop
        if not told.stop:
            self._prompt = replace(self._prompt, prompt_n=told.tokens_evaluated)
            self._count_told(told)
            self._passed(told.content)
        return event

    def _passed(self, text: str) -> None:
        self._sent_bytes += len(text.encode())
        self._has_new_line = self._has_new_line or "\n" in text

    async def next_body(self, post: Post) -> bytes:
        self._told = max(self._told, len(self._tokens))
        self._sent_before = self._sent_bytes
        return await super().next_body(post)

    def _piece(self, told: CompletionEvent, data: bytes) -> bytes:
        is_known = self._base + told.tokens_predicted <= self._told
        if is_known and not told.content:
            return b""
        self._passed(told.content)
        said = msgspec.json.decode(data)
        if is_known:
            said["tokens"] = []
        said["tokens_predicted"] = self._base + told.tokens_predicted
        said["tokens_evaluated"] = self._before.prompt_tokens
        if "timings" in said:
            said["timings"] = self._whole(told.timings)
        return event_of(said)

    def _last(self, ending: Ending) -> bytes:
        said = ending.said
        said["tokens_predicted"] = ending.tokens
        said["tokens_evaluated"] = self._before.prompt_tokens
        prompt = said.get("prompt", "").encode()
        own = prompt[: len(prompt) - self._sent_before]
        said["prompt"] = own.decode(errors="replace")
        said["has_new_line"] = said.get("has_new_line") or self._has_new_line
        said["timings"] = self._whole(said.get("timings"), is_full=ending.is_full)
        if ending.is_full:
            said["stop_type"] = "limit"
        settings = said.get("generation_settings", {})
        for name in {"n_predict", "max_tokens"} & settings.keys():
            settings[name] = self._options.limit
        return event_of(said)


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


class OpenAiAdapter(StreamAdapter):
    """The part that chats and completions have in common."""

    end = DONE_EVENT
    _head: dict[str, Any] | None = None
    """Fields that every event of this answer has."""
    _waits_for_usage = False
    """True if the usage comes after the last choice."""

    def first_body(self, raw: bytes) -> bytes:
        """The client's own request, and what makes ids and counts come with it."""
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
        """The event with the id of this answer, whichever llama-server tells it."""
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
        event = self._without_ids(event, bytes(choice.logprobs))
        if timings and not self._options.has_timings:
            event = event.replace(b',"timings":' + bytes(timings), b"", 1)
        return event

    def _at_the_end(self, event: bytes, chunk: _Chunk) -> bytes:
        self.is_told = not chunk.choices or not self._waits_for_usage
        self._tokens.why_not = "" if self.is_told else FIGURES
        return event

    @abstractmethod
    def _text(self, choice: _Choice) -> str: ...

    @abstractmethod
    def _without_ids(self, event: bytes, logprobs: bytes) -> bytes: ...

    def _fields(self) -> dict[str, Any]:
        return {"stop": self._options.stops}

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return event_of({"choices": choices, **(self._head or {}), **more})

    def _piece(self, told: CompletionEvent, data: bytes) -> bytes:
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


class CompletionsAdapter(OpenAiAdapter):
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


class ChatAdapter(OpenAiAdapter):
    """``/v1/chat/completions``: the text alone, not what is parsed out of it."""

    drops = (
        *("messages", "stream_options", "logprobs", "top_logprobs", "tools"),
        *("tool_choice", "response_format", "functions"),
    )
    _has_role = False
    _knows_role = False
    _reasons = False

    def __init__(self, options: RequestOptions) -> None:
        super().__init__(options)
        self._waits_for_usage = options.has_usage

    @property
    def begins_anew(self) -> bool:
        """The same if nothing came but whose turn it is."""
        return not (self._tokens.sent or self.is_continued or self.why_not)

    @property
    def why_not(self) -> str:
        """The same; nobody but a parser could continue a reasoning text."""
        return super().why_not or (REASONING if self._reasons else "")

    def _text(self, choice: _Choice) -> str:
        delta = choice.delta
        if text := (delta.reasoning_content or "") + (delta.content or ""):
            self._reasons = not delta.content
        return text

    def ask_anew(self) -> None:
        """Forget what came; whose turn it is need not be told twice."""
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

    async def _asked(self, post: Post) -> list[Any]:
        raw = self._options.with_fields({}, drop=("stream", "stream_options"))
        found = msgspec.json.decode(await post("/apply-template", raw), type=_Templated)
        return [found.prompt]

    def _text_chunk(self, text: str, more: dict[str, Any]) -> bytes:
        return self._chunk([_said({"content": text})], **more) if text else b""

    def _last(self, ending: Ending) -> bytes:
        finish = [_said({}, ending.finish_reason)]
        if not self._options.has_usage:
            return self._chunk(finish, **self._timings(ending))
        more = {**self._usage(ending), **self._timings(ending)}
        return self._chunk(finish) + self._chunk([], **more)


def _said(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"finish_reason": finish_reason, "index": 0, "delta": delta}


_ADAPTERS: dict[str, type[StreamAdapter]] = {
    "/completion": NativeAdapter,
    "/completions": NativeAdapter,
    "/v1/completions": CompletionsAdapter,
    "/chat/completions": ChatAdapter,
    "/v1/chat/completions": ChatAdapter,
}


def adapter_of(path: str, options: RequestOptions) -> StreamAdapter | None:
    """The adapter for an answer at this path; None if it cannot be continued."""
    kind = _ADAPTERS.get(path)
    if kind is None or not options.is_plain:
        return None
    if kind is not ChatAdapter and not options.has_one_prompt:
        return None
    return kind(options)
