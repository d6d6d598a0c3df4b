"""One streamed answer, whoever tells it: gone on with by ids, or told once more.

Where the ids of its tokens are known the next llama-server goes on after the last one
(``Course``). Where they are not it is asked the same again: what the client has must
come again event by event, and is kept from it; what follows goes on.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Protocol

import msgspec

from backends.gateway.apis import EndMark, has_known_end
from backends.gateway.courses import course_of
from backends.gateway.telling import Record, Telling
from backends.gateway.tokens import TOO_LONG, CannotGoOn
from backends.gateway.wish import draw_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from backends.gateway.course import Ask

NO_IDS = "its tokens are not known"
BOUND = "llama-server's arguments hold answers to a form or a length"
OTHERWISE = "told once more, it would go on otherwise"
OFTEN = "told once more, it broke off again and again"
RETOLD_MAX = 3
"""A telling that brings nothing new is tried so often."""
SEEDS = 1 << 31
UNSEEDED = 0xFFFFFFFF
"""What llama-server names the seed of who asks for none."""
_ERRORS = (b'data: {"error"', b"event: error\n", b"error: ")
_NO_PART = (b":", *_ERRORS)
"""What events begin with that are no part of the answer."""
_PROGRESS = b'"prompt_progress":'
"""How far a prompt is read: how often that is told depends on what is remembered."""


class Course(Protocol):
    """How one answer comes, and perhaps goes on by its ids."""

    @property
    def begun(self) -> bool:
        """Whether the client has got anything of it."""

    @property
    def is_told(self) -> bool:
        """Whether the client lacks nothing but the word that ends the stream."""

    @property
    def why_not(self) -> str:
        """Why it cannot be gone on with by ids; empty where it can."""

    @property
    def begins_anew(self) -> bool:
        """Whether so little came that the same is asked from the beginning."""

    def ask_anew(self) -> None:
        """The same is asked of another llama-server, from the beginning."""

    def first_body(self, raw: bytes) -> bytes:
        """What is asked at first."""

    async def next_body(self, ask: Ask) -> bytes:
        """What ``/completion`` is asked, so that it goes on."""

    def take(self, event: bytes) -> bytes:
        """What the client gets of an event."""

    def ending(self) -> bytes:
        """What is left to say once all is told."""


class PlainCourse:
    """An answer of which nothing is known but where it ends."""

    why_not = NO_IDS

    def __init__(self, path: str) -> None:
        """Of an answer at this path."""
        self._end_mark = EndMark(path)
        self.begun = False

    @property
    def is_told(self) -> bool:
        """Whether it came to its end."""
        return self.begun and not self._end_mark.is_missing

    @property
    def begins_anew(self) -> bool:
        """Whether nothing came."""
        return not self.begun

    def ask_anew(self) -> None:
        """Nothing is to be forgotten."""

    def first_body(self, raw: bytes) -> bytes:
        """The client's own words."""
        return raw

    async def next_body(self, ask: Ask) -> bytes:
        """There is nothing to go on from.

        Raises:
            CannotGoOn: always.
        """
        raise CannotGoOn(NO_IDS)

    def take(self, event: bytes) -> bytes:
        """All of it."""
        if not event.startswith(b":"):
            self.begun = True
            self._end_mark.look_at(event)
        return event

    def ending(self) -> bytes:
        """Nothing: its end is its last event."""
        return b""


