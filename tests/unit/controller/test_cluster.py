"""Requests to one cluster; what follows from them is in ``test_scenarios``."""

from __future__ import annotations

import asyncio
import threading
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from backends.controller import degraded_plan, journal
from backends.controller.degraded_plan import (
    DegradedPlans,
    counts_text,
    degraded_text,
    plan_without,
)
from backends.controller.gateway_process import ApiPorts
from backends.controller.journal import Baseline, Goal, Journal, Record
from backends.controller.memory_usage import still_held
from backends.controller.processes import ProcessBook
from backends.controller.reconciler import (
    REQUESTS,
    TRANSITIONS,
    Phase,
    Trigger,
    next_phase,
)
from backends.controller.stopping import ClusterProcesses
from backends.errors import ControllerError, PlanError
from backends.gateway.listen_settings import ApiSettings
from backends.planning.memory_fit import ClusterMemory
from backends.split.layout import devices, make_split, ranges
from backends.state import DeviceMemory, Lab, MeasuredSplit, ModelInfo, Peer, Plan
from backends.tasks import end_tasks
from backends.writing import write_private
from tests.kit.clusters import Stage, plan_on
from tests.kit.waiting import PATIENCE_S, until
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


async def test_same_plan_with_other_settings_is_another_goal(tmp_path: Path) -> None:
    api = ApiSettings(wait_s=300, drain_s=60)
    goal = Goal(generation=4, plan=plan_on("bob"), api=api)
    known = Record(goal=goal, served_since=5.0, secret="5a", server="7@1.0")
    cluster = Stage(tmp_path, known).cluster
    lab = Lab(latency_ms=10)
    assert await cluster.want(plan_on("bob"), api=api, lab=lab) == goal
    assert cluster.links.lab_of("bob") == lab
    other = msgspec.structs.replace(api, port=8123)
    assert (await cluster.want(plan_on("bob"), api=other)).api == other
    record = Journal(tmp_path / "default.json").load()
    assert (record.secret, record.server) == ("5a", "7@1.0")
    assert record.before == goal


async def test_a_lab_stays_for_later_launches_and_controllers_until_a_stop(
    tmp_path: Path,
) -> None:
    slow, goal = Lab(latency_ms=10), Goal(generation=1, plan=plan_on("bob"))
    first = Stage(tmp_path, Record(goal=goal, labs={"bob": slow}))
    await first.cluster.want(plan_on("ada", "bob"))
    cluster = Stage(tmp_path).cluster
    assert cluster.links.asked_labs == {"bob": slow}
    await cluster.want(None)
    await cluster.want(plan_on("bob"))
    assert cluster.links.asked_labs == {}


async def test_a_plan_asked_for_while_it_is_compared_is_no_part_of_that(
    tmp_path: Path,
) -> None:
    """Else the comparison would end what a person launched."""
    api, slow = ApiSettings(wait_s=300, drain_s=60), Lab(latency_ms=10)
    before = Baseline(plan=plan_on("local"), api=api, labs={"w": slow})
    goal = Goal(generation=4, plan=plan_on("bob"), api=api)
    known = Record(goal=goal, goes_back_to=before, labs=before.labs)
    cluster = Stage(tmp_path, known).cluster
    asked = {"api": api, "goes_back_to": before}
    assert await cluster.want(plan_on("bob"), **asked) == goal  # type: ignore[arg-type]
    assert (await cluster.want(plan_on("bob"), api=api)).generation == 5
    assert Journal(tmp_path / "default.json").load().goes_back_to is None
    assert cluster.links.lab_of("w") == slow


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (Record(drained_since=1.0), "drained"),
        (Record(stand_in=plan_on("local")), "away"),
        (Record(waits_for=("bob",)), "away"),
    ],
)
def test_what_is_not_whole_is_not_compared(
    tmp_path: Path, record: Record, why: str
) -> None:
    goal = Goal(generation=4, plan=plan_on("bob"))
    cluster = Stage(tmp_path, replace(record, goal=goal)).cluster
    with pytest.raises(ControllerError, match=why), cluster.comparing("race"):
        pass


