"""Resumable streams: an answer of several llama-servers, as if of one.

If the ids of its tokens are known, the next llama-server continues after the last one
(``continuation``). If not, it is asked the same again (a replay): what the client has
must come again event by event, and is kept from it; what follows goes on.
"""

from __future__ import annotations

import random
import re
from array import array
from collections.abc import Callable

import msgspec

from backends.gateway.api_shapes import EndMark, has_known_end
from backends.gateway.continuation import (
    TOO_LONG,
    CannotResume,
    Post,
    StreamAdapter,
    adapter_of,
)
from backends.gateway.request import RequestOptions

EVENTS_MAX = 1 << 18
"""A longer answer is not replayed: two mebibytes of sums."""
LONG_BYTES = 1 << 20
EDGE_BYTES = 1 << 16
"""Of a long event, what is looked through at either end: what varies stands there, and
in the middle what was asked for. Others wait while it is read."""
_VARYING = re.compile(
    rb'"(?:(?P<id>id|item_id|call_id)":"(?P<name>[^"\\]*)"'
    rb'|(?P<made>created|created_at)":(?P<at>\d+)'
    rb"|(?:completed_at|id_slot|tokens_cached|cached_tokens|cache_read_input_tokens"
    rb'|input_tokens)":-?\d+'
    rb')|,?"timings":\{[^{}]*\}'
)
"""Inside of a text the quotation marks would be escaped."""
NO_IDS = "its tokens are not known"
BOUND = "llama-server's arguments hold answers to a form or a length"
OTHERWISE = "told once more, it would go on otherwise"
OFTEN = "told once more, it broke off again and again"
REPLAYS_MAX = 3
"""So many replays in turn may bring nothing new."""
SEEDS = 1 << 31
UNSEEDED = 0xFFFFFFFF
"""llama-server's name for the seed of a request without one."""
_ERRORS = (b'data: {"error"', b"event: error\n", b"error: ")
_NO_PART = (b":", *_ERRORS)
"""Beginnings of events that are no part of the answer."""
_PROGRESS = b'"prompt_progress":'
"""The progress of a prompt: the number of such events depends on the cache."""


class Replay:
    """The events of one llama-server's answer, read in their order.

    Two replays of an answer differ in what llama-server makes up or measures: ids of
    answers, items and calls, and times. The ids are numbered as they appear. So
    those of a later replay get the names that the client knows.
    """

    def __init__(self) -> None:
        self._names: dict[bytes, int] = {}
        self._made: dict[bytes, bytes] = {}

    def sum_of(self, event: bytes) -> int:
        """The same number for the same event of another replay."""
        return hash(_changed(event, self._without))

    def _without(self, found: re.Match[bytes]) -> bytes:
        if found["made"]:
            self._made.setdefault(found["made"], found["at"])
        if not found["id"]:
            return b""
        return b"%s %d" % (found["id"], self._number(found["name"]))

    def _number(self, name: bytes) -> int:
        return self._names.setdefault(name, len(self._names))

    def as_in(self, first: Replay, event: bytes) -> bytes:
        """An event of this replay with the names and the date of another."""
        names = list(first._names)

        def renamed(found: re.Match[bytes]) -> bytes:
            number = self._number(found["name"]) if found["id"] else len(names)
            if number < len(names):
                return b'"%s":"%s"' % (found["id"], names[number])
            made = found["made"]
            if made in first._made:
                return b'"%s":%s' % (made, first._made[made])
            return found[0]

        return _changed(event, renamed)


def _changed(event: bytes, change: Callable[[re.Match[bytes]], bytes]) -> bytes:
    if len(event) <= LONG_BYTES:
        return _VARYING.sub(change, event)
    ends = (event[:EDGE_BYTES], event[-EDGE_BYTES:])
    first, last = (_VARYING.sub(change, end) for end in ends)
    return b"".join((first, event[EDGE_BYTES:-EDGE_BYTES], last))


class SentEvents:
    """The events that a client has: eight bytes each."""

    def __init__(self) -> None:
        self.replay = Replay()
        """The answer that all of them are of, as far as it has come."""
        self._sums = array("q")
        self.is_full = False
        """True if there were more than are kept."""

    def __len__(self) -> int:
        return len(self._sums)

    def add(self, event: bytes) -> None:
        self.is_full = self.is_full or len(self) >= EVENTS_MAX
        if not self.is_full:
            self._sums.append(self.replay.sum_of(event))

    def agrees(self, number: int, other: int) -> bool:
        return self._sums[number] == other


