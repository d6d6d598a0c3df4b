"""One streamed answer: how far it is, and how another llama-server goes on with it.

It goes on by the tokens' own ids: the prompt and all that the client has the text of
are given to ``/completion``, whose events are told in the words of the client's API.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from backends.engine.sse import payload
from backends.gateway.timings import Stopwatch, Timings
from backends.gateway.tokens import CannotGoOn, Tokens
from backends.gateway.wish import LIMITS
from backends.state.base import NOT_JSON, Value

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from backends.gateway.wish import Wish

    Ask = Callable[[str, bytes], Awaitable[bytes]]

STRANGE = "llama-server answered in words that the gateway does not know"
OTHER_PROMPT = "its prompt has other tokens than before"
_ERROR = b'{"error"'
_ERROR_EARLIER = b"error: "
"""What an event of earlier releases begins with that tells of an error."""
_OURS = (*LIMITS, "prompt")


class Told(Value, frozen=True):
    """An event of ``/completion``."""

    content: str = ""
    tokens: tuple[int, ...] = ()
    stop: bool = False
    tokens_predicted: int = 0
    tokens_evaluated: int = 0
    timings: dict[str, Any] | None = None

    @property
    def token(self) -> int | None:
        """The one that came."""
        return self.tokens[0] if self.tokens else None


class Ending(Value, frozen=True):
    """How an answer ended that was gone on with."""

    said: dict[str, Any]
    """The last event of ``/completion``."""
    tokens: int
    """Of the whole answer."""
    is_full: bool
    """Whether it had reached its limit before it broke off."""

    @property
    def finish_reason(self) -> str:
        """In OpenAI's words."""
        by_itself = self.said.get("stop_type") in ("eos", "word")
        return "stop" if by_itself and not self.is_full else "length"


class _Tokenized(Value, frozen=True):
    tokens: list[int]


class _Detokenized(Value, frozen=True):
    content: str