async def test_a_goal_that_is_being_written_keeps_the_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one that is to end if it is idle leaves a goal behind that nobody knows."""
    gate = threading.Event()

    def slow(file: Path, content: bytes) -> None:
        gate.wait(PATIENCE_S)
        write_private(file, content)

    cluster = Stage(tmp_path, Record()).cluster
    running = asyncio.create_task(cluster.reconciler.run())
    await until(lambda: not cluster.busy)
    monkeypatch.setattr(journal, "write_private", slow)
    asking = asyncio.create_task(cluster.want(plan_on("local")))
    await asyncio.sleep(0)
    assert cluster.is_changing
    assert cluster.busy
    await end_tasks(running)
    gate.set()
    await asking


def test_clusters_do_not_choose_the_same_port() -> None:
    ports = ApiPorts()
    assert ports.choose("a", 8090)
    assert not ports.choose("b", 8090)
    assert ports.candidates("a", 8090)[0] == 8090
    assert ports.choose("b", 8091)
    assert ports.candidates("b", 8090)[:2] == [8091, 8090]
    ports.lose("b")
    assert ports.candidates("b", 8090)[:2] == [8090, 8092]
    ports.release("a")
    assert ports.owner(8090) is None


@pytest.mark.parametrize(
    ("told", "left"),
    [
        (None, {"bob"}),
        ({"default/bob"}, {"bob"}),
        ({"default/bob", "default/worker-relay-bob"}, {"bob", "worker-relay-bob"}),
        (set(), set()),
    ],
)
async def test_a_relay_beside_a_worker_is_left_where_it_was_seen(
    tmp_path: Path, told: set[str] | None, left: set[str]
) -> None:
    """Of a machine that told what runs there, or never did."""
    context = Stage(tmp_path).context
    book = SimpleNamespace(
        knows=lambda machine: told is not None,
        may_run=lambda machine, name: told is None or name in told,
    )
    context.book = cast("ProcessBook", book)
    needed = {"bob": "bob", "worker-relay-bob": "bob"}
    away = ClusterProcesses(context).away(needed)
    assert {one.name for one in away} == left


# --- The table of the reconciler; what it comes to is in ``test_scenarios`` ---


def test_every_phase_has_a_row_and_can_be_reached() -> None:
    assert set(TRANSITIONS) == set(Phase)
    led_to = chain(REQUESTS.values(), *(row.values() for row in TRANSITIONS.values()))
    assert set(Phase) == set(led_to)


def test_a_request_holds_in_every_phase() -> None:
    for phase in Phase:
        assert next_phase(phase, Trigger.STOPPED) is Phase.STOPPING
        assert next_phase(phase, Trigger.LAUNCHED) is Phase.REACHING


def test_what_the_table_does_not_know_is_a_failure() -> None:
    assert next_phase(Phase.REACHING, Trigger.UNREACHABLE) is Phase.FAILED
    assert next_phase(Phase.WAITING, Trigger.FAULT) is Phase.FAILED


# --- The degraded plan by memory; when it runs is in ``test_scenarios`` ---

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


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def on(
    stage: Stage, model: ModelInfo, *machines: Peer, settings: str = ""
) -> DegradedPlans:
    """With what is free on machines; those that are not among them are away."""
    stage.inventory.scripted = {model.path: model}
    config = stage.inventory.paths.config_file
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(settings)
    for name, one in stage.cast.machines.items():
        there = next((peer for peer in machines if peer.name == name), None)
        one.there = there is not None
        if there is not None:
            one.device = there.devices[0]
    return DegradedPlans(stage.context)


def little(free_bytes: int) -> Peer:
    return here(replace(device("local", "CPU", free_bytes), total_bytes=4 * GIB))


async def test_what_the_rest_still_holds_counts_as_free(stage: Stage) -> None:
    """An idle llama-server does not notice, and keeps what is to be shared out anew."""
    parts = on(stage, BIG, little(2 * GIB))
    with pytest.raises(PlanError):
        await parts.instead_of(PLAN_BIG, None)
    memory = DeviceMemory(device="local/CPU", kv_bytes=2 * GIB)
    held = ClusterMemory(plan=PLAN_BIG, memory=(memory,), loaded=True)
    rest = await parts.instead_of(PLAN_BIG, held)
    assert counts_text(rest) == "13 on local/CPU"


async def test_where_nothing_is_gone_any_more_all_of_it_goes_on(stage: Stage) -> None:
    parts = on(stage, BIG, little(GIB), ADA)
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


async def test_context_is_shorter_where_the_settings_allow_that(stage: Stage) -> None:
    """Down to a floor, and only as short as it must be."""
    with pytest.raises(PlanError, match="ctx_size_min = "):
        await on(stage, LONG, little(4 * GIB)).instead_of(PLAN_LONG, None)
    parts = on(stage, LONG, little(4 * GIB), settings="ctx_size_min = 1024")
    found = await parts.instead_of(PLAN_LONG, None)
    assert 1024 <= found.ctx_size < PLAN_LONG.ctx_size
    told = f", context {found.ctx_size} instead of {PLAN_LONG.ctx_size}"
    assert degraded_text(found, PLAN_LONG) == f"13 on local/CPU{told}"


async def test_nothing_waits_while_many_contexts_are_tried(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = list[threading.Thread]()

    def noted(*args: Any, **more: Any) -> Plan:
        threads.append(threading.current_thread())
        return plan_without(*args, **more)

    monkeypatch.setattr(degraded_plan, "plan_without", noted)
    await on(stage, BIG, little(3 * GIB)).instead_of(PLAN, None)
    assert threads
    assert threading.current_thread() not in threads


async def test_a_worker_that_was_given_up_is_remembered(stage: Stage) -> None:
    parts = on(stage, BIG, little(3 * GIB), ADA)
    rest = await parts.instead_of(PLAN, None, "ada")
    assert degraded_text(rest, PLAN) == "13 on local/CPU"
    shorter = replace(rest, ctx_size=512)
    assert degraded_text(shorter, PLAN).endswith(", context 512 instead of 1024")
    assert stage.journal.load().given_up == ("ada",)


def roomy(stage: Stage, model: ModelInfo, *machines: Peer) -> DegradedPlans:
    """On machines with all of their devices."""
    parts = on(stage, model, *machines)

    async def now(held: object) -> dict[str, Peer]:
        return {machine.name: machine for machine in machines}

    parts.machines = now  # type: ignore[method-assign]
    return parts


async def test_each_loss_is_told_with_what_would_go_on(stage: Stage) -> None:
    """Each worker by itself, and each machine with all of its own."""
    plan = plan_for(PLAIN, ADA, BOB, peers=("ada", "bob"))
    machines = {"local": PLAIN, "ada": ADA, "bob": BOB}
    parts = roomy(stage, MODEL, PLAIN, ADA, BOB)
    told = {one.lost: one for one in await parts.fallbacks(plan)}
    assert list(told) == ["ada", "bob-CUDA0", "bob-CUDA1", "bob"]
    rest = plan_without(plan, ["bob"], MODEL, machines)
    assert told["bob"].split == ranges(rest.split)
    assert told["bob"].ctx_size == rest.ctx_size
    assert await parts.fallbacks(replace(plan, workers=())) == ()


async def test_with_a_machine_go_its_workers_that_hold_nothing(stage: Stage) -> None:
    """A plan on what is left of it would be brought up on a machine that is gone."""
    plan = plan_for(PLAIN, ADA, BOB, peers=("ada", "bob"))
    split = make_split(MODEL.n_layer, devices(plan.split), [0, 6, 7, 0])
    parts = roomy(stage, MODEL, PLAIN, ADA, BOB)
    told = await parts.fallbacks(replace(plan, split=split))
    (bob,) = [one for one in told if one.lost == "bob"]
    assert {held.device.partition("/")[0] for held in bob.split} <= {"local", "ada"}


async def test_what_cannot_go_on_is_told_with_why(stage: Stage) -> None:
    small = here(device("local", "CPU", 64 * MIB))
    plan = plan_for(small, ADA, peers=("ada",), model=BIG)
    (told,) = await roomy(stage, BIG, small, ADA).fallbacks(plan)
    assert "local/CPU is too small for its share" in told.why
    assert not told.split
