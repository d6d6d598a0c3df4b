"""What is asked for while a launch is still checked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import msgspec
import pytest
from aiohttp import ClientResponse, web
from aiohttp.test_utils import TestClient, TestServer
from msgspec.structs import replace

from backends.controller.api import Api, LaunchRequest
from backends.controller.cluster import Cluster
from backends.controller.clusters import Clusters
from backends.controller.http_server import errors_as_values
from backends.machines.peers import Peers
from backends.paths import Paths
from backends.state import ClusterState, Peer, PeerState, PeerWork, Plan, ProcessRole
from tests.kit.clusters import Stage, plan_on, running
from tests.kit.waiting import PATIENCE_S, until


class Checks:
    def __init__(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = asyncio.Event()
        self.over = asyncio.Event()
        parts: Any = MagicMock()
        parts.cluster_of.return_value = cluster
        parts.clusters.stop_all = AsyncMock()
        parts.ended = self.ended = asyncio.Event()
        self.api = Api(parts)
        monkeypatch.setattr(self.api._preparations, "launchable", self._checked)
        monkeypatch.setattr(cluster, "require_possible", AsyncMock(return_value=None))

    async def _checked(self, cluster: Cluster, plan: Plan) -> tuple[Plan, None]:
        if plan == plan_on("ada"):
            self.begun.set()
            await self.over.wait()
        return plan, None

    @asynccontextmanager
    async def asked(self) -> AsyncIterator[TestClient[Any, Any]]:
        app = web.Application(middlewares=[errors_as_values])
        app.router.add_post("/launch", self.api._launch)
        app.router.add_post("/stop", self.api._stop)
        app.router.add_get("/events", self.api._snapshots)
        # Its streams end with their readers, as the controller's do.
        async with TestClient(TestServer(app)) as client:
            yield client

    async def launching(
        self, client: TestClient[Any, Any], holder: str = ""
    ) -> asyncio.Task[ClientResponse]:
        async def answer() -> ClientResponse:
            body = launch(plan_on("ada"), holder)
            return await client.post("/launch", data=body)

        asking = asyncio.create_task(answer())
        await self.begun.wait()
        return asking


async def held(client: TestClient[Any, Any]) -> ClientResponse:
    stream = await client.get("/events", params={"holder": "word"})
    await stream.content.readline()
    return stream


def launch(plan: Plan, holder: str = "") -> bytes:
    return msgspec.json.encode(LaunchRequest(plan=plan, holder=holder))


@pytest.mark.parametrize("later", [plan_on("local"), None], ids=["launch", "stop"])
async def test_what_was_asked_for_meanwhile_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: Plan | None
) -> None:
    cluster = Stage(tmp_path).cluster
    checks = Checks(cluster, monkeypatch)
    async with checks.asked() as client:
        slow = await checks.launching(client)
        before = await cluster.want(plan_on("local"))
        if later is None:
            assert (await client.post("/stop")).status == 200
        else:
            assert (await client.post("/launch", data=launch(later))).status == 200
        checks.over.set()
        answer = await slow
        assert answer.status >= 400
        assert "came after this launch" in await answer.text()
    assert cluster.goal.plan == later
    assert cluster.goal.generation == before.generation + (later is None)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


@pytest.fixture
def checks(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Checks:
    return Checks(stage.cluster, monkeypatch)


async def test_launches_end_with_their_holder(stage: Stage, checks: Checks) -> None:
    async with checks.asked() as client:
        stream = await held(client)
        body = launch(plan_on("local"), "word")
        assert (await client.post("/launch", data=body)).status == 200
        assert stage.cluster.goal.plan == plan_on("local")
        stream.close()
        await until(lambda: stage.cluster.goal.plan is None)


async def test_a_launch_whose_holder_left_before_it_began_does_not(
    stage: Stage, checks: Checks
) -> None:
    async with checks.asked() as client:
        stream = await held(client)
        slow = await checks.launching(client, "word")
        stream.close()
        await until(lambda: checks.api.streams == 0)
        checks.over.set()
        answer = await slow
        assert answer.status >= 400
        assert "is gone" in await answer.text()
    assert stage.cluster.goal.plan is None


async def test_a_launch_whose_holder_leaves_while_it_is_written_ends(
    stage: Stage, checks: Checks, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, written = asyncio.Event(), asyncio.Event()
    want = stage.cluster.want

    async def slowly(plan: Plan | None, *args: Any, **more: Any) -> Any:
        if plan is not None:
            begun.set()
            await written.wait()
        return await want(plan, *args, **more)

    monkeypatch.setattr(stage.cluster, "want", slowly)
    async with checks.asked() as client:
        stream = await held(client)
        body = launch(plan_on("local"), "word")
        slow = asyncio.create_task(client.post("/launch", data=body))
        await begun.wait()
        stream.close()
        await until(lambda: checks.api.streams == 0)
        written.set()
        await slow
        assert stage.cluster.goal.plan is None
        assert not checks.api._leases.anybody


async def test_no_launch_of_an_ending_controller(stage: Stage, checks: Checks) -> None:
    async with checks.asked() as client:
        slow = await checks.launching(client)
        checks.ended.set()
        checks.over.set()
        assert "The controller ends" in await (await slow).text()
    assert stage.cluster.goal.plan is None


async def test_a_holder_of_nothing_ends_nothing(stage: Stage, checks: Checks) -> None:
    async with checks.asked() as client:
        stream = await held(client)
        before = await stage.cluster.want(plan_on("local"))
        stream.close()
        await until(lambda: checks.api.streams == 0)
    assert stage.cluster.goal == before


# --- A controller ends when nothing is left to do, and not before ---

IF_IDLE = "/shutdown?only_if_idle=1"


class Ending:
    """The API over one cluster, whose only process ends when a test says."""

    def __init__(self, stage: Stage, paths: Paths) -> None:
        self.stage = stage
        self.cluster = stage.cluster
        self.ended = asyncio.Event()
        self.stops = asyncio.Event()
        self.may_stop = asyncio.Event()
        self.local = stage.cast.get("local").agent
        self._stop, self.local.stop = self.local.stop, self._slow  # type: ignore[method-assign]
        clusters = Clusters(MagicMock(), paths)
        clusters._clusters["default"] = stage.cluster
        parts: Any = MagicMock(clusters=clusters, ended=self.ended)
        parts.cluster_of.return_value = stage.cluster
        parts.usage.watchers = 0
        self.works = False
        work = PeerWork(title="copy")
        ada = Peer(name="ada", state=PeerState.READY)
        peers = Peers.__new__(Peers)
        peers._pairing = None
        peers.values = lambda: (replace(ada, work=work if self.works else None),)  # type: ignore[method-assign]
        parts.peers = peers
        self.api = api = Api(parts)
        app = web.Application()
        app.router.add_post("/shutdown", api._shutdown)
        app.router.add_get("/events", api._snapshots)
        self.client = TestClient(TestServer(app))

    async def _slow(self, name: str, grace_s: float) -> Any:
        self.stops.set()
        await self.may_stop.wait()
        return await self._stop(name, grace_s)


@pytest.fixture
async def ending(tmp_path: Path, paths: Paths) -> AsyncIterator[Ending]:
    one = Ending(Stage(tmp_path), paths)
    async with running(one.cluster), one.client:
        yield one


async def test_one_that_only_stops_ends_after_that(ending: Ending) -> None:
    ending.stage.cast.appears("local", "w", ProcessRole.WORKER)
    await ending.cluster.want(None)
    await ending.stops.wait()
    assert (await ending.client.post(IF_IDLE)).status == 200
    assert not ending.ended.is_set()
    ending.may_stop.set()
    await asyncio.wait_for(ending.ended.wait(), PATIENCE_S)
    assert ending.stage.cast.running() == []


async def test_one_that_does_nothing_ends_at_once(ending: Ending) -> None:
    before = ending.cluster.goal
    assert (await ending.client.post(IF_IDLE)).status == 200
    assert ending.ended.is_set()
    assert ending.cluster.goal == before


async def test_one_that_is_wanted_stays(ending: Ending) -> None:
    await ending.cluster.want(plan_on("ada"))
    assert (await ending.client.post(IF_IDLE)).status == 200
    await ending.stage.becomes(ClusterState.FAILED)
    assert not ending.ended.is_set()
    assert ending.cluster.goal.plan == plan_on("ada")


async def test_one_that_works_at_a_machine_stays(ending: Ending) -> None:
    """A copy, an installation: neither the last stop nor anything else cancels it."""
    ending.works = True
    for asked in (IF_IDLE, "/shutdown"):
        assert (await ending.client.post(asked)).status == 200
    assert not ending.ended.is_set()
    assert ending.api.in_use
    ending.works = False
    assert not ending.api.in_use
    assert (await ending.client.post(IF_IDLE)).status == 200
    assert ending.ended.is_set()


async def test_one_that_another_is_about_to_launch_with_stays(ending: Ending) -> None:
    stream = await held(ending.client)
    assert (await ending.client.post(IF_IDLE)).status == 200
    assert not ending.ended.is_set()
    stream.close()
