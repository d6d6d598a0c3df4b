"""A controller ends when nothing is left to do, and not before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from msgspec.structs import replace

from backends.controller.api import Api
from backends.controller.clusters import Clusters
from backends.machines.peers import Peers
from backends.paths import Paths
from backends.state import ClusterState, Peer, PeerState, PeerWork, ProcessRole
from tests.kit.clusters import Stage, plan_on, running
from tests.kit.waiting import PATIENCE_S
from tests.unit.controller.test_launch_order import held

IF_IDLE = "/shutdown?only_if_idle=1"


class Ending:
    """The API over one cluster, whose only process ends when a test says."""

    def __init__(self, stage: Stage, paths: Paths) -> None:
        self.stage = stage
        self.cluster = stage.cluster
        self.ended = asyncio.Event()
        self.stops = asyncio.Event()
        self.may_stop = asyncio.Event()
        self.local = stage.cast.get("local").host
        self._stop, self.local.stop = self.local.stop, self._slow  # type: ignore[method-assign]
        clusters = Clusters(MagicMock(), paths)
        clusters._clusters["default"] = stage.cluster
        parts: Any = MagicMock(clusters=clusters, ended=self.ended)
        self.works = False
        work = PeerWork(title="copy")
        ada = Peer(name="ada", state=PeerState.READY)
        peers = Peers.__new__(Peers)
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
