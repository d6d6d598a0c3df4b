"""The processes of one cluster on every machine: found, ended, left over."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from backends.controller.context import ClusterContext
from backends.errors import MachineError, PeerUnreachable
from backends.link.relay import is_beside
from backends.machines.agent import AgentSession, ProcessRecord
from backends.machines.machine import Machine
from backends.planning.blueprint import (
    cluster_of,
    machines_of,
    needed_names,
    process_name,
    short_name,
    stop_order,
)
from backends.state import Leftover, Plan, ProcessRole, Step
from backends.tasks import gather_or_cancel

log = logging.getLogger(__name__)

GRACE_S = 5.0


class MachineProcess(NamedTuple):
    machine: str
    record: ProcessRecord


class ClusterProcesses:
    """Stops processes of one cluster.

    One that is out of reach is left over until its machine is back. The journal and
    the snapshot know what is left over.
    """

    def __init__(self, context: ClusterContext) -> None:
        self._context = context
        self._cluster = context.name
        self._machines = context.machines
        self._steps = context.steps

    def found(self) -> list[MachineProcess]:
        return [
            MachineProcess(machine.name, record)
            for machine in self._machines.all()
            if (agent := _agent_of(machine))
            for record in agent.seen
            if cluster_of(record.name) == self._cluster
        ]

    @property
    def server_runs(self) -> bool:
        servers = (r for _, r in self.found() if r.role is ProcessRole.SERVER)
        return any(record.alive for record in servers)

    async def stop_all(
        self, *, shown: bool = False, but: Collection[str] = ()
    ) -> list[Leftover]:
        """Stop everything of the cluster within reach, its lost processes too."""
        found = [one for one in self.found() if short_name(one.record.name) not in but]
        if shown:
            living = [one.record for one in found if one.record.alive]
            ordered = [record for stage in stop_order(living) for record in stage]
            names = [short_name(record.name) for record in ordered]
            self._steps.reset(*(Step(id=f"stop:{n}", title=f"Stop {n}") for n in names))
        left = await self.stop(found)
        for agent in filter(None, map(_agent_of, self._machines.all())):
            try:
                lost = {orphan.name for orphan in await agent.orphans()}
                ours = [name for name in lost if cluster_of(name) == self._cluster]
                await gather_or_cancel(agent.stop(name, GRACE_S) for name in ours)
            except PeerUnreachable:
                continue
        return left

    async def stop(self, found: Collection[MachineProcess]) -> list[Leftover]:
        """Stop these, who uses others first; all of a stage at once.

        Ended ones are stopped too: they may have left children. What could not be
        stopped is returned, and left over.
        """
        machine_of = {id(one.record): one.machine for one in found}
        left: list[Leftover] = []
        failed: list[MachineError] = []

        async def stopped(record: ProcessRecord) -> None:
            machine, name = machine_of[id(record)], short_name(record.name)
            try:
                with self._steps.step(f"stop:{name}" if record.alive else ""):
                    await self._machines.get(machine).agent.stop(record.name, GRACE_S)
            except PeerUnreachable as error:
                log.warning("%s on %s cannot be stopped now: %s", name, machine, error)
                left.append(Leftover(name=name, peer=machine, why=error.what))
            except MachineError as error:
                failed.append(error)

        for stage in stop_order(one.record for one in found):
            await gather_or_cancel(stopped(record) for record in stage)
        if failed:
            # Only after all others were asked to end.
            raise failed[0]
        self.remember(left)
        return left

    async def remove_ended(self, wanted: Collection[str]) -> None:
        for machine, record in self.found():
            if not record.alive and short_name(record.name) not in wanted:
                await self._machines.get(machine).agent.remove(record.name)

    async def settle(self, machine: Machine, plan: Plan | None) -> None:
        wanted = needed_names(plan) if plan else {}
        for record in await machine.agent.records():
            name = short_name(record.name)
            is_ours = cluster_of(record.name) == self._cluster and record.alive
            if is_ours and wanted.get(name) != machine.name:
                log.warning("stopping %s, left over on %s", name, machine.name)
                await machine.agent.stop(record.name, GRACE_S)
        self._keep(o for o in self._context.record.leftovers if o.peer != machine.name)

    def after(self, plan: Plan | None) -> tuple[Leftover, ...]:
        """Return the leftovers once ``plan`` replaces the present goal.

        Every process of the present goal on a machine out of reach becomes a leftover.
        """
        record = self._context.record
        before = needed_names(record.goal.plan) if record.goal.plan else {}
        wanted = needed_names(plan) if plan else {}
        gone = {n: m for n, m in before.items() if wanted.get(n) != m}
        known = {(one.peer, one.name): one for one in record.leftovers}
        known |= {(one.peer, one.name): one for one in self.away(gone)}
        return tuple(o for o in known.values() if wanted.get(o.name) != o.peer)

    def away(self, names: Mapping[str, str]) -> list[Leftover]:
        """Return the given processes that may run on a machine out of reach."""
        connected = {machine.name for machine in self._machines.all()}
        book = self._context.book
        return [
            Leftover(name=name, peer=machine, why=f"{machine} cannot be reached")
            for name, machine in names.items()
            if machine not in connected
            and book.may_run(machine, process_name(self._cluster, name))
            # A relay does not stand beside every worker: it counts only if seen.
            and (book.knows(machine) or not is_beside(name))
        ]

    def remember(self, left: Iterable[Leftover]) -> None:
        """Keep what could not be stopped, together with what was known of before."""
        known = {(one.peer, one.name): one for one in self._context.record.leftovers}
        known |= {(one.peer, one.name): one for one in left}
        self._keep(known.values())

    def _keep(self, leftovers: Iterable[Leftover]) -> None:
        # A machine that left the settings, or lets us in no more, is out of our hands.
        book = self._context.book
        known = tuple(
            one
            for one in leftovers
            if book.is_peer(one.peer) and not book.is_revoked(one.peer)
        )
        self._context.journal.change(leftovers=known)
        self._context.store.update(leftovers=known)

    def machines_missing(self) -> tuple[str, ...]:
        plan = self._context.record.goal.plan
        connected = {machine.name for machine in self._machines.all()}
        return tuple(n for n in machines_of(plan) if n not in connected) if plan else ()


def _agent_of(machine: Machine) -> AgentSession | None:
    # None while it is out of reach, or without our helper.
    try:
        return machine.agent
    except MachineError:
        return None
