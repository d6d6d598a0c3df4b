"""With what a cluster goes on when a machine of it is gone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from backends.controller.journal import Record
from backends.controller.pursuit import DiedTooOften, Pursuit
from backends.errors import NeedsAnswer, PeerUnreachable, PlanError, ProcessFailed
from backends.planning.fallback import plan_without
from backends.state import Failure, PeerQuestion, QuestionKind
from tests.unit.planning.machines import ADA, MODEL, PLAIN, plan_for

if TYPE_CHECKING:
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

    pursuit: Any = Pursuit.__new__(Pursuit)
    pursuit._back = back
    pursuit._journal = SimpleNamespace(record=Record(served_since=served_since))
    pursuit._stand_ins = SimpleNamespace(instead_of=instead_of)
    pursuit._chapter = SimpleNamespace(mended=told.append)
    pursuit.stopper = SimpleNamespace(found=list)
    return pursuit


async def test_what_served_goes_on_without_a_machine_that_asks_something() -> None:
    told: list[str] = []
    assert await made(1.0, REST, told)._with_or_without(PLAN, GONE) == REST
    (mended,) = told
    assert mended.startswith("ada cannot be reached: went on without it, 13 on")


async def test_what_never_served_asks() -> None:
    told: list[str] = []
    with pytest.raises(NeedsAnswer):
        await made(None, REST, told)._with_or_without(PLAN, GONE)


async def test_nothing_is_told_of_one_that_is_there_after_all() -> None:
    told: list[str] = []
    assert await made(1.0, PLAN, told)._with_or_without(PLAN, GONE) == PLAN
    assert told == []


@pytest.mark.parametrize("comes_back", [True, False])
async def test_a_later_controller_does_without_a_machine_too(comes_back: bool) -> None:
    """It was away when that one began; what ended unwatched is looked for too."""
    pursuit: Any = Pursuit.__new__(Pursuit)
    done: list[str] = []

    async def take_up(plan: Plan) -> None:
        done.append(f"take up {len(plan.workers)}")
        if done == ["take up 1"]:
            raise GONE

    async def with_or_without(plan: Plan, error: PeerUnreachable) -> Plan:
        return PLAN if comes_back else REST

    async def bring_up(plan: Plan, running: Plan) -> None:
        done.append(f"bring up {len(running.workers)}")
        raise ASKS

    pursuit._journal = SimpleNamespace(record=Record())
    pursuit._take_up, pursuit._with_or_without = take_up, with_or_without
    pursuit._bring_up_for = bring_up
    with pytest.raises(NeedsAnswer):
        await pursuit._keep_up(PLAN, adopted=True)
    back, without = ["take up 1", "bring up 1"], ["bring up 0"]
    assert done == ["take up 1", *(back if comes_back else without)]


@pytest.mark.parametrize("rest", [REST, None])
async def test_a_worker_that_ends_again_and_again_is_done_without(
    rest: Plan | None,
) -> None:
    told: list[str] = []
    failed = DiedTooOften(Failure(what="ada ended, 5 times", process="ada"))

    async def instead_of(plan: Plan, held: object, worker: str) -> Plan:
        if rest is None:
            raise PlanError("local/CPU is too small")
        assert worker == "ada"
        return rest

    pursuit = made(1.0, REST, told)
    pursuit._stand_ins = SimpleNamespace(instead_of=instead_of)
    pursuit._chapter.failed = lambda failure: None
    if rest is None:
        with pytest.raises(ProcessFailed, match=r"5 times, and what is left .* small"):
            await pursuit._without_worker(PLAN, failed)
        return
    assert await pursuit._without_worker(PLAN, failed) == REST
    assert told == ["ada ended, 5 times: went on without ada, 13 on local/CPU"]
    server = DiedTooOften(Failure(what="llama-server ended", process="llama-server"))
    with pytest.raises(DiedTooOften):
        await pursuit._without_worker(PLAN, server)


async def test_what_ended_unwatched_is_begun_again_and_taken_up_once() -> None:
    done: list[str] = []
    pursuit = made(1.0, PLAN, done)

    async def take_up(plan: Plan) -> None:
        done.append("take up")
        raise ProcessFailed(Failure(what="ada ended", process="ada"))

    async def bring_up_for(plan: Plan, running: Plan) -> None:
        done.append("bring up")
        raise PlanError("enough")

    pursuit._take_up, pursuit._bring_up_for = take_up, bring_up_for
    pursuit._require_mendable = lambda error, died: done.append(str(error.what))
    with pytest.raises(PlanError, match="enough"):
        await pursuit._keep_up(PLAN, adopted=True)
    assert done == ["take up", "ada ended", "bring up"]
