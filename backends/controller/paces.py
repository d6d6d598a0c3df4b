"""The speed of each draft, kept by everything else that decides the speed.

Every answer that was alone is measured, and several that were made at once together.
What was measured without a draft stands beside what is measured with one, whichever
runs now, also after a restart.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from statistics import median
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec

from backends.speculation.auto import without_draft
from backends.state import (
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
READINGS_MIN = 6
"""So long several clients must be at it together: the rate is that of some seconds."""
RATES_KEPT = 9
SITES_KEPT = 64
"""Plans and networks; the one measured longest ago is forgotten."""


class Way(NamedTuple):
    """What is measured apart."""

    draft: str
    draft_max: int
    clients: int


class Measured(Value, frozen=True, kw_only=True):
    """The latest rates of one way."""

    way: Way
    rates: Annotated[tuple[float, ...], msgspec.Meta(min_length=1)]
    at: float

    @property
    def pace(self) -> Pace:
        """The same in one figure."""
        return Pace(
            **self.way._asdict(),
            tok_per_s=median(self.rates),
            count=len(self.rates),
            at=self.at,
        )


Book = dict[str, tuple[Measured, ...]]


class _Spell(NamedTuple):
    """A time in which the same number of clients is answered."""

    clients: int
    tokens: int
    """Made before it."""
    from_idle: bool
    readings: int = 1
    rate: float | None = None
    """Of the last reading."""


class Paces:
    """Watches snapshots of every cluster, and keeps what it sees in a file."""

    def __init__(self, file: Path, clock: Callable[[], float] = time.time) -> None:
        """Go on with what the file has; one that cannot be read begins anew."""
        self._file = file
        self._clock = clock
        self._spells: dict[str, _Spell] = {}
        self._before: dict[str, Speed] = {}
        self._book: Book = {}
        with contextlib.suppress(OSError, *NOT_JSON):
            self._book = msgspec.json.decode(file.read_bytes(), type=Book)

    def look(self, snapshot: ClusterSnapshot) -> tuple[Pace, ...]:
        """Take a newer snapshot; every way measured for its plan and network."""
        plan, name, speed = snapshot.plan, snapshot.cluster, snapshot.speed
        if plan is None or snapshot.state is not ClusterState.SERVING:
            self._spells.pop(name, None)
            self._before.pop(name, None)
            return ()
        site = site_of(plan, {link.worker: link.lab for link in snapshot.links})
        before = self._before.get(name, speed)
        self._before[name] = speed
        spell = self._spells.get(name)
        if speed != before or spell is None:
            if rate := _rate(spell, speed):
                assert spell is not None, "a rate is that of a spell"
                self._keep(site, Way(*snapshot.drafts_with, spell.clients), rate)
            self._go_on(name, spell, before, speed)
        return tuple(one.pace for one in self._book.get(site, ()))

    def _go_on(
        self, name: str, spell: _Spell | None, before: Speed, now: Speed
    ) -> None:
        """The spell goes on, or another one begins, or there is none."""
        clients = now.requests_active
        if not clients:
            self._spells.pop(name, None)
        elif spell is None or spell.clients != clients:
            self._spells[name] = _Spell(clients, before.tokens, spell is None)
        else:
            readings, rate = spell.readings + 1, now.tok_per_s
            self._spells[name] = spell._replace(readings=readings, rate=rate)

    def _keep(self, site: str, way: Way, rate: float) -> None:
        """One rate more; a book that cannot be written lasts as long as we do."""
        known = self._book.pop(site, ())
        rates = next((one.rates for one in known if one.way == way), ())
        latest = (*rates, rate)[-RATES_KEPT:]
        newest = Measured(way=way, rates=latest, at=self._clock())
        self._book[site] = (*(one for one in known if one.way != way), newest)
        while len(self._book) > SITES_KEPT:
            del self._book[next(iter(self._book))]
        with contextlib.suppress(OSError):
            write_private(self._file, msgspec.json.encode(self._book), durable=False)


def _rate(spell: _Spell | None, now: Speed) -> float | None:
    """That of a spell which has ended, if it tells anything.

    One answer has its own figure. Several have that of the last seconds in which all of
    them were being made.
    """
    if spell is None or spell.clients == now.requests_active:
        return None
    if spell.clients > 1:
        return spell.rate if spell.readings >= READINGS_MIN else None
    whole = spell.from_idle and not now.requests_active
    long = now.tokens - spell.tokens >= TOKENS_MIN
    return now.last_tok_per_s if whole and long else None


def site_of(plan: Plan, labs: dict[str, Lab | None]) -> str:
    """A hash of everything that decides the speed, without the draft."""
    added = {
        worker: (lab.latency_ms, lab.jitter_ms, lab.rate_mb_s)
        for worker, lab in sorted(labs.items())
        if lab is not None
    }
    return hashlib.sha256(
        msgspec.json.encode((without_draft(plan), added))
    ).hexdigest()[:24]
