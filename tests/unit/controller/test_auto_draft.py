"""``--draft auto``: what is tried when, what a client's request ends, what is kept."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from backends.controller.auto_draft import FAILURES_MAX, LIVE_TOKENS
from backends.controller.draft_words import told
from backends.controller.trials import TrialBook
from backends.controller.trying import ROUNDS_MAX
from backends.engine.server import Counts
from backends.planning.speculating import HOLDS_S, PLAIN, Way
from backends.state import (
    DraftVerdict,
    Lab,
    Link,
    Plan,
    Speed,
)
from backends.state.requests import RequestCounts
from tests.unit.controller.auto_stage import (
    MODEL,
    PLAN,
    RATES,
    RIGHT,
    TABLE,
    WRONG,
    Stage,
)
from tests.waiting import until
from tui.work.paces import auto_text, trials_text

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
async def stage(tmp_path: Path) -> Any:
    stage = Stage(tmp_path)
    stage.begins()
    yield stage
    await stage.ends()


async def test_every_way_is_tried_once_and_the_fastest_stays(stage: Stage) -> None:
    await stage.settled()
    assert stage.trials == [PLAIN, TABLE, MODEL]
    assert stage.way == MODEL
    assert stage.now.why == "×3.00 against none"
    assert auto_text(stage.board.snapshot).startswith("auto: with small (8 tokens) · ")
    assert "with ngram (8 tokens): 24.0 tok/s (×1.20)" in trials_text(
        stage.board.snapshot
    )
    assert stage.chapter.texts == [
        "Measured without a draft: 20.0 tok/s",
        "It was loaded again, to be measured with ngram, 8 tokens",
        "Measured with ngram, 8 tokens: 24.0 tok/s",
        "It was loaded again, to be measured with small, 8 tokens",
        "Measured with small, 8 tokens: 60.0 tok/s",
        "Chosen: with small, 8 tokens (60.0 tok/s, ×3.00 against none)",
    ]
    assert stage.now.chosen == stage.chapter.texts[-1]


async def test_it_says_how_far_measuring_has_come(stage: Stage) -> None:
    await stage.settled()
    plain, ngram = "measuring without a draft", "measuring with ngram, 8 tokens"
    assert [text.rpartition(" · ")[2] for text in stage.shown[:4]] == [
        f"{plain} (way 1 of 3, warming up)",
        f"{plain} (way 1 of 3, round 2 of at most {ROUNDS_MAX})",
        f"{ngram} (way 2 of 3, warming up)",
        f"{ngram} (way 2 of 3, round 2 of at most {ROUNDS_MAX})",
    ]
    assert "(way 3 of 3, " in stage.shown[-1]
    assert stage.now.measuring is None


async def test_a_way_that_cannot_be_tried_is_not_counted(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.auto.give_up(PLAN, TABLE)
    task = asyncio.create_task(stage.run())
    await stage.settled()
    assert "(way 2 of 2, " in stage.shown[-1]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_what_was_found_of_a_model_is_told_whatever_the_network(
    stage: Stage,
) -> None:
    await stage.settled()
    book = TrialBook(stage.file)
    assert book.found_for("/models/other.gguf") == ()
    small, ngram = sorted(book.found_for(PLAN.model), key=lambda one: one.draft)
    assert (small.draft, small.plain_tok_per_s, small.tok_per_s) == (
        *(MODEL.draft, RATES[PLAIN], RATES[MODEL]),
    )
    assert (small.acceptance, small.verdict) == (0.75, DraftVerdict.PAYS)
    assert ngram.draft == "ngram"
    assert ngram.speedup == pytest.approx(1.2)
    stage.board.update(links=(Link(worker="ada", lab=Lab(latency_ms=10)),))
    await until(lambda: len(stage.trials) == 2 * len(RATES))
    await stage.settled()
    found = TrialBook(stage.file).found_for(PLAN.model)
    assert [one.network for one in found if one.draft == "ngram"].count("") == 1
    slow = "ada at an unknown distance (lab +10 ms)"
    assert [one.network for one in found].count(slow) == len(found) - 2 == 2
    assert {(one.cluster, one.slots) for one in found} == {("default", 1)}


async def test_what_was_found_is_kept(stage: Stage) -> None:
    await stage.settled()
    stage.trials.clear()
    stage.chapter.texts.clear()
    later = stage.made()
    assert later.begins(PLAN) == MODEL
    over = asyncio.create_task(later.over(PLAN, MODEL))
    await stage.settled()
    assert not stage.trials
    assert not stage.chapter.texts
    over.cancel()


async def _disturbed(stage: Stage) -> None:
    """A client asks in the first trial, which ends that."""
    stage.hangs.clear()
    await until(lambda: stage.trials == [PLAIN])
    stage.board.update(requests=RequestCounts(in_flight=1))
    stage.hangs.set()
    await until(lambda: "nobody asks" in stage.now.doing)


async def test_a_client_that_asks_ends_a_trial_which_comes_again(
    stage: Stage,
) -> None:
    await _disturbed(stage)
    for _ in range(50):
        await asyncio.sleep(0)
    assert stage.trials == [PLAIN]
    stage.board.update(requests=RequestCounts())
    await stage.settled()
    assert stage.trials == [PLAIN, PLAIN, TABLE, MODEL]


async def test_a_trial_cut_short_leaves_nothing_on_the_board(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.hangs.clear()
    stage.begins()
    await until(lambda: bool(stage.trials))
    stage.auto.forget()  # Somebody stops the cluster.
    await stage.ends()
    assert stage.now is None


async def test_what_is_read_ahead_is_neither_measured_nor_disturbed(
    stage: Stage,
) -> None:
    await _disturbed(stage)
    stage.board.update(requests=RequestCounts(), speed=Speed(requests_active=1))
    looks = stage.looks
    await until(lambda: stage.looks > looks + 50)
    assert stage.trials == [PLAIN]
    stage.board.update(speed=Speed())
    await stage.settled()
    assert stage.trials == [PLAIN, PLAIN, TABLE, MODEL]


async def test_a_trial_that_something_died_in_is_shown_no_more(stage: Stage) -> None:
    stage.hangs.clear()
    await until(lambda: bool(stage.trials))
    assert stage.now.measuring is not None
    await stage.ends()
    assert stage.now.measuring is None
    assert stage.now.doing == "to be measured when nobody asks"


async def test_a_model_that_answers_nothing_is_loaded_no_more(stage: Stage) -> None:
    stage.fails |= set(RATES)
    await stage.settled()
    assert stage.trials == [PLAIN] * FAILURES_MAX
    assert stage.way == PLAIN


async def test_where_nobody_counts_requests_nobody_is_known_to_be_idle(
    stage: Stage,
) -> None:
    stage.board.update(requests=None)
    for _ in range(50):
        await asyncio.sleep(0)
    assert not stage.trials
    stage.board.update(requests=RequestCounts())
    await stage.settled()
    assert set(stage.trials) == set(RATES)


async def test_what_a_server_did_not_count_in_time_is_not_what_clients_asked(
    stage: Stage,
) -> None:
    await stage.settled()
    stage.counts = Counts()
    stage.board.update(speed=Speed(tokens=1))
    for _ in range(50):
        await asyncio.sleep(0)
    await stage.asks(LIVE_TOKENS, WRONG)
    for _ in range(50):
        await asyncio.sleep(0)
    assert stage.way == MODEL
    assert all(one.live_guesses is None for one in stage.now.trials)


async def test_a_way_that_fails_again_is_not_tried_any_more(stage: Stage) -> None:
    stage.fails.add(TABLE)
    await stage.settled()
    assert stage.trials == [PLAIN, *[TABLE] * FAILURES_MAX, MODEL]
    failures = [failure.what for failure in stage.chapter.failures]
    what = "The trial with ngram, 8 tokens failed: no answer"
    assert failures == [what] * FAILURES_MAX


async def test_a_trial_that_fails_in_an_unforeseen_way_ends_nothing_else(
    stage: Stage,
) -> None:
    stage.fails.add(TABLE)
    stage.error = ZeroDivisionError("who would have thought")
    await stage.settled()
    assert stage.trials == [PLAIN, *[TABLE] * FAILURES_MAX, MODEL]
    assert stage.way == MODEL
    (failure, _) = stage.chapter.failures
    assert failure.what == (
        "The trial with ngram, 8 tokens failed: "
        "ZeroDivisionError: who would have thought"
    )
    assert any("in trial" in line for line in failure.log_tail)
    assert "controller.log" in failure.hint


async def test_a_trial_that_is_cut_off_from_within_fails(stage: Stage) -> None:
    stage.fails.add(TABLE)
    stage.error = asyncio.CancelledError()
    await stage.settled()
    assert stage.trials == [PLAIN, *[TABLE] * FAILURES_MAX, MODEL]
    assert {failure.what for failure in stage.chapter.failures} == {
        "The trial with ngram, 8 tokens failed: It was cut off"
    }


async def test_what_serves_goes_on_where_measuring_itself_breaks(
    stage: Stage,
) -> None:
    await stage.settled()
    stage.counts = ZeroDivisionError("who would have thought")
    stage.board.update(speed=Speed(tokens=1))
    await until(lambda: bool(stage.chapter.failures))
    (failure,) = stage.chapter.failures
    assert "it serves on as it does: ZeroDivisionError" in failure.what
    for _ in range(50):
        await asyncio.sleep(0)
    assert not stage.task.done()
    assert stage.way == MODEL


async def test_a_trial_that_something_died_in_is_not_the_ways_fault(
    stage: Stage,
) -> None:
    stage.fails.add(TABLE)
    stage.lives.clear()
    for _ in range(FAILURES_MAX):
        await until(lambda: stage.is_judging)
        await stage.ends()
        stage.begins()
    stage.fails.clear()
    stage.lives.set()
    await stage.settled()
    assert stage.trials.count(TABLE) == FAILURES_MAX + 1
    assert not stage.chapter.failures


async def test_two_clusters_of_one_plan_remember_apart(stage: Stage) -> None:
    await stage.settled()
    other = Stage(stage.file.parent, "other")
    assert other.auto.begins(PLAN) == PLAIN
    other.auto.give_up(PLAN, TABLE)
    assert stage.made().begins(PLAN) == MODEL


async def test_what_clients_ask_for_turns_a_draft_off(stage: Stage) -> None:
    await stage.settled()
    await stage.asks(LIVE_TOKENS, WRONG)
    await until(lambda: stage.way == TABLE)
    await stage.settled()
    before = "before: with small, 8 tokens (60.0 tok/s when tried, "
    told_of = stage.chapter.texts[-1]
    assert told_of.startswith("Chosen: with ngram, 8 tokens (24.0 tok/s, ×1.20 ")
    assert f"; {before}×" in told_of
    assert told_of.endswith(" against none by what clients asked for since)")
    await stage.asks(LIVE_TOKENS, WRONG)
    await until(lambda: stage.way == PLAIN)
    await stage.settled()
    assert stage.now.why == "no way to guess was faster"
    assert stage.now.chosen.startswith("Chosen: without a draft (20.0 tok/s); before: ")


async def test_what_clients_asked_for_long_ago_keeps_no_way_out(stage: Stage) -> None:
    await stage.settled()
    await stage.asks(LIVE_TOKENS, WRONG)
    await until(lambda: stage.way == TABLE)
    await stage.settled()
    stage.at += HOLDS_S
    await stage.asks(1, RIGHT)
    for _ in range(50):
        await asyncio.sleep(0)
    assert stage.way == TABLE
    stage.at += 1
    await stage.asks(2, RIGHT)
    await until(lambda: stage.way == MODEL)
    await stage.settled()
    assert (stage.way, stage.now.why) == (MODEL, "×3.00 against none")


async def test_little_that_clients_asked_for_tells_nothing(stage: Stage) -> None:
    await stage.settled()
    await stage.asks(LIVE_TOKENS - 1, WRONG)
    for _ in range(50):
        await asyncio.sleep(0)
    assert stage.way == MODEL


async def test_another_network_is_tried_anew(stage: Stage) -> None:
    await stage.settled()
    stage.trials.clear()
    stage.board.update(links=(Link(worker="ada", lab=Lab(latency_ms=10)),))
    await until(lambda: len(stage.trials) == len(RATES))
    await stage.settled()
    assert set(stage.trials) == set(RATES)


async def test_a_network_that_wavers_is_followed_each_time_later(
    stage: Stage,
) -> None:
    near, far = (), (Link(worker="ada", lab=Lab(latency_ms=10)),)
    await stage.settled()
    stage.rates = {PLAIN: 20.0, TABLE: 60.0, MODEL: 24.0}
    stage.board.update(links=far)
    await until(lambda: stage.way == TABLE and not stage.now.doing)
    stage.trials.clear()
    looks = []
    for links in (near, far, near):
        before, left = stage.looks, stage.way
        stage.board.update(links=links)
        await until(partial(stage.has_left, left))
        looks.append(stage.looks - before)
    assert looks[0] < looks[1] < looks[2]
    assert not stage.trials


async def test_no_more_is_guessed_than_is_allowed_now(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    TrialBook(stage.file).choose(PLAN, Way(MODEL.draft, MODEL.draft_max + 1))
    assert stage.made().begins(PLAN) == PLAIN
    shorter = Way(MODEL.draft, MODEL.draft_max - 1)
    TrialBook(stage.file).choose(PLAN, shorter)
    assert stage.made().begins(PLAN) == shorter


async def test_a_draft_that_is_lost_is_left_out(stage: Stage) -> None:
    await stage.settled()
    stage.auto.give_up(PLAN, MODEL)
    assert stage.auto.begins(PLAN) == PLAIN
    stage.auto.forget()
    assert stage.now is None


async def test_a_draft_is_blamed_for_a_server_that_never_served(
    tmp_path: Path,
) -> None:
    auto = Stage(tmp_path).auto
    auto.begins(PLAN)
    assert auto.blames(MODEL)
    assert not auto.blames(PLAIN)
    auto.serves(8080)
    assert not auto.blames(MODEL)


async def test_without_anything_to_guess_with_nothing_is_measured(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path)
    plan: Plan = replace(PLAN, speculation=None)
    over = asyncio.create_task(stage.auto.over(plan, stage.auto.begins(plan)))
    await stage.settled()
    assert not stage.trials
    over.cancel()


def test_a_way_in_words() -> None:
    assert told(Way("mini:/m/small.gguf", 1)) == "with small, 1 token"
