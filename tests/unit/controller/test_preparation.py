"""A preparation finds everything once; a launch with its token nothing again."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from backends.controller import preparation
from backends.controller.clusters import Clusters
from backends.controller.memory_usage import machines_now
from backends.controller.preparation import LASTS_S, Preparations
from backends.demo import MODEL_PATH
from backends.engine.ask import Engine
from backends.errors import ControllerError, ModelError, PlanError
from backends.machines.local import local_host_for_now
from backends.machines.machine import LocalMachine
from backends.machines.readers import Readers
from backends.models import layers
from backends.models.header import read_header
from backends.paths import Paths
from backends.state import (
    Ask,
    ClusterState,
    Device,
    EngineInfo,
    EngineSource,
    Peer,
    PeerFacts,
    Preview,
)
from tests.kit.waiting import until

# Whatever it is to do, this program ends at once.
ENGINE = EngineInfo(
    directory="/e",
    server_path="/bin/false",
    worker_path="/bin/false",
    source=EngineSource.CACHE,
    rpc_protocol="7.0.0",
)


class Bench:
    """The parts of a controller on this machine alone; what was asked of it counts."""

    def __init__(
        self, paths: Paths, host: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.asked = Counter[str]()
        self.free_bytes: int | None = None
        readers = Readers(paths, host)
        self.here = LocalMachine(host, readers, lambda _: paths.run_dir, list)
        self.peers: tuple[Peer, ...] = ()
        self.clusters = Clusters(readers, paths)
        self.preparations = Preparations(
            self.clusters, cast("Any", self), readers, self._no_models
        )
        memory, engine = host.memory, self.here.engine

        async def surveyed(*args: Any) -> list[Peer]:
            self.asked["survey"] += 1
            return await machines_now(*args)

        async def free() -> Device:
            found: Device = await memory()
            n_bytes = self.free_bytes
            return found if n_bytes is None else replace(found, free_bytes=n_bytes)

        def header(path: Path, *args: Any, **more: Any) -> Any:
            self.asked[path.name] += 1
            return read_header(path, *args, **more)

        async def counted(*args: Any) -> Engine:
            self.asked["engine"] += 1
            return await engine(*args)

        async def of_ours(wanted: str | None = None) -> Engine:
            return Engine(info=ENGINE, flags=frozenset())

        monkeypatch.setattr(preparation, "machines_now", surveyed)
        monkeypatch.setattr(host, "memory", free)
        monkeypatch.setattr(layers, "read_header", header)
        monkeypatch.setattr(self.here, "engine", counted)
        monkeypatch.setattr(readers, "engine", of_ours)

    async def _no_models(self) -> tuple[()]:
        return ()

    def get(self, name: str) -> LocalMachine:
        return self.here

    def all(self) -> list[LocalMachine]:
        return [self.here]

    def values(self) -> tuple[Peer, ...]:
        return self.peers

    async def reached(self, names: Iterable[str]) -> None:
        return

    async def prepared(self, model: Path = MODEL_PATH, **more: Any) -> Preview:
        ask = Ask(model=str(model), workers=2, **more)
        return await self.preparations.prepare(self.clusters.get(), ask)

    async def launched(self, token: str) -> None:
        cluster = self.clusters.get()
        plan, facts = await self.preparations.launchable(cluster, token)
        await cluster.want(plan, facts=facts)
        self.clusters.begin()
        await until(lambda: cluster.store.snapshot.state is ClusterState.FAILED)


@pytest.fixture
async def bench(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    async with local_host_for_now(paths.run_dir) as host:
        bench = Bench(paths, host, monkeypatch)
        await bench.clusters.start(cast("Any", bench))
        bench.asked.clear()
        yield bench
        await bench.clusters.leave()


async def test_of_one_launch_everything_is_asked_once(bench: Bench) -> None:
    preview = await bench.prepared()
    await bench.launched(preview.token)
    assert bench.asked == {"survey": 1, MODEL_PATH.name: 1, "engine": 1}


async def test_memory_is_looked_at_again(bench: Bench) -> None:
    preview = await bench.prepared()
    bench.free_bytes = 1 << 20
    with pytest.raises(PlanError, match="too small"):
        await bench.launched(preview.token)


async def test_a_changed_file_is_read_again(bench: Bench, tmp_path: Path) -> None:
    model = Path(shutil.copy(MODEL_PATH, tmp_path / "m.gguf"))
    preview = await bench.prepared(model)
    cluster = bench.clusters.get()
    os.utime(model, (1, 1))
    plan, _ = await bench.preparations.launchable(cluster, preview.token)
    assert plan == preview.plan
    assert bench.asked["m.gguf"] == 2
    preview = await bench.prepared(model)
    os.truncate(model, 4)
    with pytest.raises(ModelError):
        await bench.preparations.launchable(cluster, preview.token)


async def test_after_a_new_probe_of_a_peer_it_is_prepared_anew(bench: Bench) -> None:
    preview = await bench.prepared()
    here = Peer(name="local", devices=(await bench.here.host.memory(),))
    bench.peers = (replace(here, facts=PeerFacts(at=5.0)),)
    cluster = bench.clusters.get()
    plan, facts = await bench.preparations.launchable(cluster, preview.token)
    assert facts is not None
    assert plan == preview.plan
    assert bench.asked == {"survey": 2, MODEL_PATH.name: 1, "engine": 2}


async def test_a_token_is_good_once_for_its_cluster_and_for_a_minute(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, now = bench.clusters.get(), time.monotonic()
    token = (await bench.prepared()).token
    with pytest.raises(ControllerError, match="too long ago"):
        await bench.preparations.launchable(bench.clusters.get("other"), token)
    await bench.preparations.launchable(cluster, token)
    with pytest.raises(ControllerError, match="too long ago"):
        await bench.preparations.launchable(cluster, token)
    token = (await bench.prepared()).token
    monkeypatch.setattr(time, "monotonic", lambda: now + 2 * LASTS_S)
    with pytest.raises(ControllerError, match="too long ago"):
        await bench.preparations.launchable(cluster, token)
