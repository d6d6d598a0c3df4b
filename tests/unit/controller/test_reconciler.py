"""How a plan is kept up by a controller that found it running."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import AsyncMock

import pytest

from backends.controller import reconciler as pursuit_module
from backends.controller.breaker import DEATHS_MAX, Breaker
from backends.controller.journal import Journal, Record
from backends.controller.reconciler import Reconciler
from backends.controller.recovery import DiedTooOften
from backends.controller.site import engines_of
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
from tests.unit.controller.test_recovery import ASKS, GONE, PLAN, REST, made, served
from tests.unit.speculation.test_auto import MODEL, Stage
from tests.unit.speculation.test_auto import PLAN as AUTO

if TYPE_CHECKING:
    from pathlib import Path

    from backends.state import Plan


@pytest.mark.parametrize("comes_back", [True, False])
async def test_a_later_controller_does_without_a_machine_too(comes_back: bool) -> None:
    """It was away when that one began; what ended unwatched is looked for too."""
    reconciler: Any = Reconciler.__new__(Reconciler)
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

    reconciler._journal = SimpleNamespace(record=Record())
    reconciler._take_up, reconciler.announce = take_up, lambda: None
    reconciler._recovery = SimpleNamespace(with_or_without=with_or_without)
    reconciler._bring_up_for = bring_up
    with pytest.raises(NeedsAnswer):
        await reconciler._keep_up(PLAN, adopted=True)
    back, without = ["take up 1", "bring up 1"], ["bring up 0"]
    assert done == ["take up 1", *(back if comes_back else without)]


async def test_all_that_was_asked_for_is_begun_with_nobody_given_up(
    tmp_path: Path,
) -> None:
    """Else nothing that stands in later would be over when its machine is back."""
    reconciler: Any = Reconciler.__new__(Reconciler)
    journal = Journal(tmp_path / "default.json")
    journal.save(Record(stand_in=REST, given_up=("ada",)))

    async def bring_up(plan: Plan) -> None:
        raise PlanError("enough")

    async def over(plan: Plan, running: Plan) -> str:
        return await asyncio.Event().wait() and ""

    reconciler._journal, reconciler._bring_up = journal, bring_up
    reconciler.stand_ins = SimpleNamespace(over=over)
    reconciler._recovery = SimpleNamespace(tell=print)
    for running, kept in ((REST, ("ada",)), (PLAN, ())):
        with pytest.raises(PlanError):
            await reconciler._bring_up_for(PLAN, running)
        assert journal.load().given_up == kept


async def test_what_ended_unwatched_is_begun_again_and_taken_up_once() -> None:
    reconciler: Any = Reconciler.__new__(Reconciler)
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

    reconciler._journal = SimpleNamespace(record=Record())
    reconciler._take_up, reconciler._bring_up_for = take_up, bring_up_for
    reconciler._recovery = made(1.0, REST, [])
    reconciler._recovery.again_or_without = again_or_without
    with pytest.raises(PlanError, match="enough"):
        await reconciler._keep_up(PLAN, adopted=True)
    assert done == ["take up", "ada ended", "bring up"]


@pytest.mark.parametrize("has_served", [True, False])
async def test_a_machine_that_cannot_start_its_worker_again_is_done_without(
    has_served: bool,
) -> None:
    """From the engine that is looked for in vain to the plan that stands in."""
    reconciler: Any = Reconciler.__new__(Reconciler)
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
    reconciler._journal = SimpleNamespace(record=Record())
    reconciler._machines = machines
    reconciler._recovery = served(1.0 if has_served else None, [])
    reconciler._bring_up_for = bring_up
    with pytest.raises(PlanError if has_served else EngineError):
        await reconciler._keep_up(PLAN, adopted=False)
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
        recovery = made(1.0, PLAN, [])
        recovery._clock = lambda: 0.0
        recovery._recorder.failed = lambda failure: None
        recovery.breaker = Breaker(recovery._clock)
        reconciler: Any = Reconciler.__new__(Reconciler)
        reconciler._cluster, reconciler._clock = "default", recovery._clock
        reconciler._machines = SimpleNamespace(reached=reached)
        reconciler._journal = journal
        reconciler._unwatched = UnwatchedDeaths(journal, recovery.breaker)
        with pytest.raises(ProcessFailed) as died:
            await reconciler._take_up(PLAN)
        try:
            recovery._require_mendable(died.value, died.value)
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
    reconciler: Any = Reconciler.__new__(Reconciler)
    stage = Stage(tmp_path)
    await TrialBook(stage.file).runs(AUTO, MODEL)
    reconciler.auto = stage.made()
    reconciler._journal = SimpleNamespace(record=Record())
    told: list[Failure] = []
    reconciler._recorder = SimpleNamespace(failed=told.append)
    done: list[str] = []

    async def bring_up_as(plan: Plan) -> None:
        done.append(plan.server.draft)
        hint = "Launch again."
        raise ProcessFailed(Failure(what="it ended", hint=hint, process="llama-server"))

    reconciler._bring_up_as = bring_up_as
    reconciler._recovery = SimpleNamespace(tell=told.append)
    with pytest.raises(ProcessFailed):
        await reconciler._bring_up(AUTO)
    assert done == [MODEL, "none"]
    assert [failure.hint for failure in told] == [""]


@pytest.mark.parametrize("serves", [True, False])
async def test_a_fault_of_ours_ends_nothing_that_serves(
    serves: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever shows or tells it; what does not serve is told as failed."""
    reconciler: Any = Reconciler.__new__(Reconciler)
    told: list[str] = []

    async def bring_up(plan: Plan, running: Plan) -> None:
        if len(told) < 3:
            raise ZeroDivisionError("in a figure")
        raise PlanError("enough")

    monkeypatch.setattr(pursuit_module, "FAULT_PAUSES_S", (0.0,))
    server = SimpleNamespace(role=ProcessRole.SERVER, alive=serves)
    reconciler._cluster = "default"
    reconciler._journal = SimpleNamespace(record=Record(server="7@1.0"))
    reconciler.stopper = SimpleNamespace(found=lambda: [("local", server)])
    reconciler._bring_up_for, reconciler._take_up = bring_up, AsyncMock()
    reconciler._recorder = SimpleNamespace(
        failed=lambda failure: told.append(failure.hint)
    )
    reconciler._recovery = SimpleNamespace(
        without_refused=AsyncMock(side_effect=PlanError("x"))
    )
    with pytest.raises(PlanError if serves else ZeroDivisionError):
        await reconciler._keep_up(PLAN, adopted=True)
    assert len(told) == (3 if serves else 0)
    assert not any("Launch again" in hint for hint in told)
