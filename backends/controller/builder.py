"""Making a cluster so: what of its blueprint is missing is started, stage by stage."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from backends.controller.evidence import failure_of
from backends.controller.together import together
from backends.controller.watch import Expected
from backends.errors import HostError, NeverListened, ProcessFailed, about_worker
from backends.gateway.target import GATEWAY
from backends.link.relay import relay_name, worker_of, worker_relay_name
from backends.places import LOCAL
from backends.planning.blueprint import (
    STAGES,
    Blueprint,
    Facts,
    compare,
    draw,
    short_name,
)
from backends.planning.commands import SERVER
from backends.planning.pairing import paired_workers
from backends.split.flags import used_workers
from backends.state import Failure, ProcessRole, Step, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from backends.controller.discovery import Discovery
    from backends.controller.gateway import Gateway
    from backends.controller.steps import StepBoard
    from backends.controller.stopping import Stopper
    from backends.controller.ways import Ways
    from backends.machines.host import AgentHost, ProcessRecord
    from backends.machines.machine import Machines
    from backends.planning.blueprint import Kept, Node
    from backends.state import Leftover, Plan

LISTEN_POLL_S = 0.1
# Another program may take a free port between our look and the bind of it.
PORT_ATTEMPTS = 3


class Built(Value, frozen=True, kw_only=True):
    """A cluster whose processes all run; its model may still be loading."""

    blueprint: Blueprint
    facts: Facts
    expected: tuple[Expected, ...]
    """Every process, in the order of blame."""
    server: str
    """Incarnation of llama-server."""
    api_port: int
    """The port of the API on this machine's loopback."""


class PortTaken(HostError):
    """Somebody else took a port that was free when we looked."""


def launch_steps(plan: Plan) -> tuple[Step, ...]:
    """The steps of a launch, all pending."""
    workers = used_workers(plan)
    return (
        Step(id="engine", title="Find the engine"),
        Step(id="model", title="Read the model"),
        *(
            Step(id=w.name, title=f"{'Reach' if w.endpoint else 'Start'} {w.name}")
            for w in workers
        ),
        *(
            Step(
                id=worker_relay_name(w.name), title=f"Start {worker_relay_name(w.name)}"
            )
            for w in paired_workers(plan)
        ),
        *(
            Step(id=relay_name(w.name), title=f"Start {relay_name(w.name)}")
            for w in workers
            if plan.relay
        ),
        Step(id=SERVER, title="Start llama-server"),
        Step(id="load", title="Load the model"),
        *(
            Step(id=f"load:{w.name}", title=f"Weights to {w.name}")
            for w in workers
            if plan.relay
        ),
        Step(id="verify", title="Compare with the plan"),
    )