class Course(ABC):
    """What became of one answer; of each API one kind."""

    end = b""
    """What a stream of this API ends with, after its last event."""
    drops: tuple[str, ...] = ()
    """Fields of the request that ``/completion`` has no use for."""

    def __init__(self, wish: Wish) -> None:
        """Nothing has come yet."""
        self._wish = wish
        self._tokens = self._no_tokens()
        self._base = 0
        """So many tokens came from the llama-servers before this one."""
        self._before = Timings()
        """Theirs."""
        self._watch = Stopwatch()
        self._prompt = Timings()
        """Of the client's prompt, as far as it is known."""
        self.begun = False
        """Whether the client has got anything of it."""
        self.is_told = False
        """Whether the client lacks nothing but the word that ends the stream."""
        self._has_ended = False
        self.is_continued = False
        """Whether what comes now are events of ``/completion``."""

    @property
    def sent(self) -> int:
        """So many tokens the client has the text of."""
        return self._tokens.sent

    @property
    def why_not(self) -> str:
        """Why it could not be gone on with; empty as long as it could."""
        return self._tokens.why_not

    def first_body(self, raw: bytes) -> bytes:
        """What is asked at first: the client's own words, and what we need."""
        return raw

    # --- as it comes --------------------------------------------------------------

    def take(self, event: bytes) -> bytes:
        """What the client gets of an event.

        Raises:
            CannotGoOn: what comes is no continuation of what was.
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
            return self._went_on(data) if self.is_continued else self._look(event, data)
        except NOT_JSON:
            self._tokens.why_not = STRANGE
            if self.is_continued:
                raise CannotGoOn(STRANGE) from None
            return event

    @abstractmethod
    def _look(self, event: bytes, data: bytes) -> bytes:
        """Remember what an event of the client's own API says; what the client gets."""

    def _count(self, text: str, token: int | None, count: int) -> None:
        """Remember a token; the zeroth is none, but a report of progress."""
        if count:
            self._watch.token()
            self._tokens.add(text, token, self._base + count)

    @cached_property
    def _stops(self) -> list[str]:
        """The stop words, however they were given."""
        raw = self._wish.fields.get("stop")
        words = msgspec.json.decode(raw) if raw is not None else []
        return [words] if isinstance(words, str) else words or []

    def _no_tokens(self) -> Tokens:
        return Tokens(has_stops=bool(self._stops))

    def _count_told(self, told: Told) -> None:
        self._count(told.content, told.token, told.tokens_predicted)

    def ending(self) -> bytes:
        """What is left to say once all is told."""
        return b"" if self._has_ended else self.end

    # --- going on -----------------------------------------------------------------

    @property
    def begins_anew(self) -> bool:
        """Whether so little came that the same is asked from the beginning."""
        return not self.begun

    def ask_anew(self) -> None:
        """The same is asked of another llama-server, from the beginning."""
        self._tokens = self._no_tokens()
        self._watch = Stopwatch()

    async def next_body(self, ask: Ask) -> bytes:
        """What ``/completion`` is asked, so that it goes on.

        Raises:
            CannotGoOn: it cannot, honestly.
        """
        if self.why_not:
            raise CannotGoOn(self.why_not)
        try:
            prompt = await self._asked(ask)
            ids = await self._tokens.until_now(
                partial(_tokenized, ask), partial(_detokenized, ask)
            )
        except NOT_JSON as error:
            raise CannotGoOn(STRANGE) from error
        self._before, self._base = self._so_far(len(ids)), len(ids)
        self.is_continued = True
        self._watch = Stopwatch()
        fields = {**self._fields(), "prompt": [*prompt, *ids], "stream": True}
        if self._wish.limit >= 0:
            # The end is told only after a token: that one is left out.
            fields["n_predict"] = max(self._wish.limit - self._base, 1)
        return self._wish.with_fields(fields, drop=(*_OURS, *self.drops))

    async def _asked(self, ask: Ask) -> list[Any]:
        """What was asked, as ``/completion`` takes it."""
        prompt = msgspec.json.decode(self._wish.fields["prompt"])
        return prompt if isinstance(prompt, list) else [prompt]

    def _fields(self) -> dict[str, Any]:
        """What ``/completion`` wants told in another way."""
        return {}

    def _so_far(self, tokens: int) -> Timings:
        """What it took until now."""
        before = self._before if self.is_continued else self._prompt
        prompt_ms = before.prompt_ms or self._watch.prompt_ms
        predicted_ms = before.predicted_ms + self._watch.predicted_ms
        return replace(
            before,
            prompt_ms=prompt_ms,
            predicted_n=tokens,
            predicted_ms=predicted_ms,
        )

    def _went_on(self, data: bytes) -> bytes:
        told = msgspec.json.decode(data, type=Told)
        prompt_tokens = told.tokens_evaluated - self._base
        if not self._before.prompt_tokens:
            # Nothing has told until now.
            self._before = replace(self._before, prompt_n=prompt_tokens)
        if prompt_tokens != self._before.prompt_tokens:
            raise CannotGoOn(OTHER_PROMPT)
        is_full = 0 <= self._wish.limit <= self._base
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
        """The timings of all llama-servers, this one included."""
        return self._before.and_then({} if is_full else timings or {})

    @abstractmethod
    def _piece(self, told: Told, data: bytes) -> bytes:
        """Some more text, as the client wants it told."""

    @abstractmethod
    def _last(self, ending: Ending) -> bytes:
        """The end, as the client wants it told."""


async def _tokenized(ask: Ask, text: str) -> list[int]:
    body = msgspec.json.encode({"content": text, "add_special": False})
    return msgspec.json.decode(await ask("/tokenize", body), type=_Tokenized).tokens


async def _detokenized(ask: Ask, tokens: list[int]) -> str:
    body = msgspec.json.encode({"tokens": tokens})
    return msgspec.json.decode(
        await ask("/detokenize", body), type=_Detokenized
    ).content
