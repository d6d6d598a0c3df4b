"""Steps of a launch: times, failures, cancellation."""

from __future__ import annotations

import asyncio

import pytest

from backends.controller.steps import StepBoard
from backends.errors import EngineError
from backends.state import Step, StepState


def board(times: list[float]) -> tuple[StepBoard, list[int]]:
    changes: list[int] = []
    steps = StepBoard(lambda: times.pop(0), lambda: changes.append(1))
    steps.reset(Step(id="a", title="A"), Step(id="b", title="B"))
    return steps, changes


def test_a_step_is_timed() -> None:
    steps, changes = board([10.0, 12.5])
    with steps.step("a"):
        steps.update("a", detail="half", progress=0.5)
    first, second = steps.steps
    assert (first.state, first.seconds, first.progress) == (StepState.DONE, 2.5, 1.0)
    assert first.detail == "half"
    assert second.state is StepState.PENDING
    assert len(changes) == 4


def test_a_failed_step_says_why() -> None:
    steps, _ = board([1.0, 2.0])
    with pytest.raises(EngineError), steps.step("a"):
        raise EngineError("It broke", "Mend it.")
    assert steps.steps[0].state is StepState.FAILED
    assert steps.steps[0].detail == "It broke"


def test_a_cancelled_step_says_so() -> None:
    steps, _ = board([1.0, 2.0])
    with pytest.raises(asyncio.CancelledError), steps.step("a"):
        raise asyncio.CancelledError
    assert steps.steps[0].detail == "cancelled"


def test_the_same_news_twice_is_no_change() -> None:
    steps, changes = board([1.0, 2.0])
    with steps.step("a"):
        steps.update("a", progress=0.5)
        before = len(changes)
        steps.update("a", progress=0.5)
        assert len(changes) == before