class Builder:
    """Starts what a plan lacks, and stops the rest; cancellable at any time.

    It reports to ``left`` the processes that could not be stopped. ``clock`` gives Unix
    seconds.
    """

    def __init__(
        self,
        machines: Machines,
        discovery: Discovery,
        stopper: Stopper,
        ways: Ways,
        steps: StepBoard,
        gateway: Gateway,
        left: Callable[[Iterable[Leftover]], None],
        clock: Callable[[], float],
    ) -> None:
        self._left = left
        self._machines = machines
        self._discovery = discovery
        self._stopper = stopper
        self._ways = ways
        self._steps = steps
        self._gateway = gateway
        self._clock = clock

    async def build(self, plan: Plan) -> Built:
        """Keep what fits, stop what does not, start what is missing.

        Raises:
            DllmError: something cannot be had or started, or ended at once.
        """
        for attempt in range(PORT_ATTEMPTS):
            facts = await self._discovery.facts(plan)
            try:
                return await self._built(plan, facts)
            except PortTaken:
                if attempt + 1 == PORT_ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    async def _built(self, plan: Plan, facts: Facts) -> Built:
        blueprint = draw(plan, facts)
        found = self._stopper.found()
        records = {(machine, r.name): r for machine, r in found}
        kept = compare(blueprint, records, self._ways.incarnations)
        if any(node.short_name == SERVER for node in kept.missing):
            self._gateway.holds(plan, self._discovery.api.wait_s)
        fits = {node.spec.name for node in blueprint.nodes if node not in kept.missing}
        self._left(
            await self._stopper.stop(
                [
                    one
                    for one in found
                    if one.record.name not in fits
                    and one.record.role is not ProcessRole.GATEWAY
                ]
            )
        )
        names = {node.short_name for node in blueprint.nodes}
        await self._stopper.remove_ended({*names, GATEWAY})
        opening = asyncio.create_task(self._give_out(plan))
        try:
            incarnations = await self._stand(plan, facts, blueprint, kept)
            api_port = await opening
        finally:
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
        return Built(
            blueprint=blueprint,
            facts=facts,
            expected=tuple(
                Expected(
                    machine=node.machine,
                    name=node.spec.name,
                    incarnation=incarnations[node.short_name],
                )
                for node in blueprint.nodes
            ),
            server=incarnations[SERVER],
            api_port=api_port,
        )

    async def _stand(
        self, plan: Plan, facts: Facts, blueprint: Blueprint, kept: Kept
    ) -> dict[str, str]:
        """Incarnations of all processes, what is missing started stage by stage."""
        for worker in used_workers(plan):
            if worker.endpoint:
                self._steps.done(worker.name, detail=worker.endpoint)
        for worker in paired_workers(plan):
            pairing = facts.pairings[worker.name]
            if not pairing.paired:
                self._steps.done(worker_relay_name(worker.name), detail=pairing.why)
        incarnations = dict(kept.incarnations)
        for role in STAGES:
            stage = blueprint.stage(role)
            there = await together(
                self._standing(node, incarnations, kept.missing) for node in stage
            )
            incarnations |= {
                node.short_name: record.incarnation
                for node, record in zip(stage, there, strict=True)
            }
        return incarnations

    async def _give_out(self, plan: Plan) -> int:
        # The gateway stands before anything serves.
        port = await self._discovery.api_port(plan)
        self._gateway.access = self._discovery.api.access
        await self._gateway.stand(port)
        return port

    async def _standing(
        self, node: Node, incarnations: dict[str, str], missing: tuple[Node, ...]
    ) -> ProcessRecord:
        """One process of the blueprint, started unless it fits, and listening."""
        host = self._machines.get(node.machine).host
        with self._steps.step(node.short_name), about_worker(_worker_of(node)):
            if node in missing:
                await host.remove(node.spec.name)
                record = await host.start(node.specified(incarnations))
            else:
                record = await self._record(host, node)
            if node.short_name != SERVER:
                await self._listening(host, record)
            self._steps.update(node.short_name, detail=_where(node))
        return record

    async def _record(self, host: AgentHost, node: Node) -> ProcessRecord:
        record = await host.record(node.spec.name)
        if record is None:
            what = f"The process directory of {node.short_name} is gone"
            raise ProcessFailed(Failure(what=what, process=node.short_name))
        return record

    async def _listening(self, host: AgentHost, record: ProcessRecord) -> None:
        """Wait until that process listens.

        Raises:
            ProcessFailed: it ended.
            NeverListened: it does not listen in time.
            PortTaken: it ended because another program has its port.
        """
        port = record.port or 0
        deadline = self._clock() + self._discovery.listen_s
        while not await host.listens(record.pid, port):
            now = await host.record(record.name)
            if now is None or not now.alive:
                if owner := await host.port_owner(port):
                    raise PortTaken(f"Port {port} was taken by {owner}")
                failure = await failure_of(host, now or record, self._clock())
                raise ProcessFailed(failure)
            if self._clock() > deadline:
                raise NeverListened(await self._silent(host, record, port))
            await asyncio.sleep(LISTEN_POLL_S)

    async def _silent(
        self, host: AgentHost, record: ProcessRecord, port: int
    ) -> Failure:
        failure = await failure_of(host, record, self._clock())
        name = short_name(record.name)
        what = f"{name} runs but does not listen on port {port}"
        return Failure(
            what=what,
            hint="Its log may say why; launch again to start it afresh.",
            process=name,
            argv=failure.argv,
            log_tail=failure.log_tail,
        )


def _worker_of(node: Node) -> str:
    is_its = node.spec.role in (ProcessRole.WORKER, ProcessRole.WORKER_RELAY)
    return worker_of(node.short_name) if is_its else ""


def _where(node: Node) -> str:
    port = node.spec.port
    here = node.machine == LOCAL
    return f"127.0.0.1:{port}" if here else f"{node.machine}, port {port}"
