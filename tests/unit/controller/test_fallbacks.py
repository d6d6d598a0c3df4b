"""What is ready for a loss before it comes."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from backends.config import Config
from backends.controller import fallbacks
from backends.controller.board import Board
from backends.controller.fallbacks import TOO_SMALL, Fallbacks, losses
from backends.controller.stand_in import StandIns
from backends.errors import PeerUnreachable
from backends.planning.fallback import plan_without
from backends.split.layout import devices, make_split, ranges
from backends.state import (
    ClusterState,
    DeviceMemory,
    Fallback,
    MemorySource,
    PlanMemory,
)
from tests.unit.controller.test_stand_in import Remembered
from tests.unit.planning.machines import (
    ADA,
    BOB,
    GIB,
    MIB,
    MODEL,
    PLAIN,
    device,
    here,
    model_of,
    plan_for,
)
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterable, Mapping

    from backends.state import ModelInfo, Peer, Plan

SMALL = here(device("local", "CPU", 64 * MIB))
BIG = model_of(layer_bytes=100 * MIB)
PLAN = plan_for(PLAIN, ADA, BOB, peers=("ada", "bob"))


class _Parts(StandIns):
    """On machines whose memory is made up, and counted how often it is looked at."""

    now: dict[str, Peer]
    looks = 0

    async def machines(self, held: object) -> dict[str, Peer]:
        self.looks += 1
        return self.now


class Stage:
    """One cluster that serves, and machines that may go."""

    def __init__(self, plan: Plan, *machines: Peer, model: ModelInfo = MODEL) -> None:
        self.away: set[str] = set()
        self.asked: list[Plan] = []
        self.told = PlanMemory(devices=())
        self.board, self.journal = Board(Config), Remembered()
        self.journal.change(stand_in=plan)
        self.board.update(state=ClusterState.SERVING, plan=plan)
        reached: Any = type("Reached", (), {"reached": self._reached})()
        self.readers: Any = type("Read", (), {})()
        self.readers.config = Config
        self.readers.model = self._model
        self._is = model
        parts: Any = (reached, self.readers, self.board, None, self.journal)
        self.parts = _Parts(*parts)
        self.has(*machines)

    def has(self, *machines: Peer) -> None:
        """So much is free from here on."""
        self.parts.now = {machine.name: machine for machine in machines}

    async def _reached(self, names: Collection[str]) -> None:
        if self.away.intersection(names):
            raise PeerUnreachable("it is gone")

    async def _model(self, path: str) -> ModelInfo:
        return self._is

    async def _memory(self, plan: Plan) -> PlanMemory:
        self.asked.append(plan)
        return self.told

    @property
    def shown(self) -> Mapping[str, Fallback]:
        """By what is lost."""
        return {one.lost: one for one in self.board.snapshot.fallbacks}

    @contextlib.asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """While they are made."""
        journal: Any = self.journal
        made = Fallbacks(self.board, journal, self.readers, self.parts, self._memory)
        task = asyncio.create_task(made.keep())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def looked(self, times: int = 3) -> None:
        """Wait until memory was looked at so often more."""
        aim = self.parts.looks + times
        await until(lambda: self.parts.looks >= aim)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QUIET_S", "LOOK_S", "TICK_S"):
        monkeypatch.setattr(fallbacks, name, 0.01)


def names(workers: Iterable[str]) -> frozenset[str]:
    return frozenset(workers)


def test_each_worker_may_go_and_each_machine_with_all_of_its_own() -> None:
    assert losses(PLAN) == {
        names({"ada"}): "ada",
        names({"bob-CUDA0"}): "bob-CUDA0",
        names({"bob-CUDA1"}): "bob-CUDA1",
        names({"bob-CUDA0", "bob-CUDA1"}): "bob",
    }


async def test_what_is_ready_is_gone_on_with_at_once() -> None:
    stage = Stage(PLAN, PLAIN, ADA, BOB)
    async with stage.kept():
        await until(lambda: len(stage.shown) == 4)
    rest = plan_without(PLAN, ["bob"], MODEL, stage.parts.now)
    assert stage.shown["bob"].split == ranges(rest.split)
    assert stage.shown["bob"].ctx_size == rest.ctx_size
    stage.away, looks = {"bob"}, stage.parts.looks
    assert await stage.parts.instead_of(PLAN, None) == rest
    assert stage.parts.looks == looks, "no memory was read for it"
    stage.away = {"ada", "bob"}
    alone = await stage.parts.instead_of(PLAN, None)
    assert not alone.workers
    assert stage.parts.looks == looks + 1, "nothing is ready for two at once"


async def test_with_a_machine_go_its_workers_that_hold_nothing() -> None:
    """A plan on what is left of it would be brought up on a machine that is gone."""
    split = make_split(MODEL.n_layer, devices(PLAN.split), [0, 6, 7, 0])
    stage = Stage(replace(PLAN, split=split), PLAIN, ADA, BOB)
    async with stage.kept():
        await until(lambda: "bob" in stage.shown)
    used = [held.device for held in stage.shown["bob"].split]
    assert not [name for name in used if name.startswith("bob/")]
    stage.away = {"bob"}
    rest = await stage.parts.instead_of(replace(PLAN, split=split), None)
    assert {worker.peer for worker in rest.workers} == {"ada"}


async def test_without_workers_nothing_is_looked_at() -> None:
    stage = Stage(replace(PLAN, workers=()), PLAIN)
    async with stage.kept():
        await asyncio.sleep(0.05)
    assert not stage.parts.looks


async def test_nothing_is_ready_for_another_plan_or_after_a_new_word() -> None:
    stage = Stage(PLAN, PLAIN, ADA, BOB)
    async with stage.kept():
        await until(lambda: len(stage.shown) == 4)
    stage.away, looks = {"bob"}, stage.parts.looks
    await stage.parts.instead_of(replace(PLAN, ctx_size=512), None)
    stage.parts.forget()
    await stage.parts.instead_of(PLAN, None)
    assert stage.parts.looks == looks + 2


async def test_what_cannot_be_is_told_with_why_until_it_can() -> None:
    plan = plan_for(SMALL, ADA, peers=("ada",), model=BIG)
    stage = Stage(plan, SMALL, ADA, model=BIG)
    async with stage.kept():
        await until(lambda: stage.shown)
        assert "local/CPU is too small for its share" in stage.shown["ada"].why
        assert not stage.shown["ada"].split
        stage.has(here(device("local", "CPU", 4 * GIB)), ADA)
        await until(lambda: not stage.shown["ada"].why)
    assert stage.shown["ada"].split


async def test_free_memory_that_wavers_changes_nothing_that_still_fits() -> None:
    stage = Stage(PLAN, PLAIN, ADA, BOB)
    async with stage.kept():
        await until(lambda: len(stage.shown) == 4)
        before = {name: one.split for name, one in stage.shown.items()}
        stage.has(here(device("local", "CPU", GIB // 2)), ADA, BOB)
        await stage.looked()
        assert {name: one.split for name, one in stage.shown.items()} == before


@pytest.mark.parametrize("fits", [True, False])
async def test_the_engine_has_the_last_word(fits: bool) -> None:
    plan = plan_for(PLAIN, ADA, peers=("ada",))
    stage = Stage(plan, PLAIN, ADA)
    engines = DeviceMemory(
        device="local/CPU",
        model_bytes=MIB if fits else 2 * GIB,
        source=MemorySource.ENGINE,
    )
    stage.told = PlanMemory(devices=(engines,))
    async with stage.kept():
        await until(lambda: stage.asked)
        await stage.looked()
    (shown,) = stage.shown.values()
    assert shown.why == ("" if fits else TOO_SMALL)
    assert shown.memory == ((engines,) if fits else ())


async def test_the_engine_is_not_asked_while_somebody_is_answered() -> None:
    stage = Stage(PLAN, PLAIN, ADA, BOB)
    speed = stage.board.snapshot.speed
    stage.board.update(speed=replace(speed, requests_active=1))
    async with stage.kept():
        await stage.looked()
        assert len(stage.shown) == 4
        assert not stage.asked
        stage.board.update(speed=speed)
        await until(lambda: len(stage.asked) >= 4)


async def test_a_board_that_is_closed_holds_nobody_up() -> None:
    """The controller ends while it still serves."""
    stage = Stage(PLAN, PLAIN, ADA, BOB)
    async with stage.kept():
        await until(lambda: len(stage.shown) == 4)
        stage.board.close()
        await stage.looked()


async def test_another_plan_shows_its_own() -> None:
    stage = Stage(PLAN, PLAIN, ADA, BOB)
    rest = plan_without(PLAN, ["bob"], MODEL, stage.parts.now)
    async with stage.kept():
        await until(lambda: len(stage.shown) == 4)
        stage.journal.change(stand_in=rest)
        stage.board.begin(1, rest, ClusterState.STARTING)
        assert not stage.shown
        stage.board.update(state=ClusterState.SERVING)
        await until(lambda: set(stage.shown) == {"ada"})


async def test_what_nobody_foresaw_ends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage(PLAN, PLAIN, ADA, BOB)
    stage.parts.now = {}
    reads, tried = stage.readers.model, []

    async def odd(path: str) -> ModelInfo:
        tried.append(path)
        raise RuntimeError("odd")

    stage.readers.model = odd
    async with stage.kept():
        await until(lambda: len(tried) >= 3)
        assert caplog.text.count("made ready for a loss") == 1
        assert caplog.text.count("Traceback") == 1
        stage.readers.model = reads
        stage.has(PLAIN, ADA, BOB)
        await until(lambda: len(stage.shown) == 4)
