"""One cluster of a controller over scripted machines, in real time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from backends.config import Config
from backends.controller.calibration_store import CalibrationStore
from backends.controller.cluster import Cluster
from backends.controller.context import ClusterContext
from backends.controller.event_log import EventFiles, EventLog
from backends.controller.event_recorders import EventRecorder
from backends.controller.gateway_process import ApiPorts
from backends.controller.journal import Journal, Record
from backends.controller.processes import ProcessBook
from backends.controller.snapshot_store import SnapshotStore
from backends.engine.ask import Engine
from backends.errors import ModelError
from backends.machines.local_inventory import LocalInventory
from backends.paths import Paths
from backends.speculation.auto import TrialBook
from backends.state import ClusterState, ModelInfo, Plan
from tests.kit.machines import Cast, engine_of
from tests.kit.waiting import PATIENCE_S
from tests.unit.planning import machines as planned


class ScriptedInventory(LocalInventory):
    """Reads real settings; models and engines are as a test says."""

    def __init__(self, paths: Paths, models: dict[str, ModelInfo]) -> None:
        super().__init__(paths, None)  # type: ignore[arg-type]
        self.scripted = models

    async def model(self, path: str) -> ModelInfo:
        if path not in self.scripted:
            raise ModelError(f"Cannot read the model {path} (No such file)")
        return self.scripted[path]

    async def engine(self, wanted: str | None = None) -> Engine:
        return engine_of("local")


def paths_in(folder: Path) -> Paths:
    return Paths(
        config_dir=folder / "config",
        data_dir=folder / "state",
        state_dir=folder / "state",
        cache_dir=folder / "cache",
        runtime_dir=folder / "run",
    )


def plan_on(*peers: str) -> Plan:
    known = [planned.peer(name, "CPU") for name in peers if name != "local"]
    here = planned.here("CPU")
    return planned.plan_for(here, *known, peers=tuple(peer.name for peer in known))


class Stage:
    """One cluster, of whose machines only ours can be reached; nothing runs yet."""

    def __init__(self, folder: Path, record: Record | None = None) -> None:
        self.folder = folder
        self.cast = Cast("ada", "bob")
        for name in ("ada", "bob"):
            self.cast.get(name).there = False
        paths = paths_in(folder)
        self.journal = Journal(folder / "default.json")
        if record is not None:
            self.journal.save(record)
        self.event_log = EventLog(EventFiles(folder / "events"))
        self.inventory = ScriptedInventory(paths, {planned.PATH: planned.MODEL})
        self.context = ClusterContext(
            name="default",
            machines=self.machines,
            inventory=self.inventory,
            store=SnapshotStore(Config),
            journal=self.journal,
            recorder=EventRecorder(self.event_log, "default"),
            book=ProcessBook(self.machines, lambda: None),
            api_ports=ApiPorts(),
            trials=TrialBook(paths.trials_file),
            calibrations=CalibrationStore(paths.speeds_file),
            gateway_socket=folder / "gateway.sock",
        )
        self.store = self.context.store
        self.cluster = Cluster(self.context)

    @property
    def machines(self) -> Any:
        return self.cast

    async def becomes(self, state: ClusterState) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.store.snapshot.state is not state:
                await self.store.change()


@asynccontextmanager
async def running(cluster: Cluster) -> AsyncIterator[None]:
    work = asyncio.create_task(cluster.reconciler.run())
    try:
        yield
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
