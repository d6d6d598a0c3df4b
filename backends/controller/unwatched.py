"""What became of a cluster while no controller watched it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.controller.evidence import failure_of
from backends.gateway.language import GATEWAY
from backends.link.relay import is_relay, worker_relay_name
from backends.planning.blueprint import (
    SERVER,
    needed_names,
    own_workers,
    process_name,
)
from backends.state import Failure

if TYPE_CHECKING:
    from backends.machines.machine import Machines
    from backends.state import Plan

TUNNELS_LOST = (
    "The controller was replaced and its tunnels ended: llama-server was started again"
)


def needs_tunnels(plan: Plan) -> bool:
    """Whether bytes between head and workers go through tunnels of ours.

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