class PlainAdapter:
    """An answer of which nothing is known but its end: it can only be replayed."""

    why_not = NO_IDS

    def __init__(self, path: str) -> None:
        self._end_mark = EndMark(path)
        self.begun = False

    @property
    def is_told(self) -> bool:
        return self.begun and not self._end_mark.is_missing

    @property
    def begins_anew(self) -> bool:
        return not self.begun

    def ask_anew(self) -> None:
        """Forget nothing: nothing is kept."""

    def first_body(self, raw: bytes) -> bytes:
        return raw

    async def next_body(self, post: Post) -> bytes:
        raise CannotResume(NO_IDS)

    def take(self, event: bytes) -> bytes:
        if not event.startswith(b":"):
            self.begun = True
            self._end_mark.look_at(event)
        return event

    def ending(self) -> bytes:
        return b""


class ResumableStream:
    """One streamed answer, resumed by token ids or by a replay.

    ``make`` gives the adapter of another replay. ``seed`` was added to the request, so
    that the same is drawn again.
    """

    def __init__(
        self,
        raw: bytes,
        make: Callable[[], StreamAdapter | PlainAdapter],
        *,
        seed: int = 0,
    ) -> None:
        self._raw = raw
        self._make = make
        self._adapter = make()
        self._seed = seed
        self._sent = SentEvents()
        self._replay: Replay | None = None
        """The one that comes now; None before the first."""
        self._behind: int | None = None
        """So many events were replayed; None if the client has no later one."""
        self._replays = 0
        """Replays since the client got anything new."""

    @property
    def first_body(self) -> bytes:
        return self._adapter.first_body(self._raw)

    @property
    def events(self) -> int:
        return len(self._sent)

    @property
    def begun(self) -> bool:
        return bool(self.events) or self._adapter.begun

    @property
    def is_told(self) -> bool:
        """True if the client lacks nothing but the word that ends the stream."""
        return self._adapter.is_told and not self.is_behind

    @property
    def is_behind(self) -> bool:
        return self._behind is not None

    @property
    def is_fragile(self) -> bool:
        """True if another llama-server may not be able to continue it."""
        return bool(self._adapter.why_not)

    @property
    def why_not(self) -> str:
        if not self._sent.is_full or self._adapter.begins_anew:
            return ""
        return self._adapter.why_not and TOO_LONG

    def ending(self) -> bytes:
        return self._adapter.ending()

    async def next_body(self, post: Post, *, bound: bool) -> bytes | None:
        """The request for ``/completion`` that continues it; None for a replay.

        ``bound``: llama-server's arguments hold answers to a form or a length.

        Raises:
            CannotResume: neither is possible, honestly.
        """
        if self._adapter.begins_anew and not self.is_behind:
            self._adapter.ask_anew()
            return None
        try:
            if bound:
                raise CannotResume(BOUND)
            if not self.is_behind:
                return await self._adapter.next_body(post)
        except CannotResume:
            if self._sent.is_full:
                raise
        if self._replays >= REPLAYS_MAX:
            raise CannotResume(OFTEN)
        self._adapter, self._replay = self._make(), Replay()
        # Reports of progress alone are not told again.
        self._behind = 0 if self.events else None
        return None

    def take(self, event: bytes) -> bytes:
        """Take an event of llama-server's; what the client gets of it.

        Raises:
            CannotResume: what comes is no continuation of what was.
        """
        told = self._adapter.take(event)
        if not told or event.startswith(_NO_PART):
            self._behind = None if event.startswith(_ERRORS) else self._behind
            return told
        if self._seed:
            told = told.replace(b'"seed":%d,' % self._seed, b'"seed":%d,' % UNSEEDED, 1)
        if _PROGRESS in told:
            return b"" if self.is_behind else told
        return self._told(told) if self._behind is None else self._again(told)

    def _told(self, event: bytes) -> bytes:
        self._replays = 0
        if self._replay is not None:
            event = self._replay.as_in(self._sent.replay, event)
        self._sent.add(event)
        return event

    def _again(self, event: bytes) -> bytes:
        assert self._behind is not None
        assert self._replay is not None
        self._replays += self._behind == 0
        if not self._sent.agrees(self._behind, self._replay.sum_of(event)):
            raise CannotResume(OTHERWISE)
        is_last = self._behind + 1 == len(self._sent)
        self._behind = None if is_last else self._behind + 1
        return b""


def resumable(
    path: str, raw: bytes, options: RequestOptions, *, may_seed: bool
) -> ResumableStream | None:
    """The stream that a request asks for; None if it can neither continue nor replay.

    ``may_seed``: a draw that nobody chose a seed for may get one of ours. It is as
    random as before, and the same when it is drawn again.
    """
    if not has_known_end(path) or not options.is_replayable:
        return None
    seed = random.randrange(1, SEEDS) if may_seed and options.is_random else 0
    if seed:
        field = msgspec.Raw(b"%d" % seed)
        options = RequestOptions({**options.fields, "seed": field})
        raw = msgspec.json.encode(options.fields)
    return ResumableStream(
        raw, lambda: adapter_of(path, options) or PlainAdapter(path), seed=seed
    )
