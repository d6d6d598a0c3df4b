"""Ending what runs, on every machine within reach, each process verified gone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from backends.controller.launch import processes_of
from backends.errors import DllmError, PeerUnreachable
from backends.state import ClusterState, ProcessRole, Speed, Step

if TYPE_CHECKING:
    from backends.controller.board import Board
    from backends.controller.machines import Machine, Machines
    from backends.controller.steps import StepBoard
    from backends.peers.host import ProcessRecord
    from backends.state import Plan

log = logging.getLogger(__name__)

GRACE_S = 5.0
REACH_S = 10.0


class Stopper:
    """Stops a cluster, or the part of it that has lost its connections."""

    def __init__(self, machines: Machines, board: Board, steps: StepBoard) -> None:
        """Show the steps of a stop there."""
        self._machines = machines
        self._board = board
        self._steps = steps

    async def stop_all(self) -> None:
        """Stop llama-server, then the workers, a step each.

        Ended ones are stopped too, without a word: they may have left children. What
        runs on a machine out of reach is stopped when it comes back (``settle``).

        Raises:
            HostError: something outlived SIGKILL.
        """
        known = await self._everything()
        living = [(m, record) for m, record in known if record.alive]
        living.sort(key=lambda pair: pair[1].role is ProcessRole.WORKER)
        self._steps.reset(
            *(Step(id=f"stop:{r.name}", title=f"Stop {r.name}") for _, r in living)
        )
        if living:
            self._board.update(state=ClusterState.STOPPING, api_url=None, speed=Speed())
        for machine, record in living:
            with self._steps.step(f"stop:{record.name}"):
                await self._stop(machine, record.name)
        for machine, record in known:
            if not record.alive:
                await self._stop(machine, record.name)
        await self._close_ways()
        await self._board.refresh(self._machines)

    async def end_all(self) -> None:
        """The same without showing it.

        Raises:
            HostError: something outlived SIGKILL.
        """
        for machine, record in await self._everything():
            await self._stop(machine, record.name)
        await self._close_ways()

    async def stop_head(self, plan: Plan) -> None:
        """Stop llama-server and the relays, and close the ways to the workers.

        Raises:
            HostError: something outlived SIGKILL.
            PeerUnreachable: the head is not connected.
        """
        head = self._machines.get(plan.head)
        for record in await head.look():
            if record.role in (ProcessRole.SERVER, ProcessRole.RELAY):
                await head.host.stop(record.name, GRACE_S)
        await self._close_ways()

    async def settle(self, machine: Machine, plan: Plan | None) -> None:
        """Stop what runs on a machine that came back and no plan wants any more.

        Raises:
            HostError: something outlived SIGKILL.
            PeerUnreachable: it is gone again.
        """
        placed = processes_of(plan) if plan else ()
        wanted = {p.name for p in placed if p.machine == machine.name}
        for record in await machine.look():
            if record.alive and record.name not in wanted:
                log.warning("stopping %s, left over on %s", record.name, machine.name)
                await machine.host.stop(record.name, GRACE_S)

    async def reach_again(self, plan: Plan | None) -> None:
        """Give machines that are just being reached the time to be stopped too."""
        names = {placed.machine for placed in processes_of(plan)} if plan else set()
        with contextlib.suppress(DllmError, TimeoutError):
            async with asyncio.timeout(REACH_S):
                await self._machines.reached(names)

    async def _everything(self) -> list[tuple[Machine, ProcessRecord]]:
        """Every process directory on every machine within reach."""
        found: list[tuple[Machine, ProcessRecord]] = []
        for machine in self._machines.all():
            with contextlib.suppress(PeerUnreachable):
                found += [(machine, record) for record in await machine.look()]
        return found

    async def _stop(self, machine: Machine, name: str) -> None:
        try:
            await machine.host.stop(name, GRACE_S)
            await machine.look()
        except PeerUnreachable as error:
            log.warning("%s on %s cannot be stopped now: %s", name, machine.name, error)

    async def _close_ways(self) -> None:
        for machine in self._machines.all():
            await machine.close_ways()
