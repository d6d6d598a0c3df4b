"""What was asked last, kept so that another llama-server can read it again.

It is kept in memory alone, and little of it: no file ever holds a prompt.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from backends.gateway.events import Splitter, payload
from backends.gateway.tokens import CannotGoOn
from backends.gateway.wish import LIMITS, SEVERAL, SHAPED
from backends.state.base import NOT_JSON, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from multidict import CIMultiDict

    from backends.gateway.asked import Asked
    from backends.gateway.course import Ask
    from backends.gateway.story import Story

KEPT_MAX = 16
KEPT_BYTES_MAX = 16 << 20
TURN_BYTES = 64
"""Of a message, what is kept beside its text."""
EVENT_BYTES = 12
"""Of an answer, the sum of an event and the id of a token."""
ACTIVE_S = 900.0
"""What was asked longer ago is over."""
COMPLETION = "/completion"
_LIMIT = {
    "/completion": "n_predict",
    "/completions": "n_predict",
    "/v1/responses": "max_output_tokens",
    "/responses": "max_output_tokens",
    "/v1/completions": "max_tokens",
    "/v1/chat/completions": "max_tokens",
    "/chat/completions": "max_tokens",
    "/v1/messages": "max_tokens",
}
"""By path: what limits an answer."""
_TELL_PROGRESS = frozenset(path for path in _LIMIT if "completion" in path)
"""Where llama-server tells how far it has read: not in every API."""
_SAID = ("messages", "input", "prompt")


class Conversation:
    """The last request of one, and its answer where its tokens are known."""

    method = "POST"

    def __init__(
        self, path: str, raw: bytes, headers: CIMultiDict[str], story: Story | None
    ) -> None:
        """Of a client's own words.

        Raises:
            msgspec.DecodeError: they are none.
        """
        self.headers = headers.copy()
        self.headers.popall("Content-Length", None)
        self.server = ""
        """The llama-server that has it in its cache."""
        self.at = 0.0
        self._path = path
        self._story = story
        self._fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        self._turns = tuple(_turns(self._fields))
        # What llama-server is told not to keep it has not lost.
        self.is_cached = self._fields.get("cache_prompt") != msgspec.Raw(b"false")
        self.length = 3 * len(raw) + EVENT_BYTES * (story.events if story else 0)
        self.n_bytes = self.length + TURN_BYTES * len(self._turns)

    def goes_on_from(self, earlier: Conversation) -> bool:
        """Whether an earlier request is the beginning of this one."""
        count = len(earlier._turns)
        if count == 1 == len(self._turns):
            return self._turns[0].startswith(earlier._turns[0])
        return bool(count) and self._turns[:count] == earlier._turns

    async def reading(self, ask: Ask) -> tuple[str, bytes]:
        """Path and body of what has it read: one token more is made, and lost."""
        if self._story is not None:
            try:
                return COMPLETION, _told_of(await self._story.reading(ask))
            except CannotGoOn:
                pass
        # Nobody sees what is told; some of its shapes are refused in a stream.
        dropped = {*LIMITS, *SEVERAL, *SHAPED, "stream", "stream_options"}
        kept = {k: v for k, v in self._fields.items() if k not in dropped}
        body = msgspec.json.encode({**kept, _LIMIT[self._path]: 1})
        return self._path, _told_of(body) if self._path in _TELL_PROGRESS else body


def _told_of(body: bytes) -> bytes:
    """The same, and llama-server tells after each batch how far it is.

    It notices then that nobody listens any more; else it looks once a second.
    """
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return msgspec.json.encode({**fields, "stream": True, "return_progress": True})


def _turns(fields: dict[str, msgspec.Raw]) -> Iterator[bytes]:
    """What was said, by message; a prompt or text as it is without its end."""
    name = next((name for name in _SAID if name in fields), None)
    if name is None:
        return
    raw = bytes(fields[name])
    if raw.startswith(b"[") and name == "prompt":
        # Perhaps the ids of its tokens: hundreds of thousands.
        yield raw.removesuffix(b"]")
    elif raw.startswith(b"["):
        yield from map(bytes, msgspec.json.decode(raw, type=list[msgspec.Raw]))
    else:
        yield raw.removesuffix(b'"')


class Conversations:
    """The last ones, each but once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """None yet."""
        self._clock = clock
        self._kept: list[Conversation] = []

    async def remember(self, asked: Asked, story: Story | None, server: str) -> None:
        """A request was answered by that llama-server."""
        if asked.path not in _LIMIT or not asked.is_short:
            return
        try:
            one = Conversation(asked.path, await asked.words(), asked.headers, story)
        except NOT_JSON:
            return
        if story is not None:
            story.forget_events()
        one.server, one.at = server, self._clock()
        if one.is_cached:
            self._keep(one)

    def _keep(self, one: Conversation) -> None:
        self._kept = [kept for kept in self._kept if not one.goes_on_from(kept)]
        self._kept.append(one)
        while len(self._kept) > KEPT_MAX or self.n_bytes > KEPT_BYTES_MAX:
            self._kept.pop(0)

    def drop(self, one: Conversation) -> None:
        """It is not read again."""
        self._kept = [kept for kept in self._kept if kept is not one]

    def forget(self) -> None:
        """Another model would read something else in them."""
        self._kept.clear()

    @property
    def n_bytes(self) -> int:
        """All that is kept, about."""
        return sum(one.n_bytes for one in self._kept)

    def cold(self, server: str) -> list[Conversation]:
        """Those that this llama-server has not read, the longest first."""
        since = self._clock() - ACTIVE_S
        self._kept = [one for one in self._kept if one.at >= since]
        found = [one for one in self._kept if one.server != server]
        return sorted(found, key=lambda one: one.length, reverse=True)


class _Timings(Value, frozen=True):
    prompt_n: int = 0


class _Cached(Value, frozen=True):
    cached_tokens: int = 0


class _Usage(Value, frozen=True):
    input_tokens: int = 0
    input_tokens_details: _Cached = _Cached()


class _Read(Value, frozen=True):
    timings: _Timings | None = None
    usage: _Usage = _Usage()


def tokens_read(raw: bytes) -> int:
    """So many tokens were read for an answer, in the words of whichever API."""
    said = [payload(event) for event in Splitter().take(raw)]
    try:
        told = msgspec.json.decode(next(filter(None, reversed(said)), raw), type=_Read)
    except NOT_JSON:
        return 0
    if told.timings is not None:
        return told.timings.prompt_n
    return told.usage.input_tokens - told.usage.input_tokens_details.cached_tokens
