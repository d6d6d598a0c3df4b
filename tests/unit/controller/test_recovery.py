"""With what a cluster goes on when a machine of it is gone, or a worker ends often."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from backends.controller.breaker import Breaker
from backends.controller.journal import Record
from backends.controller.recovery import DiedTooOften, Recovery
from backends.errors import (
    EngineError,
    NeedsAnswer,
    NeverListened,
    PeerUnreachable,
    PlanError,
    ProcessFailed,
    about_worker,
)
from backends.gateway.access import ApiSettings
from backends.planning.fallback import plan_without
from backends.state import Failure, Peer, PeerQuestion, PeerState, QuestionKind
from tests.unit.planning.machines import ADA, MODEL, PLAIN, plan_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from backends.state import Plan

PLAN = plan_for(PLAIN, ADA, peers=("ada",))
REST = plan_without(PLAN, ["ada"], MODEL, {"local": PLAIN, "ada": ADA})
GONE = PeerUnreachable("ada cannot be reached")
ASKS = NeedsAnswer(PeerQuestion(kind=QuestionKind.PASSWORD, text="Password of ada?"))


def made(served_since: float | None, rest: Plan, told: list[str]) -> Any:
    """One whose machine comes back with a question."""

    async def back(plan: Plan, error: PeerUnreachable) -> None:
        raise ASKS

    async def instead_of(plan: Plan, held: object) -> Plan:
        return rest

    recovery: Any = Recovery.__new__(Recovery)
    recovery._back = back
    recovery._journal = SimpleNamespace(record=Record(served_since=served_since))
    recovery._stand_ins = SimpleNamespace(instead_of=instead_of)
    recovery._recorder = SimpleNamespace(mended=told.append)
    recovery._stopper = SimpleNamespace(found=list)
    return recovery


async def test_what_served_goes_on_without_a_machine_that_asks_something() -> None:
    told: list[str] = []
    assert await made(1.0, REST, told).with_or_without(PLAN, GONE) == REST
    (mended,) = told
    assert mended.startswith("ada cannot be reached: went on without it, 13 on")


async def test_what_never_served_asks() -> None:
    told: list[str] = []
    with pytest.raises(NeedsAnswer):
        await made(None, REST, told).with_or_without(PLAN, GONE)


async def test_nothing_is_told_of_one_that_is_there_after_all() -> None:
    told: list[str] = []
    assert await made(1.0, PLAN, told).with_or_without(PLAN, GONE) == PLAN
    assert told == []


AWAY = {
    "silent": Peer(name="ada", silent_since=1010.0),
    "gone": Peer(name="ada", state=PeerState.UNREACHABLE, since=1010.0),
    "there": Peer(name="ada", since=1010.0),
}
ELSEWHERE = Peer(name="bob", state=PeerState.UNREACHABLE, since=900.0)


@pytest.mark.parametrize(
    ("how", "served_since", "waited_s"),
    [
        ("silent", 1.0, 30),
        ("gone", 1.0, 30),
        ("there", 1.0, 60),
        # Whoever launches may be switching it on.
        ("gone", None, 60),
    ],
)
async def test_the_minute_of_a_machine_counts_from_its_last_sign_of_life(
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    served_since: float | None,
    waited_s: float,
) -> None:
    recovery, now_s = waiting_for(AWAY[how], served_since, monkeypatch)
    with pytest.raises(PeerUnreachable, match="ada cannot be reached"):
        await recovery._back(PLAN, GONE)
    assert now_s() - 1040.0 == waited_s


async def test_a_machine_that_was_silent_for_long_is_tried_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    long_gone = Peer(name="ada", silent_since=100.0)
    recovery, now_s = waiting_for(long_gone, 1.0, monkeypatch)
    tried: list[object] = []

    async def reached(names: object) -> None:
        tried.append(names)

    recovery._machines.reached = reached
    await recovery._back(PLAN, GONE)
    assert len(tried) == 1
    assert now_s() == 1040.0


def waiting_for(
    ada: Peer, served_since: float | None, monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, Callable[[], float]]:
    """One at 1040 s to whom ada does not come back, and its clock."""
    now_s = [1040.0]

    async def reached(names: object) -> None:
        raise GONE

    async def sleep(seconds: float) -> None:
        now_s[0] += seconds

    monkeypatch.setattr("backends.controller.recovery.asyncio.sleep", sleep)
    recovery = made(served_since, REST, [])
    del recovery._back
    recovery._clock = lambda: now_s[0]
    recovery._machines = SimpleNamespace(
        reached=reached, values=lambda: (ELSEWHERE, ada)
    )
    recovery._gateway = SimpleNamespace(holds=lambda *_: None)
    recovery._discovery = SimpleNamespace(api=ApiSettings(wait_s=1.0, drain_s=1.0))
    recovery._store = SimpleNamespace(update=lambda **_: None)
    recovery._recorder.waiting = lambda _: None
    return recovery, recovery._clock


@pytest.mark.parametrize("rest", [REST, None])
async def test_a_worker_that_ends_again_and_again_is_done_without(
    rest: Plan | None,
) -> None:
    told: list[str] = []
    failed = DiedTooOften(Failure(what="ada ended, 5 times", process="ada"))

    async def instead_of(plan: Plan, held: object, worker: str) -> Plan:
        if rest is None:
            raise PlanError("local/CPU is too small", "Free memory there.")
        assert worker == "ada"
        return rest

    recovery = made(1.0, REST, told)
    recovery._stand_ins = SimpleNamespace(instead_of=instead_of)
    recovery._recorder.failed = lambda failure: None
    if rest is None:
        with pytest.raises(
            ProcessFailed, match=r"5 times, and what is left .* small. Free memory"
        ):
            await recovery._without_worker(PLAN, failed)
        return
    assert await recovery._without_worker(PLAN, failed) == REST
    assert told == ["ada ended, 5 times: went on without ada, 13 on local/CPU"]
    server = DiedTooOften(Failure(what="llama-server ended", process="llama-server"))
    with pytest.raises(DiedTooOften):
        await recovery._without_worker(PLAN, server)


def refused(worker: str) -> EngineError:
    """A machine that is there has lost its engine."""
    error = EngineError("ada has no llama.cpp engine")
    with pytest.raises(EngineError), about_worker(worker):
        raise error
    return error


def served(served_since: float | None, told: list[str]) -> Any:
    """One that did serve, or not, and can go on without ada."""
    recovery = made(served_since, REST, told)

    async def instead_of(plan: Plan, held: object, worker: str) -> Plan:
        assert worker == "ada"
        return REST

    recovery._stand_ins = SimpleNamespace(instead_of=instead_of)
    recovery._recorder.failed = lambda failure: told.append(f"failed: {failure.what}")
    recovery._clock = lambda: 0.0
    return recovery


async def test_a_worker_that_cannot_be_started_again_is_done_without() -> None:
    told: list[str] = []
    assert await served(1.0, told).without_refused(PLAN, refused("ada")) == REST
    assert told == [
        "failed: ada has no llama.cpp engine",
        "ada has no llama.cpp engine: went on without ada, 13 on local/CPU",
    ]


@pytest.mark.parametrize(
    ("served_since", "worker"), [(None, "ada"), (1.0, "")], ids=["never", "other"]
)
async def test_what_never_served_or_is_about_no_worker_stays_an_error(
    served_since: float | None, worker: str
) -> None:
    error = refused(worker)
    with pytest.raises(EngineError) as raised:
        await served(served_since, []).without_refused(PLAN, error)
    assert raised.value is error


async def test_a_worker_that_runs_and_never_listens_is_not_tried_five_times() -> None:
    error = NeverListened(Failure(what="ada runs but does not listen", process="ada"))
    error.worker = "ada"
    assert await served(1.0, []).again_or_without(PLAN, error) == REST


@pytest.mark.parametrize("has_served", [True, False])
async def test_what_is_started_again_by_itself_asks_nobody_to_launch(
    has_served: bool,
) -> None:
    recovery = made(1.0 if has_served else None, REST, [])
    hints: list[str] = []
    recovery._recorder.failed = lambda failure: hints.append(failure.hint)
    recovery._clock = lambda: 0.0
    recovery.breaker = Breaker(recovery._clock)
    died = ProcessFailed(
        Failure(what="ada was killed", hint="Launch again to restart it", process="ada")
    )
    if has_served:
        recovery._require_mendable(died, died)
        assert hints == [""]
        return
    with pytest.raises(ProcessFailed, match="ada was killed"):
        recovery._require_mendable(died, died)