class Story:
    """What became of one streamed answer."""

    def __init__(
        self, raw: bytes, make: Callable[[], Course], *, seed: int = 0
    ) -> None:
        """Nothing has come yet; ``make`` gives the course of another telling.

        ``seed`` was added to the request, so that the same is drawn again.
        """
        self._raw = raw
        self._make = make
        self._course = make()
        self._seed = seed
        self._record = Record()
        self._telling: Telling | None = None
        """The one that comes now, where it is not the first."""
        self._behind: int | None = None
        """So many events were told once more; None where the client has them all."""
        self._retold = 0
        """So often it was told once more since the client got anything new."""

    @property
    def first_body(self) -> bytes:
        """What is asked of the first llama-server, and of one that tells it again."""
        return self._course.first_body(self._raw)

    @property
    def events(self) -> int:
        """So many events of the answer the client has."""
        return len(self._record)

    @property
    def begun(self) -> bool:
        """Whether the client has got anything of it."""
        return bool(self.events) or self._course.begun

    @property
    def is_told(self) -> bool:
        """Whether the client lacks nothing but the word that ends the stream."""
        return self._course.is_told and not self.is_behind

    @property
    def is_behind(self) -> bool:
        """Whether what comes now is what the client has already."""
        return self._behind is not None

    @property
    def is_fragile(self) -> bool:
        """Whether another llama-server may not be able to go on with it."""
        return bool(self._course.why_not)

    @property
    def why_not(self) -> str:
        """Why nobody is asked to go on with it; empty where somebody is."""
        if not self._record.is_full or self._course.begins_anew:
            return ""
        return self._course.why_not and TOO_LONG

    def ending(self) -> bytes:
        """What is left to say once all is told."""
        return self._course.ending()

    # --- going on -----------------------------------------------------------------

    async def next_body(self, ask: Ask, *, bound: bool) -> bytes | None:
        """What ``/completion`` is asked, so that it goes on; None where all is again.

        ``bound``: llama-server's arguments hold answers to a form or a length.

        Raises:
            CannotGoOn: it cannot go on, honestly.
        """
        if self._course.begins_anew and not self.is_behind:
            self._course.ask_anew()
            return None
        try:
            if bound:
                raise CannotGoOn(BOUND)
            if not self.is_behind:
                return await self._course.next_body(ask)
        except CannotGoOn:
            if self._record.is_full:
                raise
        if self._retold >= RETOLD_MAX:
            raise CannotGoOn(OFTEN)
        self._course, self._telling = self._make(), Telling()
        # Reports of progress alone are not told again.
        self._behind = 0 if self.events else None
        return None

    # --- as it comes --------------------------------------------------------------

    def take(self, event: bytes) -> bytes:
        """What the client gets of an event.

        Raises:
            CannotGoOn: what comes is no continuation of what was.
        """
        told = self._course.take(event)
        if not told or event.startswith(_NO_PART):
            self._behind = None if event.startswith(_ERRORS) else self._behind
            return told
        if self._seed:
            told = told.replace(b'"seed":%d,' % self._seed, b'"seed":%d,' % UNSEEDED, 1)
        if _PROGRESS in told:
            return b"" if self.is_behind else told
        return self._told(told) if self._behind is None else self._again(told)

    def _told(self, event: bytes) -> bytes:
        """An event that the client has not."""
        self._retold = 0
        if self._telling is not None:
            event = self._telling.as_in(self._record.telling, event)
        self._record.add(event)
        return event

    def _again(self, event: bytes) -> bytes:
        """One that it ought to have."""
        assert self._behind is not None
        assert self._telling is not None
        self._retold += self._behind == 0
        if not self._record.agrees(self._behind, self._telling.sum_of(event)):
            raise CannotGoOn(OTHERWISE)
        is_last = self._behind + 1 == len(self._record)
        self._behind = None if is_last else self._behind + 1
        return b""


def story_of(path: str, raw: bytes, *, may_seed: bool) -> Story | None:
    """How the answer to a request is gone on with; None where it is no stream, or not.

    ``may_seed``: whether a draw that nobody chose a seed for may get one of ours. It is
    as random as before, and the same when it is drawn again.
    """
    draw = draw_of(raw) if has_known_end(path) else None
    if draw is None:
        return None
    seed = random.randrange(1, SEEDS) if may_seed and draw.is_random else 0
    if seed:
        raw = _seeded(raw, seed)
    return Story(
        raw,
        lambda: course_of(path, raw) or PlainCourse(path),
        seed=seed,
    )


def _seeded(raw: bytes, seed: int) -> bytes:
    fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    return msgspec.json.encode({**fields, "seed": seed})
