"""The usage of machines and processes: a sample a second, kept for some minutes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psutil
from msgspec.structs import replace

from backends.controller.processes import AGENT
from backends.errors import DllmError, MachineError
from backends.state import (
    ClusterSnapshot,
    ClusterState,
    Device,
    DeviceKind,
    GpuUsage,
    MachineHistory,
    MachineUsage,
    ProcessInfo,
    ProcessRole,
    ProcessState,
    UsageReport,
    UsageSample,
)
from backends.state.usage import HISTORY_S
from backends.units import MS_PER_S

if TYPE_CHECKING:
    from backends.controller.clusters import Clusters
    from backends.machines.machine import Machine, Machines

log = logging.getLogger(__name__)

SAMPLE_S = 1.0
ANSWER_S = 0.9
"""A machine that takes longer has no figures in this second."""
REFUSED_S = 10.0
"""A machine that refuses is asked again after so long."""
WEIGH_AGE_S = 2.0
"""Of what processes use, while somebody watches it."""
CONTROLLER = "controller"
DIGITS = 3


@dataclass
class _Known:
    """A machine's last figures and its samples; older ones fall out."""

    now: MachineUsage | None = None
    why: str = ""
    samples: deque[UsageSample] = field(
        default_factory=lambda: deque(maxlen=round(HISTORY_S / SAMPLE_S))
    )
    ask_at: float = 0.0
    """Monotonic seconds before which it is not asked again."""
    agent_pid: int = 0
    agent_cores: float | None = None


class UsageMonitor:
    """Samples while a plan is pursued or somebody watches; ``watchers`` counts those.

    So a console that comes back finds the minutes it missed.
    """

    def __init__(self, clusters: Clusters, machines: Machines) -> None:
        self._clusters = clusters
        self._machines = machines
        self._known: dict[str, _Known] = {}
        self._own = psutil.Process()
        self._own_cores: float | None = None
        self._sampled_at = 0.0
        self._sampled = asyncio.Event()
        self._begun = asyncio.Lock()
        self.watchers = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_S)
            if not self.watchers and not self._clusters.plans:
                continue
            try:
                async with self._begun:
                    await self._sample()
            except Exception:
                log.exception("what machines use is read again")

    async def report(self, cluster: str) -> UsageReport:
        """Everything that is known, not older than a second."""
        async with self._begun:
            if time.monotonic() - self._sampled_at >= SAMPLE_S:
                await self._sample()
        await self._clusters.book.weigh(WEIGH_AGE_S)
        return self._report(cluster)

    async def reports(self, cluster: str) -> AsyncGenerator[UsageReport, None]:
        """The same, then again with every sample, until nobody reads it."""
        self.watchers += 1
        try:
            yield await self.report(cluster)
            while True:
                await self._sampled.wait()
                yield self._report(cluster)
        finally:
            self.watchers -= 1

    async def _sample(self) -> None:
        machines = list(self._machines.all())
        await asyncio.gather(*map(self._read, machines))
        if self.watchers:
            await self._clusters.book.weigh(WEIGH_AGE_S)
        names = {one.name for one in machines}
        self._known = {n: one for n, one in self._known.items() if n in names}
        at, snapshots = int(time.time()), [c.store.snapshot for c in self._clusters]
        for name, known in self._known.items():
            last = known.samples[-1].at if known.samples else 0
            if at > last:
                known.samples.append(sample_of(name, at, known.now, snapshots))
        # The first call has no time to be the mean of.
        used = self._own.cpu_percent()
        self._own_cores = round(used / 100, 2) if self._sampled_at else None
        self._sampled_at = time.monotonic()
        sampled, self._sampled = self._sampled, asyncio.Event()
        sampled.set()

    async def _read(self, machine: Machine) -> None:
        known = self._known.setdefault(machine.name, _Known())
        if time.monotonic() < known.ask_at:
            return
        found, why = None, ""
        try:
            agent = machine.agent
            async with asyncio.timeout(ANSWER_S):
                now = await agent.usage()
        except TimeoutError:
            why = "it does not answer"
        except MachineError as error:
            why = error.what
            known.ask_at = time.monotonic() + REFUSED_S
        except DllmError as error:
            why = str(error)
        else:
            pid = known.agent_pid
            known.agent_pid = agent.pid
            known.agent_cores = None
            if pid == agent.pid and known.now is not None:
                known.agent_cores = _cores(known.now, now)
            devices = self._devices(machine.name)
            found = replace(now, gpus=with_devices(now.gpus, devices))
        known.now, known.why = found, why

    def _devices(self, machine: str) -> tuple[Device, ...]:
        peers = self._clusters.get().store.snapshot.peers
        return next((peer.devices for peer in peers if peer.name == machine), ())

    def _report(self, cluster: str) -> UsageReport:
        histories = (
            MachineHistory(
                machine=name,
                now=known.now,
                why=known.why,
                samples=tuple(known.samples),
            )
            for name, known in self._known.items()
        )
        return UsageReport(
            machines=tuple(histories),
            processes=(
                self._controller(),
                *self._clusters.book.of(cluster),
                *self._agents(),
            ),
        )

    def _controller(self) -> ProcessInfo:
        return ProcessInfo(
            name=CONTROLLER,
            role=ProcessRole.CONTROLLER,
            state=ProcessState.RUNNING,
            pid=self._own.pid,
            argv=tuple(self._own.cmdline()),
            started_at=self._own.create_time(),
            rss_bytes=self._own.memory_info().rss,
            cpu_cores=self._own_cores,
        )

    def _agents(self) -> Iterator[ProcessInfo]:
        silent = self._clusters.book.silent
        for name, known in self._known.items():
            if not known.agent_pid:
                continue
            hangs = (name, AGENT) in silent or known.now is None
            yield ProcessInfo(
                name=AGENT,
                role=ProcessRole.AGENT,
                peer=name,
                state=ProcessState.NOT_RESPONDING if hangs else ProcessState.RUNNING,
                pid=known.agent_pid,
                rss_bytes=known.now.agent_rss_bytes if known.now else None,
                cpu_cores=known.agent_cores,
            )


