"""How a plan is kept up by a controller that found it running."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import AsyncMock

import pytest

from backends.controller import pursuit as pursuit_module
from backends.controller.breaker import DEATHS_MAX, Breaker
from backends.controller.engines import engines_of
from backends.controller.journal import Journal, Record
from backends.controller.mending import DiedTooOften
from backends.controller.pursuit import Pursuit
from backends.controller.unwatched import UnwatchedDeaths
from backends.errors import (
    EngineError,
    NeedsAnswer,
    PeerUnreachable,
    PlanError,
    ProcessFailed,
)
from backends.speculation.auto import TrialBook
from backends.state import Failure, ProcessRole
from tests.unit.controller.test_mending import ASKS, GONE, PLAN, REST, made, served
from tests.unit.speculation.test_auto import MODEL, Stage
from tests.unit.speculation.test_auto import PLAN as AUTO

if TYPE_CHECKING:
    from pathlib import Path

    from backends.state import Plan


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
    pursuit._take_up, pursuit.announce = take_up, lambda: None
    pursuit._mending = SimpleNamespace(with_or_without=with_or_without)
    pursuit._bring_up_for = bring_up
    with pytest.raises(NeedsAnswer):
        await pursuit._keep_up(PLAN, adopted=True)
    back, without = ["take up 1", "bring up 1"], ["bring up 0"]
    assert done == ["take up 1", *(back if comes_back else without)]


async def test_all_that_was_asked_for_is_begun_with_nobody_given_up(
    tmp_path: Path,
) -> None:
    """Else nothing that stands in later would be over when its machine is back."""
    pursuit: Any = Pursuit.__new__(Pursuit)
    journal = Journal(tmp_path / "default.json")
    journal.save(Record(stand_in=REST, given_up=("ada",)))

    async def bring_up(plan: Plan) -> None:
        raise PlanError("enough")

    async def over(plan: Plan, running: Plan) -> str:
        return await asyncio.Event().wait() and ""

    pursuit._journal, pursuit._bring_up = journal, bring_up
    pursuit.stand_ins = SimpleNamespace(over=over)
    pursuit._mending = SimpleNamespace(tell=print)
    for running, kept in ((REST, ("ada",)), (PLAN, ())):
        with pytest.raises(PlanError):
            await pursuit._bring_up_for(PLAN, running)
        assert journal.load().given_up == kept


async def test_what_ended_unwatched_is_begun_again_and_taken_up_once() -> None:
    pursuit: Any = Pursuit.__new__(Pursuit)
    done: list[str] = []

    async def take_up(plan: Plan) -> None:
        done.append("take up")
        raise ProcessFailed(Failure(what="ada ended", process="ada"))

    async def again_or_without(plan: Plan, error: ProcessFailed) -> Plan:
        done.append(error.what)
        return plan

    async def bring_up_for(plan: Plan, running: Plan) -> None:
        done.append("bring up")
        raise PlanError("enough")

    pursuit._journal = SimpleNamespace(record=Record())
    pursuit._take_up, pursuit._bring_up_for = take_up, bring_up_for
    pursuit._mending = made(1.0, REST, [])
    pursuit._mending.again_or_without = again_or_without
    with pytest.raises(PlanError, match="enough"):
        await pursuit._keep_up(PLAN, adopted=True)
    assert done == ["take up", "ada ended", "bring up"]


@pytest.mark.parametrize("has_served", [True, False])
async def test_a_machine_that_cannot_start_its_worker_again_is_done_without(
    has_served: bool,
) -> None:
    """From the engine that is looked for in vain to the plan that stands in."""
    pursuit: Any = Pursuit.__new__(Pursuit)
    done: list[int] = []

    async def engine(*_: object) -> Any:
        return SimpleNamespace(info=SimpleNamespace(rpc_protocol="8.0.0"))

    async def no_engine(*_: object) -> Any:
        raise EngineError("ada has no llama.cpp engine")

    async def reached(names: object) -> None:
        pass

    async def bring_up(plan: Plan, running: Plan) -> None:
        done.append(len(running.workers))
        await engines_of(running, machines)
        raise PlanError("enough")

    there = {"local": SimpleNamespace(engine=engine)}
    away = SimpleNamespace(engine=no_engine)
    machines: Any = SimpleNamespace(
        get=lambda name: there.get(name, away), reached=reached
    )
    pursuit._journal = SimpleNamespace(record=Record())
    pursuit._machines = machines
    pursuit._mending = served(1.0 if has_served else None, [])
    pursuit._bring_up_for = bring_up
    with pytest.raises(PlanError if has_served else EngineError):
        await pursuit._keep_up(PLAN, adopted=False)
    assert done == ([1, 0] if has_served else [1])


async def test_later_controllers_know_how_often_it_ended_unwatched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def ended(*_: object) -> Failure:
        return Failure(what="ada ended", process="ada", argv=("rpc-server",))

    async def reached(names: object) -> None:
        pass

    async def given_up() -> bool:
        """Whether one more controller gives it up."""
        journal = Journal(tmp_path / "default.json")
        journal.load()
        mending = made(1.0, PLAN, [])
        mending._clock = lambda: 0.0
        mending._chapter.failed = lambda failure: None
        mending.breaker = Breaker(mending._clock)
        pursuit: Any = Pursuit.__new__(Pursuit)
        pursuit._cluster, pursuit._clock = "default", mending._clock
        pursuit._machines = SimpleNamespace(reached=reached)
        pursuit._journal = journal
        pursuit._unwatched = UnwatchedDeaths(journal, mending.breaker)
        with pytest.raises(ProcessFailed) as died:
            await pursuit._take_up(PLAN)
        try:
            mending._require_mendable(died.value, died.value)
        except DiedTooOften:
            return True
        return False

    monkeypatch.setattr(pursuit_module, "ended_unwatched", ended)
    Journal(tmp_path / "default.json").save(Record(server="one", served_since=1.0))
    told = [await given_up() for _ in range(DEATHS_MAX)]
    assert told == [*[False] * (DEATHS_MAX - 1), True]


async def test_a_draft_that_auto_chose_and_that_breaks_the_server_is_given_up(
    tmp_path: Path,
) -> None:
    pursuit: Any = Pursuit.__new__(Pursuit)
    stage = Stage(tmp_path)
    TrialBook(stage.file).runs(AUTO, MODEL)
    pursuit.auto = stage.made()
    pursuit._journal = SimpleNamespace(record=Record())
    told: list[Failure] = []
    pursuit._chapter = SimpleNamespace(failed=told.append)
    done: list[str] = []

    async def bring_up_as(plan: Plan) -> None:
        done.append(plan.server.draft)
        raise ProcessFailed(Failure(what="it ended", process="llama-server"))

    pursuit._bring_up_as = bring_up_as
    pursuit._mending = SimpleNamespace(tell=told.append)
    with pytest.raises(ProcessFailed):
        await pursuit._bring_up(AUTO)
    assert done == [MODEL, "none"]
    assert len(told) == 1


@pytest.mark.parametrize("serves", [True, False])
async def test_a_fault_of_ours_ends_nothing_that_serves(
    serves: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever shows or tells it; what does not serve is told as failed."""
    pursuit: Any = Pursuit.__new__(Pursuit)
    told: list[str] = []

    async def bring_up(plan: Plan, running: Plan) -> None:
        if len(told) < 3:
            raise ZeroDivisionError("in a figure")
        raise PlanError("enough")

    monkeypatch.setattr(pursuit_module, "FAULT_PAUSES_S", (0.0,))
    server = SimpleNamespace(role=ProcessRole.SERVER, alive=serves)
    pursuit._cluster = "default"
    pursuit._journal = SimpleNamespace(record=Record(server="7@1.0"))
    pursuit.stopper = SimpleNamespace(found=lambda: [("local", server)])
    pursuit._bring_up_for, pursuit._take_up = bring_up, AsyncMock()
    pursuit._chapter = SimpleNamespace(failed=lambda failure: told.append(failure.what))
    pursuit._mending = SimpleNamespace(
        without_refused=AsyncMock(side_effect=PlanError("x"))
    )
    with pytest.raises(PlanError if serves else ZeroDivisionError):
        await pursuit._keep_up(PLAN, adopted=True)
    assert len(told) == (3 if serves else 0)
