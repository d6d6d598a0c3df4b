"""From a llama-server that runs to one that serves, and whether it is as planned."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from backends.controller.arrival import Arrival, overall
from backends.engine.logs import LoadLog
from backends.engine.server import Health, ServerClient
from backends.machines.host import pid_of
from backends.places import LOCAL
from backends.planning.blueprint import process_name
from backends.planning.commands import SERVER
from backends.split.flags import is_relayed
from backends.split.layout import format_ranges
from backends.split.measured import (
    ServerLog,
    format_in_part,
    held_split,
    measured_split,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from backends.controller.arrival import Arrived
    from backends.controller.builder import Built
    from backends.controller.steps import StepBoard
    from backends.controller.watch import Watch
    from backends.machines.host import AgentHost
    from backends.machines.machine import Machines
    from backends.state import MeasuredSplit, Plan
    from backends.state.links import WorkerWeights

POLL_S = 0.1
# Every look at another machine's log is a round trip.
POLL_REMOTE_S = 0.5
READ_BYTES = 1 << 20


class Loading:
    """Waits for one load, and compares the result with the plan.

    ``carried`` gives the bytes of weights that each worker got, and ``home`` the part
    from its own disk. ``weights`` asks the relays for the weights that their workers
    hold.
    """

    def __init__(
        self,
        cluster: str,
        machines: Machines,
        steps: StepBoard,
        watch: Watch,
        carried: Callable[[], Mapping[str, int]],
        home: Callable[[], Mapping[str, int]],
        weights: Callable[[], Awaitable[Mapping[str, WorkerWeights | None]]],
    ) -> None:
        self._weights = weights
        self._log_name = process_name(cluster, SERVER)
        self._machines = machines
        self._steps = steps
        self._watch = watch
        self._carried = carried
        self._home = home

    async def loaded(
        self, plan: Plan, built: Built, api_port: int, known: MeasuredSplit | None
    ) -> MeasuredSplit:
        """Wait, without limit, until llama-server is healthy or somebody dies.

        ``known`` is the measurement of a llama-server that was measured before.

        Raises:
            ProcessFailed: a process of the cluster ended.
            PeerUnreachable: a machine of it is gone.
        """
        host = self._machines.get(plan.head).host
        watch = LoadWatch(host, self._log_name)
        with self._steps.step("load"):
            await self._healthy(plan, built, api_port, watch)
        with self._steps.step("verify"):
            measured = known or await self._measured(plan, built, watch)
            self._steps.update("verify", detail=_verdict(measured, plan))
        return measured

    async def _healthy(
        self, plan: Plan, built: Built, api_port: int, watch: LoadWatch
    ) -> None:
        arrival = Arrival(plan, built.facts.model, self._carried, self._home)
        pause_s = POLL_S if plan.head == LOCAL else POLL_REMOTE_S
        async with ServerClient(api_port) as client:
            while True:
                await self._watch.require()
                await watch.read()
                self._tell(watch.log.phase, arrival.measure())
                if await client.health() is Health.OK and await self._is_ours(built):
                    break
                await asyncio.sleep(pause_s)
        for worker, one in arrival.measure().items():
            text = one.text if one.arrived_bytes else ""
            self._steps.done_since(f"load:{worker}", text)

    async def _is_ours(self, built: Built) -> bool:
        # Another server may answer at the port of ours.
        server = built.blueprint.nodes[-1]
        host = self._machines.get(server.machine).host
        return await host.listens(pid_of(built.server), server.spec.port or 0)

    def _tell(self, phase: str, arrived: Mapping[str, Arrived]) -> None:
        """Show how far the load is, of all workers and of each."""
        whole = overall(arrived)
        text = whole.text if whole.arrived_bytes else ""
        self._steps.update(
            "load",
            detail=" · ".join(filter(None, (phase, text))),
            progress=whole.fraction if whole.arrived_bytes else None,
        )
        for worker, one in arrived.items():
            if one.arrived_bytes:
                self._steps.go_on(f"load:{worker}", one.text, one.fraction)

    async def _measured(
        self, plan: Plan, built: Built, watch: LoadWatch
    ) -> MeasuredSplit:
        await watch.read_all()
        log, placement = watch.log, built.blueprint.placement
        if is_relayed(plan):
            weights = await self._weights()
            said = ServerLog(log.buffers, log.offloaded)
            return held_split(plan, placement, built.facts.model, weights, said)
        return measured_split(
            plan, placement, log.layer_devices, log.device_endpoints, log.buffers
        )


class LoadWatch:
    """Follows a log from its beginning and knows how far the load is."""

    def __init__(self, host: AgentHost, name: str) -> None:
        self._host = host
        self._name = name
        self._offset = 0
        self.log = LoadLog()
        """The progress so far."""

    async def read(self) -> bool:
        """Take in the next part of the log; False when there is nothing new."""
        chunk = await self._host.read_log(self._name, self._offset, READ_BYTES)
        self._offset = chunk.next_offset
        self.log.feed(chunk.text)
        return bool(chunk.text)

    async def read_all(self) -> None:
        """Take in all that is there now."""
        while await self.read():
            pass


def _verdict(measured: MeasuredSplit, plan: Plan) -> str:
    if measured.mismatches:
        return measured.mismatches[0]
    n_layer = plan.split.n_layer
    parts = format_in_part(measured.in_part, n_layer)
    return " · ".join(filter(None, (format_ranges(measured.layers, n_layer), parts)))
