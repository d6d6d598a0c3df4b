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

from backends.controller.api import Api, LaunchRequest
from backends.controller.cluster import Cluster
from backends.controller.responses import errors_as_values
from backends.state import Plan
from tests.kit.clusters import Stage, plan_on
from tests.kit.waiting import until


class Checks:
    def __init__(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = asyncio.Event()
        self.over = asyncio.Event()
        parts: Any = MagicMock()
        parts.clusters.get.return_value = cluster
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


async def held(client: TestClient[Any, Any], generation: int = 0) -> ClientResponse:
    query = {"holder": "word", "generation": str(generation)}
    stream = await client.get("/events", params=query)
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


async def test_what_was_launched_ends_with_its_holder(
    stage: Stage, checks: Checks
) -> None:
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


async def test_a_controller_that_ends_launches_nothing(
    stage: Stage, checks: Checks
) -> None:
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


async def test_who_holds_what_ran_already_ends_that(
    stage: Stage, checks: Checks
) -> None:
    before = await stage.cluster.want(plan_on("local"))
    async with checks.asked() as client:
        stream = await held(client, before.generation)
        stream.close()
        await until(lambda: stage.cluster.goal.plan is None)
