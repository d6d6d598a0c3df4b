"""All clusters of one controller, by name; each pursues its own goal."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from backends.controller.calibration_store import CalibrationStore
from backends.controller.cluster import Cluster
from backends.controller.context import ClusterContext
from backends.controller.event_log import CONTROLLER, EventFiles, EventLog
from backends.controller.event_recorders import EventRecorder, PeerRecorder
from backends.controller.gateway_process import ApiPorts
from backends.controller.journal import Journal
from backends.controller.memory_usage import PlannedMemory, held_by, memory_of
from backends.controller.processes import AGENT, ProcessBook
from backends.controller.snapshot_store import SnapshotStore
from backends.errors import DllmError, UsageError
from backends.gateway.control_messages import GATEWAY
from backends.machine_names import LOCAL
from backends.machines.local_inventory import LocalInventory
from backends.machines.machine import Machine, Machines
from backends.paths import Paths
from backends.planning.blueprint import (
    cluster_of,
    machines_of,
    process_name,
    short_name,
)
from backends.planning.memory_fit import ClusterMemory
from backends.speculation.auto import TrialBook
from backends.state import (
    CLUSTER_NAME,
    DEFAULT_CLUSTER,
    Actor,
    ClusterBrief,
    ClusterState,
    EngineInfo,
    EventKind,
    EventTone,
    Peer,
    Plan,
)
from backends.tasks import end_tasks

log = logging.getLogger(__name__)


class Clusters:
    """Makes clusters when they are first named, and runs them."""

    def __init__(self, inventory: LocalInventory, paths: Paths) -> None:
        self._inventory = inventory
        self._paths = paths
        self._machines: Machines
        self._clusters: dict[str, Cluster] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._peers: tuple[Peer, ...] = ()
        self._begun = asyncio.Event()
        self._api_ports = ApiPorts()
        self._engine: EngineInfo | None = None
        self.book: ProcessBook
        self._settings_error = ""
        self.trials = TrialBook(paths.trials_file)
        self.calibrations = CalibrationStore(paths.speeds_file)
        self.memory = PlannedMemory(inventory, paths)
        self.event_log = EventLog(EventFiles(paths.events_dir), self._happened)
        self._peer_recorder = PeerRecorder(self.event_log)

    async def start(self, machines: Machines) -> None:
        """Take up what earlier controllers pursued.

        A process of ours whose cluster has no journal is wanted by no goal: it ends.
        """
        self._machines = machines
        self.book = ProcessBook(machines, self.look_at_processes)
        await machines.get(LOCAL).agent.records()
        self.book.take()
        folder = self._paths.clusters_dir
        journals = {file.stem for file in folder.glob("*.json")}
        for name in sorted(journals | self.book.clusters() | {DEFAULT_CLUSTER}):
            if CLUSTER_NAME.fullmatch(name):
                self.get(name)
        await self.look_at_memory()

    def __iter__(self) -> Iterator[Cluster]:
        names = sorted(self._clusters, key=lambda name: (name != DEFAULT_CLUSTER, name))
        return (self._clusters[name] for name in names)

    def get(self, name: str = DEFAULT_CLUSTER) -> Cluster:
        if name not in self._clusters:
            if not CLUSTER_NAME.fullmatch(name):
                raise UsageError(
                    f"{name!r} cannot be the name of a cluster",
                    "Use up to 32 letters, digits, dashes and underscores.",
                )
            self._make(name)
        return self._clusters[name]

    def _make(self, name: str) -> None:
        store = SnapshotStore(self._inventory.settings, cluster=name, told=self._told)
        context = ClusterContext(
            name=name,
            machines=self._machines,
            inventory=self._inventory,
            store=store,
            journal=Journal(self._paths.journal(name)),
            recorder=EventRecorder(self.event_log, name),
            book=self.book,
            api_ports=self._api_ports,
            trials=self.trials,
            calibrations=self.calibrations,
            gateway_socket=self._paths.gateway_socket(name),
        )
        cluster = Cluster(context)
        self._clusters[name] = cluster
        store.show_peers(self._peers)
        store.update(
            processes=self.book.of(name),
            engine=self._engine,
            last_event=self.event_log.newest,
        )
        self._tasks[name] = asyncio.create_task(self._run(cluster))
        self._told()

    async def _run(self, cluster: Cluster) -> None:
        await self._begun.wait()
        try:
            await cluster.go_back()
        except DllmError as error:
            log.error("%s", error)
        await cluster.reconciler.run()

    def begin(self, unknown: DllmError | None = None) -> None:
        """Pursue every goal from here on.

        ``unknown`` is why other machines are not known: clusters with them are left
        alone.
        """
        for cluster in self:
            plan = cluster.pursued
            if unknown and plan and set(machines_of(plan)) != {LOCAL}:
                cluster.reconciler.leave_alone(unknown)
        self._begun.set()

    async def leave(self) -> None:
        await end_tasks(*self._tasks.values())
        self.event_log.close()

    def close(self) -> None:
        for cluster in self:
            cluster.store.close()

    async def stop_all(self, by: Actor = CONTROLLER) -> None:
        """End every goal, and wait until that is done as far as it can be."""
        goals = [(cluster, await cluster.want(None, by=by)) for cluster in self]
        await asyncio.gather(*(c.store.reached(goal.generation) for c, goal in goals))

    @property
    def busy(self) -> bool:
        return any(cluster.busy for cluster in self)

    @property
    def plans(self) -> list[Plan]:
        return [c.pursued for c in self if c.pursued is not None]

    def serves(self, machine: str) -> bool:
        """Return true if a machine (or bare peer) works for any cluster now."""
        return any(
            plan.head == machine or any(w.peer == machine for w in plan.workers)
            for plan in self.plans
        )

    async def settle(self, machine: Machine) -> None:
        """End what nobody wants on a machine that has just been reached (again)."""
        self.look_at_processes()
        for name in self.book.clusters():
            if CLUSTER_NAME.fullmatch(name):
                self.get(name)
        for cluster in self:
            await cluster.reconciler.settle(machine)

    def show_peers(self, peers: tuple[Peer, ...]) -> None:
        self._peers = peers
        self._peer_recorder.look(peers)
        for cluster in self:
            cluster.store.show_peers(peers)
        self.look_at_processes()

    async def look_at_memory(self) -> None:
        """Read the memory of this machine and of all at work anew."""
        here = self._machines.get(LOCAL)
        try:
            memory = await here.agent.memory()
        except DllmError as error:
            log.warning("%s", error)
            return
        known = [machine for machine in self._machines.all() if machine is not here]
        there = await memory_of(m for m in known if self.serves(m.name))
        for cluster in self:
            others = await self.held_by_others(cluster)
            cluster.store.show_memory(memory, there, others)

    async def held_by_others(self, cluster: Cluster) -> list[ClusterMemory]:
        others = [other for other in self if other is not cluster]
        held = [
            await held_by(other.pursued, other.store.snapshot, self._inventory)
            for other in others
        ]
        return [each for each in held if each is not None]

    async def look_for_engine(self) -> None:
        """Show the engine that a launch would use, or what is missing."""
        store = self.get().store
        try:
            engine = await self._inventory.engine()
        except DllmError as error:
            if store.snapshot.engine is None and not store.snapshot.message:
                store.update(message=str(error), no_engine=True)
        except Exception:
            log.exception("no engine was looked for")
        else:
            self.show_engine(engine.info)

    def show_engine(self, engine: EngineInfo) -> None:
        self._engine = engine
        for cluster in self:
            if cluster.store.snapshot.no_engine:
                cluster.store.update(message="", no_engine=False)
            if cluster.store.snapshot.engine is None:
                cluster.store.update(engine=engine)

    async def look_for_silent(self) -> None:
        """See which processes respond while anything runs, and tell what changed."""
        before = self.book.silent
        if not self.plans and not before:
            return
        hung = {
            (LOCAL, process_name(cluster.name, GATEWAY))
            for cluster in self
            if cluster.gateway.is_silent
        }
        await self.book.listen(hung)
        now = self.book.silent
        for machine, name in sorted(now ^ before):
            where = "" if machine == LOCAL else f" on {machine}"
            how, tone = "responds again", EventTone.INFORMATION
            if (machine, name) in now:
                how, tone = "does not respond: something holds it", EventTone.WARNING
            self.event_log.tell(
                EventKind.WAITING,
                f"{short_name(name)}{where} {how}",
                tone=tone,
                cluster="" if name == AGENT else cluster_of(name),
                peer="" if machine == LOCAL else machine,
            )

    def show_settings_error(self, error: DllmError | None) -> None:
        """Show why the settings are not those of the file, or that they are again."""
        before, text = self._settings_error, str(error or "")
        self._settings_error = text
        for cluster in self:
            if text or cluster.store.snapshot.message == before:
                cluster.store.update(message=text)

    def look_at_processes(self) -> None:
        self.book.take()
        for cluster in self:
            cluster.store.update(processes=self.book.of(cluster.name))
            cluster.reconciler.look()

    def _happened(self, number: int) -> None:
        for cluster in self:
            cluster.store.update(last_event=number)

    def _told(self) -> None:
        briefs = tuple(
            ClusterBrief(
                name=snapshot.cluster,
                state=snapshot.state,
                model=snapshot.plan.model if snapshot.plan else "",
                api_url=snapshot.api_url,
                generation=snapshot.generation,
            )
            for snapshot in (cluster.store.snapshot for cluster in self)
            if snapshot.state is not ClusterState.IDLE
            or snapshot.cluster == DEFAULT_CLUSTER
        )
        for cluster in self:
            if cluster.store.snapshot.clusters != briefs:
                cluster.store.update(clusters=briefs)
