"""Which way to guess pays, from what was measured."""

from __future__ import annotations

from itertools import accumulate
from operator import mul

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from backends.planning.speculating import (
    LENGTHS,
    PLAIN,
    WORTH,
    Way,
    choose,
    cost_of_guess,
    found_of,
    guesses_since,
    judged,
    speedup,
    verdict,
    ways_of,
    with_way,
)
from backends.state import (
    NO_DRAFT,
    DraftTrial,
    Guesses,
    ServerSettings,
    Speculation,
)
from tests.unit.planning.machines import ADA, plan_for
from tests.unit.planning.machines import PLAIN as PLAIN_HEAD

TABLE, MODEL = Way("ngram", 8), Way("/d.gguf", 8)
WAYS = (PLAIN, TABLE, MODEL)
PASSES = 1000
NONE_MADE = Guesses()
chances = st.floats(0.0, 0.999)
costs = st.floats(0.001, 2.0)


def guesses_of(chance: float, length: int, passes: int = PASSES) -> Guesses:
    """Where every guess is right so often, if those before it were."""
    by_position = tuple(
        round(passes * share) for share in accumulate([chance] * length, mul)
    )
    return Guesses(
        guessed=passes * length,
        accepted=sum(by_position),
        passes=passes,
        by_position=by_position,
    )


def trial(way: Way, tok_per_s: float, guesses: Guesses = NONE_MADE) -> DraftTrial:
    tokens = guesses.passes + guesses.accepted or 100
    return DraftTrial(
        draft=way.draft,
        draft_max=way.draft_max,
        tok_per_s=tok_per_s,
        tokens=tokens,
        guesses=guesses,
        at=1.0,
    )


def modelled(way: Way, chance: float, cost: float) -> DraftTrial:
    """What would be measured at 20 tok/s without guesses."""
    guesses = guesses_of(chance, way.draft_max)
    tokens = guesses.passes + guesses.accepted
    rate = 20.0 * speedup(tokens, guesses, cost, way.draft_max)
    return trial(way, rate, guesses)


def test_everything_is_tried_first_what_runs_before_the_others() -> None:
    assert choose(WAYS, (), TABLE) == (TABLE, False, None)
    plain = trial(PLAIN, 20.0)
    assert choose(WAYS, (plain,), PLAIN) == (TABLE, False, None)
    assert choose(WAYS, (plain,), PLAIN, {TABLE}) == (MODEL, False, None)
    assert choose(WAYS, (plain,), PLAIN, {TABLE, MODEL}) == (PLAIN, True, 1.0)
    assert choose((PLAIN,), (), PLAIN, {PLAIN}) == (PLAIN, True, None)
    assert choose(WAYS, (), PLAIN, {PLAIN}) == (PLAIN, True, None)
    alone = (trial(TABLE, 20.0),)
    assert choose((PLAIN, TABLE), alone, TABLE, {PLAIN}) == (PLAIN, True, None)


@given(chance=chances, cost=costs)
def test_the_cost_of_a_guess_follows_from_two_measurements(
    chance: float, cost: float
) -> None:
    measured = modelled(MODEL, chance, cost)
    assert cost_of_guess(measured, 20.0) == pytest.approx(cost)


@given(rates=st.tuples(*[st.floats(0.1, 1000.0)] * 3), running=st.sampled_from(WAYS))
def test_what_is_chosen_is_never_worth_less_than_the_others(
    rates: tuple[float, ...], running: Way
) -> None:
    trials = [trial(way, rate) for way, rate in zip(WAYS, rates, strict=True)]
    choice = choose(WAYS, trials, running)
    by_way = dict(zip(WAYS, rates, strict=True))
    assert choice.is_tried
    assert by_way[choice.way] * WORTH >= max(rates) * (1 - 1e-9)
    assert choice.way == running or by_way[choice.way] > WORTH * by_way[running]
    again = choose(WAYS, trials, choice.way)
    assert again.way == choice.way


@given(first=chances, second=chances, cost=costs, length=st.sampled_from(LENGTHS))
def test_more_that_is_right_is_never_slower(
    first: float, second: float, cost: float, length: int
) -> None:
    low, high = sorted((first, second))

    def told(chance: float) -> float:
        guesses = guesses_of(chance, length)
        return speedup(guesses.passes + guesses.accepted, guesses, cost, length)

    assert told(low) <= told(high) + 1e-9


@given(chance=chances, cost=costs)
def test_the_best_length_is_found_and_tried_once(chance: float, cost: float) -> None:
    trials = [trial(PLAIN, 20.0), modelled(MODEL, chance, cost)]
    choice = choose((PLAIN, MODEL), trials, MODEL)
    best = max(
        (n for n in LENGTHS if n <= MODEL.draft_max),
        key=lambda n: modelled(Way("/d.gguf", n), chance, cost).tok_per_s,
    )
    wanted = modelled(Way("/d.gguf", best), chance, cost)
    now = trials[1].tok_per_s
    if choice.way.draft == MODEL.draft and choice.way != MODEL:
        assert not choice.is_tried
        assert wanted.tok_per_s > now
        shorter = modelled(choice.way, chance, cost)
        assert shorter.tok_per_s == pytest.approx(wanted.tok_per_s, rel=0.01)
        later = choose((PLAIN, MODEL), [*trials, shorter], choice.way)
        assert later[:2] == (choice.way, True)
        assert later.speedup == pytest.approx(shorter.tok_per_s / 20)
    elif choice.way == MODEL:
        assert wanted.tok_per_s <= now * WORTH * 1.01