def sample_of(
    machine: str,
    at: int,
    now: MachineUsage | None,
    snapshots: Iterable[ClusterSnapshot],
) -> UsageSample:
    """One second of a machine, with what clusters do on it and over its links."""
    rates: list[float] = []
    speeds: list[float] = []
    for snapshot in snapshots:
        plan = snapshot.plan
        if plan is None or snapshot.state is not ClusterState.SERVING:
            continue
        if plan.head == machine:
            speeds.append(snapshot.speed.tok_per_s or 0.0)
        here = {worker.name for worker in plan.workers if worker.peer == machine}
        for link in snapshot.links:
            up, down = link.bytes_per_s_up, link.bytes_per_s_down
            if link.worker in here and up is not None and down is not None:
                rates.append(up + down)
    loads = [gpu.load_percent for gpu in now.gpus] if now else []
    return UsageSample(
        at=at,
        cpu=_rounded(now.cpu_share) if now else None,
        memory=_rounded(now.memory_share) if now else None,
        gpus=tuple(None if load is None else load / 100 for load in loads),
        link_bytes_per_s=float(round(sum(rates))) if rates else None,
        tok_per_s=_rounded(sum(speeds)) if speeds else None,
    )


def with_devices(
    gpus: Sequence[GpuUsage], devices: Iterable[Device]
) -> tuple[GpuUsage, ...]:
    """The GPUs with the engine's names for them, where no other can be meant.

    Drivers and engines count in different orders, and an engine tells no address. So
    one is named if it is the only one, or the only one of its kind.
    """
    known = [one for one in devices if one.kind is not DeviceKind.CPU]
    if len(gpus) == len(known) == 1:
        return (replace(gpus[0], device=known[0].name),)
    return tuple(_named(gpu, gpus, known) for gpu in gpus)


def _named(gpu: GpuUsage, gpus: Iterable[GpuUsage], known: list[Device]) -> GpuUsage:
    twins = [one for one in gpus if one.name == gpu.name]
    meant = [one for one in known if gpu.name and gpu.name in one.description]
    if len(twins) == len(meant) == 1:
        return replace(gpu, device=meant[0].name)
    return gpu


def _cores(before: MachineUsage, now: MachineUsage) -> float | None:
    if before.agent_cpu_ms is None or now.agent_cpu_ms is None:
        return None
    used_ms = now.agent_cpu_ms - before.agent_cpu_ms
    return round(max(used_ms, 0) / MS_PER_S / SAMPLE_S, 2)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)
