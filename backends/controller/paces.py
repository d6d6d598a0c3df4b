"""How fast each way to guess was, kept by everything else that decides the speed.

Every answer that was alone is measured while it is made. What was measured without a
draft stands beside what is measured with one, whichever runs now, also after a restart.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec.structs import replace

from backends.state import (
    DRAFT_MAX,
    NO_DRAFT,
    NOT_JSON,
    ClusterState,
    Lab,
    Pace,
    Speed,
    Value,
)
from backends.writing import write_private

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from backends.state import ClusterSnapshot, Plan

TOKENS_MIN = 24
"""A shorter answer tells more of its first token than of the rest."""
ANSWERS_KEPT = 9
SITES_KEPT = 64
"""Plans and networks; the one measured longest ago is forgotten."""


class Measured(Value, frozen=True, kw_only=True):
    """The latest answers of one way to guess."""

    draft: str
    draft_max: int
    rates: tuple[float, ...]
    at: float

    @property
    def pace(self) -> Pace:
        """The same in one figure."""
        return Pace(
            draft=self.draft,
            draft_max=self.draft_max,
            tok_per_s=median(self.rates),
            answers=len(self.rates),
            at=self.at,
        )


Book = dict[str, tuple[Measured, ...]]


class _Answer(NamedTuple):
    """One that is being made."""

    tokens: int
    """Made before it."""
    alone: bool


class Paces:
    """Watches snapshots of every cluster, and keeps what it sees in a file."""

    def __init__(self, file: Path, clock: Callable[[], float] = time.time) -> None:
        """Go on with what the file has; one that cannot be read begins anew."""
        self._file = file
        self._clock = clock
        self._answers: dict[str, _Answer] = {}
        self._before: dict[str, Speed] = {}
        self._book: Book = {}
        with contextlib.suppress(OSError, *NOT_JSON):
            self._book = msgspec.json.decode(file.read_bytes(), type=Book)

    def look(self, snapshot: ClusterSnapshot) -> tuple[Pace, ...]:
        """Take a newer snapshot; every way measured for its plan and network."""
        plan, name, speed = snapshot.plan, snapshot.cluster, snapshot.speed
        if plan is None or snapshot.state is not ClusterState.SERVING:
            self._answers.pop(name, None)
            self._before.pop(name, None)
            return ()
        site = site_of(plan, {link.worker: link.lab for link in snapshot.links})
        before = self._before.get(name, speed)
        self._before[name] = speed
        if rate := self._finished(name, before, speed):
            self._keep(site, plan, rate)
        return tuple(one.pace for one in self._book.get(site, ()))

    def _finished(self, name: str, before: Speed, now: Speed) -> float | None:
        """The rate of an answer that has ended, if it was alone and long enough."""
        if now.requests_active:
            answer = self._answers.get(name) or _Answer(before.tokens, alone=True)
            alone = answer.alone and now.requests_active == 1
            self._answers[name] = answer._replace(alone=alone)
            return None
        ended = self._answers.pop(name, None)
        if ended is None or not ended.alone or now.tokens - ended.tokens < TOKENS_MIN:
            return None
        return now.last_tok_per_s

    def _keep(self, site: str, plan: Plan, rate: float) -> None:
        """One answer more; a book that cannot be written lasts as long as we do."""
        way = _way(plan)
        known = self._book.pop(site, ())
        rates = next(
            (one.rates for one in known if (one.draft, one.draft_max) == way), ()
        )
        newest = Measured(
            draft=way[0],
            draft_max=way[1],
            rates=(*rates, rate)[-ANSWERS_KEPT:],
            at=self._clock(),
        )
        others = (one for one in known if (one.draft, one.draft_max) != way)
        self._book[site] = (*others, newest)
        while len(self._book) > SITES_KEPT:
            del self._book[next(iter(self._book))]
        with contextlib.suppress(OSError):
            write_private(self._file, msgspec.json.encode(self._book))


def _way(plan: Plan) -> tuple[str, int]:
    """How a plan guesses."""
    drafted = plan.speculation is not None
    return (plan.server.draft, plan.server.draft_max) if drafted else (NO_DRAFT, 0)


def site_of(plan: Plan, labs: dict[str, Lab | None]) -> str:
    """A word for everything that decides the speed but how it is guessed."""
    plain = replace(
        plan,
        server=replace(plan.server, draft=NO_DRAFT, draft_max=DRAFT_MAX),
        speculation=None,
        api_port=None,
        asked=None,
    )
    added = {
        worker: (lab.latency_ms, lab.jitter_ms, lab.rate_mb_s)
        for worker, lab in sorted(labs.items())
        if lab is not None
    }
    return hashlib.sha256(msgspec.json.encode((plain, added))).hexdigest()[:24]
