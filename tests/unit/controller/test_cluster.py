"""A goal over machines that misbehave: it is never forgotten, and never frozen."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import AsyncMock

import msgspec
import pytest

from backends.config import Config
from backends.controller.cluster import Cluster
from backends.controller.event_log import EventFiles, EventLog
from backends.controller.gateway import ApiPorts
from backends.controller.journal import Goal, Journal, Record
from backends.controller.processes import ProcessBook
from backends.controller.snapshot_store import SnapshotStore
from backends.errors import ControllerError, HostError, PeerUnreachable
from backends.gateway.access import ApiSettings
from backends.machines.host import ProcessRecord
from backends.speculation.auto import TrialBook
from backends.state import (
    Actor,
    ClusterState,
    EventKind,
    Failure,
    Fallback,
    Leftover,
    Plan,
    ProcessRole,
    ProcessState,
    Share,
    Split,
    WorkerSpec,
)
from tests.kit.full_disk import little_room
from tests.kit.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path


ANNA = Actor(program="drain", user="anna")


def plan_on(peer: str) -> Plan:
    return Plan(
        model="/m.gguf",
        split=Split(n_layer=1, shares=(Share(device="w/CPU", layers=2),)),
        workers=(WorkerSpec(name="w", peer=peer),),
    )


class Away:
    """A machine that was heard of once, and cannot be reached."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stopped: list[str] = []
        self.running: list[str] = []
        self.idle = asyncio.Event()

    @property
    def host(self) -> Away:
        return self

    @property
    def seen(self) -> tuple[ProcessRecord, ...]:
        return tuple(
            ProcessRecord(
                name=f"default/{name}",
                role=ProcessRole.WORKER,
                state=ProcessState.RUNNING,
                pid=1,
                argv=(),
            )
            for name in self.running
        )

    def subscribe(self, told: object) -> Any:
        return lambda: None

    async def records(self) -> tuple[ProcessRecord, ...]:
        return self.seen

    async def orphans(self) -> list[object]:
        return []

    async def stop(self, name: str, grace_s: float) -> None:
        self.stopped.append(name)
        self.running.remove(name.rpartition("/")[2])
        self.idle.set()


class Machines:
    """Some machines; which of them are connected is up to the test."""

    def __init__(self) -> None:
        self.known = {name: Away(name) for name in ("local", "ada")}
        self.connected = {"local"}
        self.error: Exception | None = None

    def get(self, name: str) -> Away:
        if name not in self.known:
            raise HostError(f"There is no peer {name}")
        return self.known[name]

    def all(self) -> list[Away]:
        return [m for name, m in self.known.items() if name in self.connected]

    async def reached(self, names: Iterable[str]) -> None:
        if self.error is not None:
            raise self.error
        for name in names:
            if name not in self.connected:
                raise PeerUnreachable(f"{name} cannot be reached")


class Stage:
    """One cluster over such machines."""

    def __init__(self, folder: Path, record: Record | None = None) -> None:
        self.folder = folder
        self.machines = Machines()
        self.journal = Journal(folder / "default.json")
        if record is not None:
            self.journal.save(record)
        self.book = ProcessBook(cast("Any", self.machines), lambda: None)
        self.store = SnapshotStore(Config)
        self.event_log = EventLog(EventFiles(folder / "events"))
        self.cluster = self.made()

    def made(self) -> Cluster:
        return Cluster(
            "default",
            cast("Any", self.machines),
            self.store,
            self.journal,
            cast("Any", None),
            self.book,
            ApiPorts(),
            self.event_log,
            self.folder / "gateway.sock",
            TrialBook(self.folder / "trials.json"),
        )

    async def becomes(self, state: ClusterState) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.store.snapshot.state is not state:
                await self.store.change()


@contextlib.asynccontextmanager
async def running(cluster: Cluster) -> AsyncIterator[None]:
    loop = asyncio.create_task(cluster.run())
    try:
        yield
    finally:
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)


