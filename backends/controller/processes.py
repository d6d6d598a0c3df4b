"""Every process of ours on every machine, as last reported, and its usage."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from backends.errors import DllmError, MachineError
from backends.machines.agent import AgentSession, ProcessRecord
from backends.machines.machine import Machine, Machines
from backends.planning.blueprint import cluster_of, short_name
from backends.state import ProcessInfo, ProcessState
from backends.units import MS_PER_S

AGENT = "agent"
LISTEN_S = 1.0
"""An agent that does not answer within so long does not respond."""
WEIGH_S = 0.5
"""Longest wait for a machine to tell what is used; its last figures stand then."""
RSS_STEP_BYTES = 1 << 20
MEAN_MIN_S = 1.0
"""Over less than this the clock's ticks are too coarse for a mean."""
CORES_DIGITS = 2


@dataclass(frozen=True)
class Usage:
    """The newest figures of one process, and the reading they count from."""

    rss_bytes: int | None
    cpu_cores: float | None
    """None before there are two readings."""
    cpu_ms: int | None
    read_at: float
    """Monotonic seconds at which ``cpu_ms`` was read."""


def usage_of(record: ProcessRecord, at: float, before: Usage | None) -> Usage:
    """Return the usage in a record that was read at ``at`` (monotonic seconds).

    Memory is in whole MiB and time in hundredths of a core: smaller changes are no
    news.
    """
    rss_bytes = (record.rss_bytes or 0) // RSS_STEP_BYTES * RSS_STEP_BYTES or None
    if record.cpu_ms is None:
        return Usage(rss_bytes, None, None, at)
    if before is None or before.cpu_ms is None:
        return Usage(rss_bytes, None, record.cpu_ms, at)
    passed_s = at - before.read_at
    if passed_s < MEAN_MIN_S:
        return Usage(rss_bytes, before.cpu_cores, before.cpu_ms, before.read_at)
    used_s = max(record.cpu_ms - before.cpu_ms, 0) / MS_PER_S
    cores = round(used_s / passed_s, CORES_DIGITS)
    return Usage(rss_bytes, cores, record.cpu_ms, at)


