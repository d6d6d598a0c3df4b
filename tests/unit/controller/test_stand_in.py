"""When a machine that was lost takes part again."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from backends.config import Config
from backends.controller import stand_in
from backends.controller.journal import Record
from backends.controller.memory_usage import still_held
from backends.controller.stand_in import StandIns, told_split, told_stand_in
from backends.errors import HostError, NeedsAnswer, PeerUnreachable, PlanError
from backends.planning.fallback import plan_without
from backends.planning.room import ClusterMemory
from backends.split.layout import devices, make_split, ranges
from backends.state import (
    ClusterState,
    DeviceMemory,
    MeasuredSplit,
    PeerQuestion,
    QuestionKind,
)
from backends.state.snapshots import RequestCounts
from tests.kit.waiting import until
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
    peer,
    plan_for,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from backends.state import ModelInfo, Peer, Plan

PLAN = plan_for(PLAIN, ADA, peers=("ada",))
BIG = model_of(layer_bytes=200 * MIB)
PLAN_BIG = plan_for(
    here(device("local", "CPU", 4 * GIB)), ADA, peers=("ada",), model=BIG
)
LONG = replace(
    MODEL,
    n_ctx_train=1 << 20,
    layers=tuple(replace(one, kv_bytes_per_token=1 << 16) for one in MODEL.layers),
)
PLAN_LONG = replace(
    plan_for(
        here(device("local", "CPU", 4 * GIB)),
        peer("ada", device("ada", "CPU", 100 * GIB)),
        peers=("ada",),
        model=LONG,
    ),
    ctx_size=1 << 16,
)
REST = plan_without(PLAN, ["ada"], MODEL, {"local": PLAIN, "ada": ADA})


class Stage:
    """Machines that come and go, and a cluster that is asked things."""

    def __init__(self, rejoin: str = "idle") -> None:
        self.away = {"ada"}
        self.why: HostError = PeerUnreachable("ada is gone")
        self.looks = 0
        self.told: list[str] = []
        self.snapshot = SimpleNamespace(
            state=ClusterState.SERVING, requests=RequestCounts(in_flight=1)
        )
        config = Config(rejoin=rejoin)  # type: ignore[arg-type]
        machines: Any = SimpleNamespace(reached=self._reached)
        readers: Any = SimpleNamespace(settings=lambda: config)
        recorder: Any = SimpleNamespace(waiting=self.told.append)
        store: Any = SimpleNamespace(snapshot=self.snapshot)
        journal: Any = SimpleNamespace(record=Record())
        self.parts = StandIns(machines, readers, store, recorder, journal)

    async def _reached(self, names: Iterable[str]) -> None:
        self.looks += 1
        if self.away.intersection(names):
            raise self.why

    async def looked(self, times: int = 20) -> None:
        """Wait until they were looked for so often more."""
        aim = self.looks + times
        await until(lambda: self.looks >= aim)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STEADY_S", "IDLE_S", "LOOK_S"):
        monkeypatch.setattr(stand_in, name, 0.001)


async def test_it_is_taken_back_once_it_is_there_and_nobody_is_disturbed() -> None:
    stage = Stage()
    over = asyncio.create_task(stage.parts.over(PLAN, REST))
    await stage.looked()
    assert not over.done(), "it is away"
    stage.away.clear()
    await asyncio.sleep(0.05)
    assert not over.done(), "somebody is being answered"
    stage.snapshot.requests = RequestCounts()
    assert await asyncio.wait_for(over, 5) == "ada is back: it takes part again"


@pytest.mark.parametrize(
    ("rejoin", "told"),
    [("ask", ["ada is back: launch again to use it"]), ("never", [])],
)
async def test_it_is_not_taken_back_where_that_is_not_wanted(
    rejoin: str, told: list[str]
) -> None:
    stage = Stage(rejoin)
    stage.away.clear()
    stage.snapshot.requests = RequestCounts()
    over = asyncio.create_task(stage.parts.over(PLAN, REST))
    await stage.looked(2)
    await asyncio.sleep(0.05)
    assert not over.done()
    assert stage.told == told
    over.cancel()


async def test_it_is_not_taken_back_where_it_went_again_meanwhile() -> None:
    """Somebody is answered for hours, and in the end it is away."""
    stage = Stage()
    stage.away.clear()
    over = asyncio.create_task(stage.parts.over(PLAN, REST))
    await stage.looked(2)
    await asyncio.sleep(0.05)
    stage.away.add("ada")
    stage.snapshot.requests = RequestCounts()
    await stage.looked(5)
    assert not over.done()
    stage.away.clear()
    assert await asyncio.wait_for(over, 5)


async def test_what_comes_and_goes_has_to_stay_longer_each_time() -> None:
    stage = Stage()
    stage.away.clear()
    stage.snapshot.requests = RequestCounts()
    looks = []
    for _ in range(3):
        stage.looks = 0
        await asyncio.wait_for(stage.parts.over(PLAN, REST), 5)
        looks.append(stage.looks)
    assert looks[0] < looks[1] < looks[2]
    stage.parts.forget()
    stage.looks = 0
    await stage.parts.over(PLAN, REST)
    assert stage.looks == looks[0]


@pytest.mark.parametrize(
    "why",
    [
        NeedsAnswer(PeerQuestion(kind=QuestionKind.PASSWORD, text="Password?")),
        HostError("There is no peer ada"),
    ],
)
async def test_one_that_asks_something_is_waited_for_like_one_that_is_away(
    why: HostError,
) -> None:
    """What serves without it is not ended for a question."""
    stage = Stage()
    stage.why = why
    stage.snapshot.requests = RequestCounts()
    over = asyncio.create_task(stage.parts.over(PLAN, REST))
    await stage.looked()
    assert not over.done()
    stage.away.clear()
    assert await asyncio.wait_for(over, 5)


class Memory:
    """This machine and ada, with what is free there now."""

    def __init__(self, **free_bytes: int) -> None:
        self._free = free_bytes
        self.name = "local"
        self.host = self

    def get(self, name: str) -> Memory:
        return self

    def all(self) -> list[Memory]:
        return [self]

    def values(self) -> list[Any]:
        return [ADA]

    async def memory(self) -> Any:
        return replace(device("local", "CPU", self._free["local"]), total_bytes=4 * GIB)

    async def reached(self, names: Iterable[str]) -> None:
        if self._free.get("ada") is None and "ada" in names:
            raise PeerUnreachable("ada is gone")


class Remembered:
    """A journal in memory alone."""

    def __init__(self) -> None:
        self.record = Record()

    def change(self, **changes: Any) -> None:
        self.record = replace(self.record, **changes)


def parts_of(machines: Any, journal: Any = None, **config: Any) -> StandIns:
    async def model(path: str) -> Any:
        return BIG if not config else LONG

    async def engine() -> Any:
        return SimpleNamespace(info=SimpleNamespace(devices=()))

    settings = Config(**config)
    readers: Any = SimpleNamespace(
        model=model, engine=engine, settings=lambda: settings
    )
    nothing: Any = None
    kept: Any = journal or Remembered()
    return StandIns(machines, readers, nothing, nothing, kept)


async def test_what_the_rest_still_holds_counts_as_free() -> None:
    """An idle llama-server does not notice, and keeps what is to be shared out anew."""
    parts = parts_of(Memory(local=2 * GIB))
    with pytest.raises(PlanError):
        await parts.instead_of(PLAN_BIG, None)
    memory = DeviceMemory(device="local/CPU", kv_bytes=2 * GIB)
    held = ClusterMemory(plan=PLAN_BIG, memory=(memory,), loaded=True)
    rest = await parts.instead_of(PLAN_BIG, held)
    assert told_split(rest) == "13 on local/CPU"


async def test_where_nothing_is_gone_any_more_all_of_it_goes_on() -> None:
    parts = parts_of(Memory(local=GIB, ada=GIB))
    assert await parts.instead_of(PLAN, None) == PLAN


def test_what_a_dead_llama_server_held_is_free_already() -> None:
    measured = MeasuredSplit(
        layers=(), buffers=(DeviceMemory(device="local/CPU", kv_bytes=GIB),)
    )
    record = Record(measured=measured, server="7@1")
    alive: Any = SimpleNamespace(incarnation="7@1", alive=True)
    dead: Any = SimpleNamespace(incarnation="7@1", alive=False)
    held = still_held(PLAN, record, [alive])
    assert held is not None
    assert held.memory[0].kv_bytes == GIB
    assert still_held(PLAN, record, [dead]) is None


async def test_the_context_is_shorter_where_the_settings_allow_that() -> None:
    """Down to a floor, and only as short as it must be."""
    machines = Memory(local=4 * GIB)
    with pytest.raises(PlanError, match="ctx_size_min = "):
        await parts_of(machines, rejoin="never").instead_of(PLAN_LONG, None)
    found = await parts_of(machines, ctx_size_min=1024).instead_of(PLAN_LONG, None)
    assert 1024 <= found.ctx_size < PLAN_LONG.ctx_size
    told = f", context {found.ctx_size} instead of {PLAN_LONG.ctx_size}"
    assert told_stand_in(found, PLAN_LONG) == f"13 on local/CPU{told}"


async def test_nothing_waits_while_many_contexts_are_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = list[threading.Thread]()

    def noted(*args: Any, **more: Any) -> Plan:
        threads.append(threading.current_thread())
        return plan_without(*args, **more)

    monkeypatch.setattr(stand_in, "plan_without", noted)
    await parts_of(Memory(local=3 * GIB)).instead_of(PLAN, None)
    assert threads
    assert threading.current_thread() not in threads


def test_a_split_is_told_in_one_line() -> None:
    assert told_split(REST) == "13 on local/CPU"


async def test_a_worker_that_was_given_up_is_tried_anew_at_a_word_alone() -> None:
    """Also by the controller that comes after."""
    machines, journal = Memory(local=3 * GIB, ada=GIB), Remembered()
    parts = parts_of(machines, journal)
    rest = await parts.instead_of(PLAN, None, "ada")
    assert told_stand_in(rest, PLAN) == "13 on local/CPU"
    shorter = replace(rest, ctx_size=512)
    assert told_stand_in(shorter, PLAN).endswith(", context 512 instead of 1024")
    for one in (parts, parts_of(machines, journal)):
        over = asyncio.create_task(one.over(PLAN, rest))
        await asyncio.sleep(0.05)
        assert not over.done()
        over.cancel()
    assert journal.record.given_up == ("ada",)


class Roomy(StandIns):
    """On machines whose memory is made up."""

    now: dict[str, Peer]

    async def machines(self, held: object) -> dict[str, Peer]:
        return self.now


def roomy(model: ModelInfo, *machines: Peer) -> Roomy:
    async def read(path: str) -> ModelInfo:
        return model

    readers: Any = SimpleNamespace(model=read, settings=Config)
    nothing: Any = None
    kept: Any = Remembered()
    parts = Roomy(nothing, readers, nothing, nothing, kept)
    parts.now = {machine.name: machine for machine in machines}
    return parts


async def test_each_loss_is_told_with_what_would_go_on() -> None:
    """Each worker by itself, and each machine with all of its own."""
    plan = plan_for(PLAIN, ADA, BOB, peers=("ada", "bob"))
    parts = roomy(MODEL, PLAIN, ADA, BOB)
    told = {one.lost: one for one in await parts.fallbacks(plan)}
    assert list(told) == ["ada", "bob-CUDA0", "bob-CUDA1", "bob"]
    rest = plan_without(plan, ["bob"], MODEL, parts.now)
    assert told["bob"].split == ranges(rest.split)
    assert told["bob"].ctx_size == rest.ctx_size
    assert await parts.fallbacks(replace(plan, workers=())) == ()


async def test_with_a_machine_go_its_workers_that_hold_nothing() -> None:
    """A plan on what is left of it would be brought up on a machine that is gone."""
    plan = plan_for(PLAIN, ADA, BOB, peers=("ada", "bob"))
    split = make_split(MODEL.n_layer, devices(plan.split), [0, 6, 7, 0])
    told = await roomy(MODEL, PLAIN, ADA, BOB).fallbacks(replace(plan, split=split))
    (bob,) = [one for one in told if one.lost == "bob"]
    assert {held.device.partition("/")[0] for held in bob.split} <= {"local", "ada"}


async def test_what_cannot_go_on_is_told_with_why() -> None:
    small = here(device("local", "CPU", 64 * MIB))
    plan = plan_for(small, ADA, peers=("ada",), model=BIG)
    (told,) = await roomy(BIG, small, ADA).fallbacks(plan)
    assert "local/CPU is too small for its share" in told.why
    assert not told.split
