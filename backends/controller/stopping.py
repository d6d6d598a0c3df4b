"""Ending the processes of one cluster, on every machine, each verified gone."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from backends.controller.together import together
from backends.errors import HostError, PeerUnreachable
from backends.planning.blueprint import cluster_of, short_name, stop_order
from backends.state import Leftover, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from backends.controller.steps import StepBoard
    from backends.machines.host import AgentHost, ProcessRecord
    from backends.machines.machine import Machine, Machines

log = logging.getLogger(__name__)

GRACE_S = 5.0


class MachineProcess(NamedTuple):
    """A process directory and the machine it is on."""

    machine: str
    record: ProcessRecord


class Stopper:
    """Stops processes of one cluster; what cannot be stopped now is handed back."""

    def __init__(self, cluster: str, machines: Machines, steps: StepBoard) -> None:
        self._cluster = cluster
        self._machines = machines
        self._steps = steps

    def found(self) -> list[MachineProcess]:
        """Every process directory of the cluster, as last reported."""
        return [
            MachineProcess(machine.name, record)
            for machine in self._machines.all()
            for record in self.on(machine)
        ]

    def on(self, machine: Machine) -> list[ProcessRecord]:
        """Return the processes of one machine; none while it is not connected."""
        host = _host_of(machine)
        seen = host.seen if host else ()
        return [record for record in seen if cluster_of(record.name) == self._cluster]

    async def stop_all(
        self, *, shown: bool = False, but: Collection[str] = ()
    ) -> list[Leftover]:
        """Stop everything of the cluster within reach, its lost processes too.

        ``but``: short names of what goes on.

        Raises:
            HostError: something outlived SIGKILL.
        """
        found = [one for one in self.found() if short_name(one.record.name) not in but]
        if shown:
            living = [one.record for one in found if one.record.alive]
            ordered = [record for stage in stop_order(living) for record in stage]
            names = [short_name(record.name) for record in ordered]
            self._steps.reset(*(Step(id=f"stop:{n}", title=f"Stop {n}") for n in names))
        left = await self.stop(found, shown=shown)
        await self._stop_orphans()
        return left

    async def stop(
        self, found: Collection[MachineProcess], *, shown: bool = False
    ) -> list[Leftover]:
        """Stop these, who uses others first; all of a stage at once.

        Ended ones are stopped too, without a word: they may have left children.

        Raises:
            HostError: something outlived SIGKILL.
        """
        machine_of = {id(one.record): one.machine for one in found}
        left: list[Leftover] = []
        failed: list[HostError] = []

        async def stopped(record: ProcessRecord) -> None:
            machine = machine_of[id(record)]
            try:
                one = await self._stop(machine, record, shown=shown)
            except HostError as error:
                failed.append(error)
            else:
                left.extend([one] if one else [])

        for stage in stop_order(one.record for one in found):
            await together(stopped(record) for record in stage)
        if failed:
            # Only after all others were asked to end.
            raise failed[0]
        return left

    async def _stop(
        self, machine: str, record: ProcessRecord, *, shown: bool
    ) -> Leftover | None:
        if not shown or not record.alive:
            return await self._ended(machine, record.name)
        with self._steps.step(f"stop:{short_name(record.name)}"):
            return await self._ended(machine, record.name)

    async def _ended(self, machine: str, name: str) -> Leftover | None:
        """End one process; what is known of it if its machine is out of reach."""
        try:
            await self._machines.get(machine).host.stop(name, GRACE_S)
        except PeerUnreachable as error:
            log.warning("%s on %s cannot be stopped now: %s", name, machine, error)
            return Leftover(name=short_name(name), peer=machine, why=error.what)
        return None

    async def _stop_orphans(self) -> None:
        """End processes whose directory is lost."""
        for host in filter(None, map(_host_of, self._machines.all())):
            try:
                lost = {orphan.name for orphan in await host.orphans()}
                ours = [name for name in lost if cluster_of(name) == self._cluster]
                await together(host.stop(name, GRACE_S) for name in ours)
            except PeerUnreachable:
                continue

    async def remove_ended(self, wanted: Collection[str]) -> None:
        """Forget ended processes of earlier runs; their logs go with them."""
        for machine, record in self.found():
            if not record.alive and short_name(record.name) not in wanted:
                await self._machines.get(machine).host.remove(record.name)

    async def settle(
        self, machine: Machine, wanted: Callable[[str], bool]
    ) -> Iterable[str]:
        """Stop what runs on a machine that came back and is not wanted any more.

        Returns the names of what was stopped.

        Raises:
            HostError: something outlived SIGKILL.
            PeerUnreachable: it is gone again.
        """
        stopped: list[str] = []
        for record in await machine.host.records():
            name = short_name(record.name)
            if cluster_of(record.name) != self._cluster or not record.alive:
                continue
            if not wanted(name):
                log.warning("stopping %s, left over on %s", name, machine.name)
                await machine.host.stop(record.name, GRACE_S)
                stopped.append(name)
        return stopped


def _host_of(machine: Machine) -> AgentHost | None:
    # None while it is out of reach, or without our helper.
    try:
        return machine.host
    except HostError:
        return None