def test_only_what_may_be_chosen_now_is_tried_shorter() -> None:
    """Of an earlier launch there may be another draft, or more guesses at a time."""
    trials = (trial(PLAIN, 20.0), trial(TABLE, 21.0), modelled(MODEL, 0.5, 0.1))
    assert choose(WAYS, trials, PLAIN).way.draft == MODEL.draft
    assert choose((PLAIN, TABLE), trials, PLAIN).way == TABLE
    fewer = (PLAIN, Way(MODEL.draft, 2))
    assert choose(fewer, trials, PLAIN, {fewer[1]}).way == PLAIN


def test_what_clients_ask_for_has_the_last_word() -> None:
    told = modelled(MODEL, 0.9, 0.1)
    trials = (trial(PLAIN, 20.0), told)
    assert choose((PLAIN, MODEL), trials, MODEL).way == MODEL
    poor = guesses_of(0.2, 8)
    live = replace(told, live_tokens=poor.passes + poor.accepted, live_guesses=poor)
    lost = choose((PLAIN, MODEL), (trials[0], live), MODEL, {Way("/d.gguf", 1)})
    assert lost == (PLAIN, True, 1.0)


def test_a_slow_context_is_no_reason_to_stop_guessing() -> None:
    """What counts of the answers is how much was right, not how fast they were."""
    told = modelled(MODEL, 0.9, 0.1)
    same = guesses_of(0.9, 8)
    live = replace(told, live_tokens=same.passes + same.accepted, live_guesses=same)
    one, other = (
        judged((trial(PLAIN, 20.0), told))[1],
        judged((trial(PLAIN, 20.0), live))[1],
    )
    assert one.speedup == pytest.approx(other.speedup)


def test_tables_that_seldom_guess_are_judged_by_all_passes() -> None:
    guesses = Guesses(guessed=80, accepted=40, passes=10, by_position=(10, 10, 10, 10))
    assert speedup(1000, guesses, 0.0, 8) == pytest.approx(1000 / 960)
    dear = speedup(1000, guesses, 1.0, 8)
    assert dear < 1


def test_without_counts_the_rates_alone_tell() -> None:
    trials = (trial(PLAIN, 20.0), trial(TABLE, 30.0))
    assert [one.speedup for one in judged(trials)] == [1.0, 1.5]
    assert [one.speedup for one in judged(trials[1:])] == [None]
    assert choose((PLAIN, TABLE), trials, PLAIN) == (TABLE, True, 1.5)


def test_a_plan_runs_in_the_way_that_was_chosen() -> None:
    table = Speculation(type="ngram-map-k")
    model = Speculation(type="draft-simple", model="/d.gguf", instead=(table,))
    plan = replace(
        plan_for(PLAIN_HEAD, ADA, peers=("ada",)),
        server=ServerSettings(draft="auto"),
        speculation=model,
    )
    assert ways_of(plan) == WAYS
    assert ways_of(replace(plan, speculation=None)) == (PLAIN,)
    shorter = with_way(plan, Way("/d.gguf", 3))
    assert (shorter.server.draft, shorter.server.draft_max) == ("/d.gguf", 3)
    assert shorter.speculation == replace(model, instead=())
    assert with_way(plan, TABLE).speculation == table
    plain = with_way(plan, PLAIN)
    assert (plain.server.draft, plain.speculation) == (NO_DRAFT, None)


def test_guesses_are_counted_from_a_moment_on() -> None:
    before, after = guesses_of(0.5, 2), guesses_of(0.5, 3)
    told = guesses_since(
        replace(after, passes=PASSES + 5, accepted=before.accepted + 7), before
    )
    assert (told.passes, told.accepted) == (5, 7)
    assert len(told.by_position) == 3
    assert guesses_since(Guesses(), Guesses()) == Guesses()


@pytest.mark.parametrize(
    ("times", "said"),
    [
        (2.0, "pays"),
        (WORTH, "makes no difference"),
        (1 / WORTH, "makes no difference"),
        (0.9, "costs more than it brings"),
    ],
)
def test_what_a_speedup_comes_to(times: float, said: str) -> None:
    assert verdict(times) == said


def test_what_was_found_of_each_way() -> None:
    plain, model = trial(PLAIN, 20.0), trial(MODEL, 50.0, guesses_of(0.9, 8))
    (found,) = found_of((plain, model))
    assert (found.draft, found.plain_tok_per_s, found.speedup) == (*MODEL[:1], 20, 2.5)
    assert found.acceptance == model.guesses.acceptance
    live = Guesses(guessed=100, accepted=10, passes=50)
    (heard,) = found_of((plain, replace(model, live_tokens=300, live_guesses=live)))
    assert heard.acceptance == 0.1
    (alone,) = found_of((model,))
    assert (alone.plain_tok_per_s, alone.speedup, alone.verdict) == (None, None, None)
