"""Steps of a launch: times, failures, cancellation."""

from __future__ import annotations

import asyncio
import time

import pytest

from backends.config import Config
from backends.controller.snapshot_store import SnapshotStore
from backends.controller.steps import Steps
from backends.errors import EngineError
from backends.state import ClusterState, Step, StepState


@pytest.fixture
def store() -> SnapshotStore:
    return SnapshotStore(Config)


@pytest.fixture
def steps(store: SnapshotStore) -> Steps:
    steps = Steps(store)
    steps.reset(Step(id="load", title="A"), Step(id="b", title="B"))
    return steps


def test_a_step_is_timed_and_shown(
    store: SnapshotStore, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 10.0)
    with steps.step("load"):
        monkeypatch.setattr(time, "time", lambda: 12.5)
        steps.update("load", detail="half", progress=0.5)
        assert store.snapshot.state is ClusterState.LOADING
    first, second = store.snapshot.steps
    assert (first.state, first.seconds, first.progress) == (StepState.DONE, 2.5, 1.0)
    assert first.detail == "half"
    assert second.state is StepState.PENDING


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (EngineError("It broke", "Mend it."), "It broke"),
        (asyncio.CancelledError(), "cancelled"),
    ],
)
def test_a_step_that_fails_says_why(
    store: SnapshotStore, steps: Steps, error: BaseException, detail: str
) -> None:
    with pytest.raises(type(error)), steps.step("b"):
        raise error
    step = store.snapshot.steps[1]
    assert (step.state, step.detail) == (StepState.FAILED, detail)


def test_step_of_an_earlier_list_is_ignored(store: SnapshotStore, steps: Steps) -> None:
    before = store.snapshot.steps
    with steps.step("a"):
        steps.done("a")
    assert store.snapshot.steps == before
