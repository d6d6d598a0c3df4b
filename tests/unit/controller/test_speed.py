"""Tokens per second from readings of the slots, on an injected clock."""

from __future__ import annotations

import pytest

from backends.controller.speed import SpeedMeter
from backends.engine.server import Slot
from backends.state import ChatTimings


def slot(n_decoded: int, *, task: int = 1, busy: bool = True) -> Slot:
    return Slot(
        id=0, task=task, n_decoded=n_decoded, n_prompt_tokens=10, is_processing=busy
    )


def test_a_steady_generation() -> None:
    meter = SpeedMeter()
    meter.read([slot(0)], 0.0)
    speed = [meter.read([slot(10 * i)], i * 0.5) for i in range(1, 12)][-1]
    assert speed.tok_per_s == pytest.approx(20.0)
    assert speed.requests_active == 1
    assert speed.ctx_used == 120


def test_idle_shows_the_last_speed() -> None:
    meter = SpeedMeter()
    meter.read([slot(0)], 0.0)
    meter.read([slot(10)], 0.5)
    idle = meter.read([slot(12, busy=False)], 1.0)
    assert idle.tok_per_s is None
    assert idle.last_tok_per_s == pytest.approx(12.0)
    assert meter.read([slot(12, busy=False)], 9.0).last_tok_per_s is not None


def test_what_the_server_told_of_an_answer_stays_until_the_next() -> None:
    """A reading after the end counts the pause as well."""
    meter = SpeedMeter()
    meter.read([slot(0)], 0.0)
    meter.read([slot(20)], 0.5)
    meter.answered(ChatTimings(tokens=25, tok_per_s=194.8))
    late = meter.read([slot(20)], 0.75)
    assert late.last_tok_per_s == pytest.approx(194.8)
    for at in (1.0, 1.5):
        idle = meter.read([slot(25, busy=False)], at)
        assert idle.last_tok_per_s == pytest.approx(194.8)
    meter.read([slot(5, task=2)], 10.0)
    assert meter.read([slot(15, task=2)], 11.0).last_tok_per_s == pytest.approx(10.0)


def test_a_single_token_has_no_speed() -> None:
    """As what is made while a conversation is read again ahead."""
    meter = SpeedMeter()
    meter.read([slot(0)], 0.0)
    meter.read([slot(1)], 0.5)
    assert meter.read([slot(1, busy=False)], 0.6).last_tok_per_s is None
    meter.read([slot(0, task=2)], 9.0)
    assert meter.read([slot(10, task=2)], 10.0).last_tok_per_s == pytest.approx(10)
    meter.read([slot(1, task=3)], 20.0)
    assert meter.read([slot(1, task=3)], 20.5).last_tok_per_s == pytest.approx(10)


def test_a_new_task_starts_from_nothing() -> None:
    meter = SpeedMeter()
    meter.read([slot(500, task=1)], 0.0)
    speed = meter.read([slot(10, task=2)], 1.0)
    assert speed.tok_per_s == pytest.approx(10.0)


def test_a_pause_is_no_part_of_the_next_answer() -> None:
    meter = SpeedMeter()
    meter.read([slot(0)], 0.0)
    meter.read([slot(10)], 1.0)
    meter.read([slot(10, busy=False)], 2.0)
    meter.read([slot(0, task=2)], 100.0)
    assert meter.read([slot(30, task=2)], 101.0).tok_per_s == pytest.approx(30.0)


def test_what_the_server_counted_itself_misses_no_token() -> None:
    meter = SpeedMeter()
    assert meter.read([slot(30)], 0.0, finished=100).tokens == 130
    assert meter.read([slot(0, busy=False)], 0.5, finished=100).tokens == 130
    assert meter.read([slot(0, busy=False)], 1.0, finished=175).tokens == 175
    assert meter.read([slot(5, task=2)], 1.5, finished=175).tokens == 180


def test_a_count_in_steps_takes_nothing_back() -> None:
    """From a million tokens on the server's count moves by tens."""
    meter = SpeedMeter()
    readings = [(1_000_000, 40), (1_000_000, 48), (1_000_040, 0), (1_000_040, 6)]
    totals = [
        meter.read([slot(made, busy=made > 0)], at * 0.5, finished=finished).tokens
        for at, (finished, made) in enumerate(readings)
    ]
    assert totals == [1_000_040, 1_000_048, 1_000_048, 1_000_048]


def test_rows_are_tokens_after_the_server_s_first_count() -> None:
    meter = SpeedMeter()
    assert meter.read([slot(30)], 0.0, finished=100, rows=7).tokens == 130
    assert meter.read([slot(40)], 0.5, rows=17).tokens == 140
    assert meter.read([slot(0, busy=False)], 1.0, rows=22).tokens == 145


def test_a_count_that_did_not_come_counts_nothing_twice() -> None:
    meter = SpeedMeter()
    meter.read([slot(30)], 0.0, finished=100)
    assert meter.read([slot(35)], 0.5).tokens == 135


def test_an_answer_too_short_to_be_seen() -> None:
    meter = SpeedMeter()
    meter.answered(ChatTimings(tok_per_s=500, prompt_tokens=20, prompt_ms=10))
    speed = meter.read([], 0.0)
    assert speed.last_tok_per_s == 500
    assert speed.prompt_tok_per_s == 2000