async def test_an_error_nobody_thought_of_is_a_failure_with_its_evidence(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path)
    stage.machines.error = ZeroDivisionError("in the depths")
    async with running(stage.cluster):
        goal = await stage.cluster.want(plan_on("local"))
        await stage.becomes(ClusterState.FAILED)
        failure = stage.store.snapshot.failure
        assert failure is not None
        assert "ZeroDivisionError: in the depths" in failure.what
        assert any("reached" in line for line in failure.log_tail)
        assert Journal(tmp_path / "default.json").load().goal == goal
        stage.machines.error = None
        await stage.cluster.want(None)
        await stage.becomes(ClusterState.IDLE)


@pytest.mark.parametrize("served_since", [None, 5.0])
async def test_a_failure_says_whether_it_ended_what_served(
    tmp_path: Path, served_since: float | None
) -> None:
    goal = Goal(generation=1, plan=plan_on("local"))
    stage = Stage(tmp_path, Record(goal=goal, served_since=served_since))
    stage.machines.error = ZeroDivisionError("in the depths")
    async with running(stage.cluster):
        await stage.becomes(ClusterState.FAILED)
    failure = Journal(tmp_path / "default.json").load().failure
    assert failure is not None
    assert failure.served is (served_since is not None)
    assert failure == stage.store.snapshot.failure


