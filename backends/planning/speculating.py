"""Which way to guess pays, from what each was measured to bring: pure arithmetic.

A pass that looks at *k* guesses takes as long as a plain pass and *k* times a little
more (the guess itself, and its share of the check); it brings one token, and another
for each guess that was right with all before it. So two measurements, without guesses
and with *K* of them, tell what any shorter length would bring, and how much is right
of what clients ask tells what it brings them, however long their contexts are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from backends.split.speculation import ways_to_guess
from backends.state import (
    NGRAM_DRAFT,
    NO_DRAFT,
    DraftFound,
    DraftVerdict,
    Guesses,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from backends.state import DraftTrial, Plan

WORTH = 1.03
"""A change that brings less is not worth a load, and may be no more than noise."""
HOLDS_S = 12 * 3600.0
"""What clients asked for speaks no longer against a way that does not run: their text
may be another by now."""
LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
"""Of guesses, that are considered below the most that is allowed."""


class Way(NamedTuple):
    """One way to guess."""

    draft: str
    draft_max: int


PLAIN = Way(NO_DRAFT, 0)


class Choice(NamedTuple):
    """What to run next."""

    way: Way
    is_tried: bool
    """Whether it was measured; else it is to be."""
    speedup: float | None = None
    """Times as fast as plain decoding, as far as that is known."""


def ways_of(plan: Plan) -> tuple[Way, ...]:
    """All that ``auto`` may choose from, in the order in which they are tried.

    None is first: nobody is slower than without it for being always asked. The last
    one is that which most likely wins, and then runs already.
    """
    drafts = [one.draft for one in ways_to_guess(plan.speculation)]
    return (PLAIN, *(Way(draft, plan.server.draft_max) for draft in reversed(drafts)))


def with_way(plan: Plan, way: Way) -> Plan:
    """The plan as it runs when it guesses this way."""
    server = replace(plan.server, draft=way.draft)
    if way == PLAIN or plan.speculation is None:
        server = replace(server, draft=NO_DRAFT)
        return replace(plan, server=server, speculation=None)
    all_ways = ways_to_guess(plan.speculation)
    guess = next(one for one in all_ways if one.draft == way.draft)
    return replace(
        plan,
        server=replace(server, draft_max=way.draft_max),
        speculation=replace(guess, instead=()),
    )


def judged(trials: Sequence[DraftTrial]) -> tuple[DraftTrial, ...]:
    """The trials with how they stand to none."""
    plain = _plain(trials)
    if plain is None:
        return tuple(replace(trial, speedup=None) for trial in trials)
    return tuple(replace(trial, speedup=_present(trial, plain)) for trial in trials)


def as_of(
    at: float, trials: Iterable[DraftTrial], running: Way
) -> tuple[DraftTrial, ...]:
    """The trials, but for what clients asked for too long ago to hold."""

    def is_past(trial: DraftTrial) -> bool:
        return way_of(trial) != running and at - trial.live_at > HOLDS_S

    return tuple(
        replace(trial, live_tokens=0, live_guesses=None) if is_past(trial) else trial
        for trial in trials
    )


def found_of(trials: Sequence[DraftTrial]) -> tuple[DraftFound, ...]:
    """What the trials of one plan and network tell of each way to guess."""
    plain = _plain(trials)
    rate = plain.tok_per_s if plain else None
    return tuple(_found(one, rate) for one in judged(trials) if way_of(one) != PLAIN)


def _found(trial: DraftTrial, plain_tok_per_s: float | None) -> DraftFound:
    return DraftFound(
        draft=trial.draft,
        draft_max=trial.draft_max,
        tok_per_s=trial.tok_per_s,
        plain_tok_per_s=plain_tok_per_s,
        speedup=trial.speedup,
        acceptance=(trial.live_guesses or trial.guesses).acceptance,
        verdict=None if trial.speedup is None else verdict(trial.speedup),
        cluster=trial.cluster,
        network=trial.network,
        slots=trial.slots,
        at=trial.at,
    )


def verdict(speedup: float) -> DraftVerdict:
    """What so many times as fast as none comes to."""
    if speedup > WORTH:
        return DraftVerdict.PAYS
    return DraftVerdict.LOSES if speedup * WORTH < 1 else DraftVerdict.SAME


def choose(
    ways: Sequence[Way],
    trials: Iterable[DraftTrial],
    running: Way,
    given_up: Collection[Way] = (),
) -> Choice:
    """What to run: first all that was not tried, then the best, if it is worth it.

    ``given_up`` could not be tried.
    """
    if PLAIN in given_up:
        # Nothing would tell that any other is better.
        return Choice(PLAIN, is_tried=True)
    usable = [trial for trial in judged(tuple(trials)) if way_of(trial) not in given_up]
    known = {way_of(trial): trial.speedup for trial in usable}
    allowed = _allowed(ways, known, given_up)
    untried = [way for way in allowed if way not in known]
    for way in (running, *untried):
        if way in untried:
            return Choice(way, is_tried=False)
    found = {way: s for way, s in known.items() if way in allowed and s is not None}
    shorter = _shorter(usable, ways)
    if shorter and shorter.way not in (*found, *given_up):
        found |= {shorter.way: shorter.speedup or 0.0}
    best = max(found, key=lambda way: found[way])
    now = found.get(running)
    way = best if now is None or found[best] > WORTH * now else running
    return Choice(way, way in known, found[way])


def progress(
    ways: Sequence[Way],
    trials: Iterable[DraftTrial],
    running: Way,
    given_up: Collection[Way] = (),
) -> tuple[int, int]:
    """Which of how many ways is measured while ``running`` is, from 1."""
    known = {way_of(trial) for trial in trials} - {running}
    allowed = _allowed(ways, {*known, running}, given_up)
    return sum(way in known for way in allowed) + 1, len(allowed)


def _allowed(
    ways: Sequence[Way], known: Iterable[Way], given_up: Collection[Way]
) -> list[Way]:
    return [way for way in _with_lengths(ways, known) if way not in given_up]


def speedup(tokens: int, guesses: Guesses, cost: float, length: int) -> float:
    """Times as fast as plain decoding, with at most so many guesses at a time.

    ``tokens`` were made with ``guesses``, each of which costs ``cost`` plain passes.
    """
    looked = guesses.passes
    plain = max(tokens - guesses.accepted - looked, 0)
    made = plain + looked + right(guesses, length)
    return made / (plain + looked * (1 + cost * length)) if made else 1.0


def right(guesses: Guesses, length: int) -> int:
    """How many would have been right with at most so many at a time."""
    told = guesses.by_position[:length]
    return min(sum(told), guesses.accepted) if told else guesses.accepted


def cost_of_guess(trial: DraftTrial, plain_tok_per_s: float) -> float | None:
    """What one more guess costs, in plain passes; None where none were made."""
    guesses = trial.guesses
    if not guesses.passes or not trial.draft_max:
        return None
    looked = guesses.passes
    plain = max(trial.tokens - guesses.accepted - looked, 0)
    made = plain + looked + right(guesses, trial.draft_max)
    measured = made * plain_tok_per_s / trial.tok_per_s
    return max(measured - plain - looked, 0.0) / (looked * trial.draft_max)


def _present(trial: DraftTrial, plain: DraftTrial) -> float:
    """By what clients asked for, where that is enough; else by the trial itself."""
    cost = cost_of_guess(trial, plain.tok_per_s)
    live = trial.live_guesses
    if cost is None or live is None:
        return trial.tok_per_s / plain.tok_per_s
    return speedup(trial.live_tokens, live, cost, trial.draft_max)


def _shorter(trials: Sequence[DraftTrial], ways: Iterable[Way]) -> Choice | None:
    """The best length of a draft model that was tried in one only.

    Of those that may be chosen now: an earlier launch may have had others, or longer.
    """
    plain = _plain(trials)
    longest = {way.draft: way.draft_max for way in ways}
    models = [
        trial
        for trial in trials
        if trial.draft not in (NO_DRAFT, NGRAM_DRAFT)
        and trial.draft_max <= longest.get(trial.draft, 0)
    ]
    found = []
    for trial in models:
        once = sum(one.draft == trial.draft for one in models) == 1
        cost = cost_of_guess(trial, plain.tok_per_s) if plain else None
        if not once or cost is None or not trial.guesses.by_position:
            continue
        live = trial.live_guesses
        tokens, guesses = (
            (trial.live_tokens, live) if live else (trial.tokens, trial.guesses)
        )
        for length in LENGTHS:
            if length < trial.draft_max:
                rate = speedup(tokens, guesses, cost, length)
                found.append(Choice(Way(trial.draft, length), False, rate))
    return max(found, key=lambda one: one.speedup or 0.0, default=None)


def _with_lengths(ways: Sequence[Way], known: Iterable[Way]) -> list[Way]:
    """The ways, and those that were tried of a shorter length."""
    drafts = {way.draft: way.draft_max for way in ways}
    shorter = [w for w in known if w.draft_max < drafts.get(w.draft, 0)]
    return [*ways, *shorter]


def way_of(trial: DraftTrial) -> Way:
    """The way that a trial measured."""
    return Way(trial.draft, trial.draft_max)


def _plain(trials: Iterable[DraftTrial]) -> DraftTrial | None:
    return next((trial for trial in trials if way_of(trial) == PLAIN), None)


def positions_since(now: Sequence[int], before: Sequence[int]) -> tuple[int, ...]:
    """What of counts by position is new."""
    padded = (*before, *(0 for _ in range(len(now) - len(before))))
    return tuple(a - b for a, b in zip(now, padded, strict=False))


def guesses_since(now: Guesses, before: Guesses) -> Guesses:
    """What became of the guesses in between."""
    return Guesses(
        guessed=now.guessed - before.guessed,
        accepted=now.accepted - before.accepted,
        passes=now.passes - before.passes,
        by_position=positions_since(now.by_position, before.by_position),
    )