class ProcessBook:
    """Keeps the reports of machines; the last report of an absent machine stays.

    ``changed`` is called when a process came, ended or moved.
    """

    def __init__(self, machines: Machines, changed: Callable[[], None]) -> None:
        self._machines = machines
        self._changed = changed
        self._known: dict[str, tuple[ProcessRecord, ...]] = {}
        self._away: set[str] = set()
        self._usage: dict[tuple[str, str], Usage] = {}
        self._heard: dict[str, tuple[AgentSession, Callable[[], None]]] = {}
        """The agent of each machine that tells us, and what ends that."""
        self._settled: dict[str, int] = {}
        """By cluster, the generation that restarts are counted from."""
        self._restarts: dict[tuple[str, str], tuple[str, int]] = {}
        """The last incarnation of a process, and how many went before it."""
        self._weighed_at = 0.0
        self.silent: frozenset[tuple[str, str]] = frozenset()
        """Machine and name of each process, or agent, that does not respond."""

    def take(self) -> None:
        """Read the last report of all machines, and subscribe to new ones."""
        connected: set[str] = set()
        for machine in self._machines.all():
            try:
                agent = machine.agent
            except MachineError:
                continue
            self._known[machine.name] = agent.seen
            self._listen(machine.name, agent)
            connected.add(machine.name)
        gone = {n for n in self._known if not self.is_peer(n) or self.is_revoked(n)}
        self._known = {n: r for n, r in self._known.items() if n not in gone}
        self._away = set(self._known) - connected
        for name in set(self._heard) - connected:
            self._heard.pop(name)[1]()
        self._count_restarts()

    def settle(self, cluster: str, generation: int) -> None:
        """Count restarts from here on, if another goal of the cluster serves now."""
        if self._settled.get(cluster) == generation:
            return
        self._settled[cluster] = generation
        others = self._restarts.items()
        self._restarts = {k: v for k, v in others if cluster_of(k[1]) != cluster}
        for machine, record in self._records():
            if cluster_of(record.name) == cluster:
                self._restarts[machine, record.name] = record.incarnation, 0

    def _count_restarts(self) -> None:
        for machine, record in self._records():
            last, count = self._restarts.get((machine, record.name), ("", 0))
            if last and record.alive and record.incarnation != last:
                counted = record.incarnation, count + 1
                self._restarts[machine, record.name] = counted

    def _records(self) -> Iterator[tuple[str, ProcessRecord]]:
        for machine, records in self._known.items():
            for record in records:
                yield machine, record

    def is_peer(self, machine: str) -> bool:
        """Return true if a machine is ours or in the settings."""
        try:
            self._machines.get(machine)
        except MachineError:
            return False
        return True

    def is_revoked(self, machine: str) -> bool:
        """Return true if a machine lets us in no more: what ran there has ended."""
        return any(
            one.name == machine and one.revoked for one in self._machines.values()
        )

    def _listen(self, machine: str, agent: AgentSession) -> None:
        before, end = self._heard.get(machine, (None, None))
        if before is not agent:
            if end is not None:
                end()
            self._heard[machine] = agent, agent.subscribe(self._changed)

    def clusters(self) -> set[str]:
        return {
            cluster_of(record.name)
            for records in self._known.values()
            for record in records
            if record.alive
        }

    def of(self, cluster: str) -> tuple[ProcessInfo, ...]:
        return tuple(
            self._shown(machine, record)
            for machine, record in self._records()
            if cluster_of(record.name) == cluster
        )

    def knows(self, machine: str) -> bool:
        return machine in self._known

    def may_run(self, machine: str, name: str) -> bool:
        """Return true if a process may run on a machine, by all reports."""
        records = self._known.get(machine)
        if records is None:
            return not self.is_revoked(machine)
        return any(record.name == name and record.alive for record in records)

    def _shown(self, machine: str, record: ProcessRecord) -> ProcessInfo:
        state = record.state
        if record.alive and machine in self._away:
            state = ProcessState.UNKNOWN
        elif record.alive and (machine, record.name) in self.silent:
            state = ProcessState.NOT_RESPONDING
        usage = self._usage.get((machine, record.incarnation))
        return msgspec.structs.replace(
            msgspec.convert(record, ProcessInfo, from_attributes=True),
            name=short_name(record.name),
            peer=machine,
            state=state,
            rss_bytes=usage.rss_bytes if usage else None,
            cpu_cores=usage.cpu_cores if usage else None,
            restarts=self._restarts.get((machine, record.name), ("", 0))[1],
        )

    async def listen(self, hung: Iterable[tuple[str, str]] = ()) -> None:
        """Find out which processes respond; cheap enough for every second."""
        machines = list(self._machines.all())
        found = await asyncio.gather(*map(self._silent_on, machines))
        silent = frozenset(hung).union(*found)
        if silent != self.silent:
            self.silent = silent
            self._changed()

    async def _silent_on(self, machine: Machine) -> set[tuple[str, str]]:
        try:
            async with asyncio.timeout(LISTEN_S):
                records = await machine.agent.records()
        except TimeoutError:
            # Nothing is known of the others then.
            before = {one for one in self.silent if one[0] == machine.name}
            return before | {(machine.name, AGENT)}
        except DllmError:
            return set()
        silent = ProcessState.NOT_RESPONDING
        return {(machine.name, r.name) for r in records if r.state is silent}

    async def weigh(self, max_age_s: float = 0.0) -> None:
        """Ask all machines what their processes use of them, if that is old."""
        now = time.monotonic()
        # A process within reach that has come since is not weighed yet.
        has_new = any(
            record.alive and (machine, record.incarnation) not in self._usage
            for machine, records in self._known.items()
            if machine not in self._away
            for record in records
        )
        if now - self._weighed_at < max_age_s and not has_new:
            return
        self._weighed_at = now
        machines = list(self._machines.all())
        await asyncio.gather(*(self._weigh(machine) for machine in machines))
        self._changed()

    async def _weigh(self, machine: Machine) -> None:
        try:
            async with asyncio.timeout(WEIGH_S):
                records = await machine.agent.records()
        except (DllmError, TimeoutError):
            return
        at = time.monotonic()
        before = self._usage
        self._usage = {k: v for k, v in before.items() if k[0] != machine.name}
        for record in records:
            if record.alive:
                key = machine.name, record.incarnation
                self._usage[key] = usage_of(record, at, before.get(key))
