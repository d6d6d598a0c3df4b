"""Find out the fate of a cluster after a time without a controller."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec.structs import replace

from backends.controller.breaker import DEATHS_MAX, GIVEN_UP, WINDOW_S
from backends.controller.evidence import failure_of
from backends.errors import ProcessFailed
from backends.gateway.target import GATEWAY
from backends.link.relay import is_relay, worker_relay_name
from backends.planning.blueprint import needed_names, own_workers, process_name
from backends.planning.commands import SERVER
from backends.state import Failure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backends.controller.breaker import Breaker
    from backends.controller.journal import Journal
    from backends.machines.machine import Machines
    from backends.state import Plan

LOADING = "{what}, {times} times before it served, with no controller there"
TUNNELS_LOST = (
    "The controller was replaced and its tunnels ended: llama-server was started again"
)


class UnwatchedDeaths:
    """Counts, over all controllers, how often a cluster had ended before its take-up.

    A start that takes the machine down with it must not be repeated at every boot.
    ``breaker`` counts the deaths that this controller sees itself.
    """

    def __init__(self, journal: Journal, breaker: Breaker) -> None:
        self._journal = journal
        self._breaker = breaker

    def add(self, failure: Failure) -> None:
        """Count one more; the breaker knows of those before it.

        Raises:
            ProcessFailed: it never served, and that was one too many.
        """
        record = self._journal.record
        # Before it served, what was never started is no death.
        if record.server or failure.argv:
            before = record.unwatched_deaths
            self._journal.change(unwatched_deaths=before + 1)
            self._breaker.had(failure.process, before)
            if not record.server and before + 1 >= DEATHS_MAX:
                what = LOADING.format(what=failure.what, times=DEATHS_MAX)
                raise ProcessFailed(replace(failure, what=what, hint=GIVEN_UP))

    @contextmanager
    def serving(self) -> Iterator[None]:
        """It serves while the block runs; if it does for long, all is forgotten."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(WINDOW_S, self._forget)
        try:
            yield
        finally:
            timer.cancel()

    def _forget(self) -> None:
        self._journal.change(unwatched_deaths=0)


def needs_tunnels(plan: Plan) -> bool:
    """Return true if bytes between head and workers go through our tunnels.

    llama-server and the relays of such a cluster do not outlive the controller.
    """
    return any(worker.peer != plan.head for worker in own_workers(plan))


async def ended_unwatched(
    cluster: str, plan: Plan, machines: Machines, at: float
) -> Failure | None:
    """The first process, in the order of blame, that is not alive any more.

    Those that ended because our tunnels did are not to blame. Nor is a relay beside a
    worker then: what hangs on it is started again in any case, and it with that.

    Raises:
        PeerUnreachable: a machine of the plan is not connected.
    """
    for name, machine_name in needed_names(plan).items():
        # A gateway is started again beside what serves.
        if name == GATEWAY or (needs_tunnels(plan) and _hangs_on_tunnels(name)):
            continue
        machine = machines.get(machine_name)
        record = await machine.host.record(process_name(cluster, name))
        if record is None and name.startswith(worker_relay_name("")):
            # None could stand there; or it is started anew, with what hangs on it.
            continue
        if record is None:
            what = f"{name} is gone with its process directory"
            return Failure(what=what, process=name, at=at)
        if not record.alive:
            return await failure_of(machine.host, record, at)
    return None


def _hangs_on_tunnels(name: str) -> bool:
    return name == SERVER or is_relay(name)