async def test_an_expected_error_keeps_the_goal_too(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    async with running(stage.cluster):
        goal = await stage.cluster.want(plan_on("ada"))
        await stage.becomes(ClusterState.FAILED)
    assert stage.journal.load().goal == goal
    assert stage.journal.record.waits_for == ("ada",)


async def test_who_comes_second_is_told(tmp_path: Path) -> None:
    cluster = Stage(tmp_path).cluster
    first = await cluster.want(plan_on("local"), replaces=0)
    with pytest.raises(ControllerError, match="came first"):
        await cluster.want(plan_on("ada"), replaces=0)
    assert cluster.goal == first
    assert (
        await cluster.want(plan_on("ada"), replaces=first.generation)
    ).generation == 2


@pytest.mark.parametrize("later", [plan_on("local"), None])
async def test_who_asked_last_holds_however_long_another_is_checked(
    tmp_path: Path, later: Plan | None
) -> None:
    cluster = Stage(tmp_path).cluster
    before = await cluster.want(plan_on("local"))
    number = cluster.order.number()
    held = await cluster.want(later)
    with pytest.raises(ControllerError, match="came after this launch"):
        await cluster.want(plan_on("ada"), number=number)
    assert cluster.goal == held
    assert (held == before) is (later is not None)
    assert (await cluster.want(plan_on("ada"))).plan == plan_on("ada")


async def test_the_same_plan_again_is_the_same_goal(tmp_path: Path) -> None:
    cluster = Stage(tmp_path).cluster
    goal = await cluster.want(plan_on("local"))
    assert await cluster.want(plan_on("local")) == goal


SERVES = Record(goal=Goal(generation=4, plan=plan_on("local")), served_since=5.0)


async def test_a_launch_that_fails_goes_back_to_what_served(tmp_path: Path) -> None:
    """Once: what fails then was brought back, and is told as failed."""
    stage = Stage(tmp_path, SERVES)
    failed = await stage.cluster.want(plan_on("ada"))
    async with running(stage.cluster):
        await stage.becomes(ClusterState.FAILED)
    back = Journal(tmp_path / "default.json").load()
    assert back.goal.plan == plan_on("local")
    assert back.goal.generation == failed.generation + 1
    assert back.goal.rolled_back_to == SERVES.goal.generation
    assert back.rolled_back is not None
    assert back.rolled_back.generation == failed.generation
    assert "ada cannot be reached" in back.rolled_back.failure.what
    assert stage.store.snapshot.rolled_back == back.rolled_back
    told = [e.text for e in stage.event_log.after(0) if e.kind is EventKind.MENDED]
    assert told == [
        "The launch failed (ada cannot be reached): back to the plan before it"
    ]
    await stage.cluster.want(None)
    assert stage.journal.record.rolled_back is None


async def test_going_back_keeps_a_drain_of_meanwhile(tmp_path: Path) -> None:
    stage = Stage(tmp_path, SERVES)
    await stage.cluster.want(plan_on("ada"))
    await stage.cluster.drain(on=True, by=ANNA)
    async with running(stage.cluster):
        await stage.becomes(ClusterState.FAILED)
    assert stage.cluster.goal.plan == plan_on("local")
    assert stage.store.snapshot.drained_since is not None
    await stage.cluster.drain(on=False, by=ANNA)
    assert not stage.cluster.gateway.is_drained


@pytest.mark.parametrize(
    "record",
    [
        Record(goal=Goal(generation=4, plan=plan_on("local"))),
        msgspec.structs.replace(SERVES, failure=Failure(what="it broke")),
    ],
    ids=["never served", "failed since"],
)
async def test_a_launch_that_fails_goes_back_to_nothing_else(
    tmp_path: Path, record: Record
) -> None:
    stage = Stage(tmp_path, record)
    failed = await stage.cluster.want(plan_on("ada"))
    async with running(stage.cluster):
        await stage.becomes(ClusterState.FAILED)
    assert stage.cluster.goal == failed


async def test_launches_in_a_row_go_back_to_the_last_that_served(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, SERVES)
    await stage.cluster.want(plan_on("bert"))
    await stage.cluster.want(plan_on("ada"))
    async with running(stage.cluster):
        await stage.becomes(ClusterState.FAILED)
    assert stage.cluster.goal.plan == plan_on("local")


async def test_the_same_plan_with_other_settings_is_another_goal(
    tmp_path: Path,
) -> None:
    """What runs is not begun anew for it, and it goes back if the API cannot be had."""
    api = ApiSettings(wait_s=300, drain_s=60)
    goal = msgspec.structs.replace(SERVES.goal, api=api)
    known = msgspec.structs.replace(SERVES, goal=goal, secret="5a", server="7@1.0")
    cluster = Stage(tmp_path, known).cluster
    assert await cluster.want(plan_on("local"), api=api) == goal
    other = msgspec.structs.replace(api, port=8123)
    assert (await cluster.want(plan_on("local"), api=other)).api == other
    record = Journal(tmp_path / "default.json").load()
    assert (record.secret, record.server) == ("5a", "7@1.0")
    assert record.before == goal


async def test_a_stop_holds_though_the_disk_is_full(tmp_path: Path) -> None:
    stage = Stage(tmp_path, SERVES)
    with little_room(0):
        await stage.cluster.want(None)
        assert Journal(tmp_path / "default.json").load().goal.plan is None
    assert stage.cluster.goal.plan is None


async def test_a_stop_that_cannot_be_written_is_done_and_told(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "state", SERVES)
    stage.machines.known["local"].running.append("w")
    (tmp_path / "state").rename(tmp_path / "away")
    (tmp_path / "state").write_text("in the way")
    async with running(stage.cluster):
        with pytest.raises(ControllerError, match="another controller would start it"):
            await stage.cluster.want(None)
        await stage.becomes(ClusterState.IDLE)
        assert stage.machines.known["local"].running == []
        assert stage.cluster.busy, "whoever ends now undoes the stop"
        (tmp_path / "state").unlink()
        await stage.cluster.want(None)
        await stage.becomes(ClusterState.IDLE)
        assert not stage.cluster.busy


async def test_a_launch_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    stage = Stage(tmp_path, SERVES)
    with little_room(0):
        with pytest.raises(
            ControllerError, match=r"written \(.*\): nothing was changed"
        ):
            await stage.cluster.want(plan_on("ada"))
        with pytest.raises(ControllerError, match="nothing was changed"):
            await stage.cluster.drain(on=True, by=ANNA)
    assert stage.cluster.goal == SERVES.goal
    assert Journal(tmp_path / "default.json").load() == SERVES
    assert not stage.cluster.gateway.is_drained
    assert stage.event_log.after(0) == ()


async def test_what_is_out_of_reach_is_remembered_and_ended_later(
    tmp_path: Path,
) -> None:
    ran = Record(goal=Goal(generation=3, plan=plan_on("ada")))
    stage = Stage(tmp_path, ran)
    stage.machines.known["ada"].running.append("w")
    async with running(stage.cluster):
        await stage.cluster.want(None)
        await stage.becomes(ClusterState.IDLE)
        left = {(one.name, one.peer) for one in stage.store.snapshot.leftovers}
        assert left == {("w", "ada")}
        assert stage.cluster.busy, "somebody must end it"
        stage.machines.connected.add("ada")
        await stage.cluster.settle(cast("Any", stage.machines.known["ada"]))
    assert stage.machines.known["ada"].stopped == ["default/w"]
    assert stage.store.snapshot.leftovers == ()
    assert not stage.cluster.busy


async def test_a_machine_taken_from_the_settings_is_not_waited_for(
    tmp_path: Path,
) -> None:
    left = (Leftover(name="w", peer="gone"),)
    stage = Stage(tmp_path, Record(goal=Goal(generation=1), leftovers=left))
    async with running(stage.cluster):
        await stage.cluster.want(None)
        await stage.becomes(ClusterState.IDLE)
    assert stage.journal.record.leftovers == ()


@pytest.mark.parametrize("content", ["{", '{"version": 1}', '{"version": 99}'])
async def test_a_journal_that_is_not_understood_kills_nothing(
    tmp_path: Path, content: str
) -> None:
    stage = Stage(tmp_path)
    (tmp_path / "default.json").write_text(content)
    local = stage.machines.known["local"]
    local.running.append("w")
    cluster = stage.made()
    async with running(cluster):
        await stage.becomes(ClusterState.FAILED)
        await cluster.settle(cast("Any", local))
        assert local.stopped == []
        await cluster.want(None)
        await stage.becomes(ClusterState.IDLE)
    assert local.stopped == ["default/w"]


async def test_the_return_of_a_machine_takes_up_what_waited_for_it(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path)
    async with running(stage.cluster):
        await stage.cluster.want(plan_on("ada"))
        await stage.becomes(ClusterState.FAILED)
        stage.machines.connected.add("ada")
        await stage.cluster.settle(cast("Any", stage.machines.known["ada"]))
        assert not stage.cluster.stands
        assert "ada is back" in stage.store.snapshot.message or stage.cluster.pursued


async def test_a_stop_is_at_work_from_the_word_to_the_end(tmp_path: Path) -> None:
    """Who ends a controller that seems idle in between leaves what runs to itself."""
    stage = Stage(tmp_path)
    stage.machines.known["local"].running.append("w")
    began = asyncio.Event()

    async def forever(_: object) -> None:
        began.set()
        await asyncio.Event().wait()

    stage.machines.reached = AsyncMock(side_effect=forever)  # type: ignore[method-assign]
    async with running(stage.cluster):
        await stage.cluster.want(plan_on("local"))
        await began.wait()
        stage.machines.reached = AsyncMock()  # type: ignore[method-assign]
        await stage.cluster.want(None)
        while stage.store.snapshot.state is not ClusterState.IDLE:
            assert stage.cluster.busy
            await asyncio.sleep(0)
        assert not stage.cluster.busy
    assert stage.machines.known["local"].running == []


async def test_what_starts_too_late_for_any_goal_is_ended(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    local = stage.machines.known["local"]
    async with running(stage.cluster):
        await stage.cluster.want(plan_on("ada"))
        await stage.becomes(ClusterState.FAILED)
        await asyncio.sleep(0)
        local.running.append("w")
        stage.cluster.look()
        await asyncio.wait_for(local.idle.wait(), 5)
    assert local.stopped == ["default/w"]
    assert stage.store.snapshot.state is ClusterState.FAILED, "and told as before"


async def test_one_that_cannot_be_ended_keeps_no_other_from_being_ended(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path)
    local = stage.machines.known["local"]
    local.running += ["a", "b"]
    stop = local.stop

    async def stubborn(name: str, grace_s: float) -> None:
        if name == "default/a":
            raise HostError("a outlived SIGKILL")
        await stop(name, grace_s)

    local.stop = stubborn  # type: ignore[method-assign]
    async with running(stage.cluster):
        await stage.cluster.want(None)
        await stage.becomes(ClusterState.FAILED)
    assert local.running == ["a"]


def test_clusters_do_not_choose_the_same_port() -> None:
    ports = ApiPorts()
    assert ports.choose("a", 8090)
    assert not ports.choose("b", 8090)
    assert ports.candidates("a", 8090)[0] == 8090
    assert ports.choose("b", 8091)
    assert ports.candidates("b", 8090)[:2] == [8091, 8090]
    ports.release("a")
    assert ports.owner(8090) is None


async def test_a_drain_is_kept_until_a_word(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    with pytest.raises(ControllerError, match="nothing to drain"):
        await stage.cluster.drain(on=True, by=ANNA)
    await stage.cluster.want(plan_on("ada"))
    for _ in range(2):
        await stage.cluster.drain(on=True, by=ANNA)
    since = stage.store.snapshot.drained_since
    assert since is not None
    assert stage.cluster.gateway.is_drained
    assert stage.made().gateway.is_drained, "the next controller's"
    # Also while it stands still, and goes on when a machine is back.
    stage.journal.change(failure=Failure(what="ada is away"))
    await stage.cluster.drain(on=False, by=ANNA)
    assert stage.store.snapshot.drained_since is None
    stage.journal.change(failure=None)
    await stage.cluster.drain(on=True, by=ANNA)
    await stage.cluster.want(plan_on("local"))
    assert not stage.cluster.gateway.is_drained, "a launch ends it"
    assert stage.store.snapshot.drained_since is None
    told = [e.text for e in stage.event_log.after(0) if e.kind is EventKind.DRAIN]
    assert [text.split()[0] for text in told] == ["drained", "resumed", "drained"]


async def test_what_serves_is_not_ended_for_a_machine_that_is_away(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path)
    discovery: Any = stage.cluster._reconciler.discovery
    discovery.require_access = discovery.require_port = AsyncMock()
    require_possible = stage.cluster.require_possible
    await require_possible(plan_on("ada"))
    stage.store.update(state=ClusterState.SERVING)
    await require_possible(plan_on("local"))
    with pytest.raises(PeerUnreachable, match="left as it is"):
        await require_possible(plan_on("ada"))


async def test_what_a_loss_would_leave_is_computed_when_somebody_looks(
    tmp_path: Path,
) -> None:
    stage = Stage(tmp_path, SERVES)
    told = (Fallback(lost="w", why="it is too big"),)
    ask = AsyncMock(return_value=told)
    stage.cluster._reconciler.stand_ins.fallbacks = ask  # type: ignore[method-assign]
    await stage.cluster.look_at_fallbacks(0.0)
    assert not ask.called, "it does not serve"
    stage.store.update(state=ClusterState.SERVING, plan=SERVES.goal.plan)
    for _ in range(2):
        await stage.cluster.look_at_fallbacks(60.0)
    assert stage.store.snapshot.fallbacks == told
    ask.side_effect = PeerUnreachable("ada is gone")
    await stage.cluster.look_at_fallbacks(0.0)
    assert ask.call_count == 2
