"""Tokens per second from readings of the slots, on an injected clock."""

from __future__ import annotations

import pytest

from backends.controller.speed import SpeedMeter
from backends.engine.http import Slot
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


def test_a_new_task_starts_from_nothing() -> None:
    """The counter of a slot falls when a request begins: that is no negative speed."""
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


def test_an_answer_too_short_to_be_seen() -> None:
    meter = SpeedMeter()
    meter.answered(ChatTimings(tok_per_s=500, prompt_tokens=20, prompt_ms=10))
    speed = meter.read([], 0.0)
    assert speed.last_tok_per_s == 500
    assert speed.prompt_tok_per_s == 2000
