"""Seeing at once that something of a cluster ended, and what of it was to blame."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, NoReturn

from backends.controller.deaths import failure_of
from backends.errors import ProcessFailed
from backends.planning.blueprint import short_name
from backends.state import Failure, Value

if TYPE_CHECKING:
    from backends.controller.context import ClusterContext
    from backends.errors import DllmError
    from backends.machines.host import ProcessRecord
    from backends.machines.machine import Machine

# A dying worker takes llama-server with it; give both the time to be seen dead, so that
# the worker is blamed.
SETTLE_S = 0.4
GONE = "Something else on {machine} has deleted it; launch again to make it anew."


class Expected(Value, frozen=True, kw_only=True):
    """A process that is to run."""

    machine: str
    name: str
    incarnation: str


class Watch:
    """Looks after the processes and ways of one cluster, without polling.

    Machines report by themselves which process ended. ``expected`` is in the order of
    blame: workers before relays before llama-server, which dies of any of them.
    """

    def __init__(self, context: ClusterContext) -> None:
        self._context = context
        self._reported: DllmError | None = None
        self.expected: tuple[Expected, ...] = ()

    def report(self, error: DllmError) -> None:
        """Somebody else found what cannot go on like this."""
        self._reported = error
        self._context.news.set()

    def forget(self) -> None:
        """Drop what was reported: all of it is about to be built anew."""
        self._reported = None

    async def require(self) -> None:
        """See that all is there; who caused the end of others is blamed.

        Raises:
            ProcessFailed: a process ended; it carries the evidence.
            PeerUnreachable: the connection to a machine broke.
            DllmError: what was reported.
        """
        reported, self._reported = self._reported, None
        if reported is not None:
            raise reported
        if self._first_ended() is None:
            return
        await asyncio.sleep(SETTLE_S)
        ended = self._first_ended()
        if ended is None:
            return
        machine, name, record = ended
        if record is None:
            raise ProcessFailed(
                Failure(
                    what=f"The process directory of {short_name(name)} is gone",
                    hint=GONE.format(machine=machine.name),
                    process=short_name(name),
                    at=time.time(),
                )
            )
        raise ProcessFailed(await failure_of(machine.host, record))

    async def until_trouble(self) -> NoReturn:
        """Look whenever there is news; returns only by raising, as ``require`` does."""
        while True:
            self._context.news.clear()
            await self.require()
            await self._context.news.wait()

    def _first_ended(self) -> tuple[Machine, str, ProcessRecord | None] | None:
        """The first expected process that is not there, with what is known of it.

        Raises:
            PeerUnreachable: a machine of the cluster is not connected, or a way broke.
        """
        self._context.ways.require_open()
        for one in self.expected:
            machine = self._context.machines.get(one.machine)
            records = {record.name: record for record in machine.host.seen}
            record = records.get(one.name)
            same = record is not None and record.incarnation == one.incarnation
            if record is None or not same or not record.alive:
                return machine, one.name, record
        return None
