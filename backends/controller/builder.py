"""Making a cluster so: what of its blueprint is missing is started, stage by stage."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from msgspec.structs import replace

from backends.controller.context import ClusterContext
from backends.controller.exit_reasons import failure_of
from backends.controller.launch_facts import Discovery
from backends.controller.stopping import ClusterProcesses
from backends.errors import MachineError, NeverListened, ProcessFailed, about_worker
from backends.gateway.control_messages import GATEWAY
from backends.link.relay import worker_of, worker_relay_name
from backends.machine_names import LOCAL
from backends.machines.agent import AgentSession, ProcessRecord
from backends.machines.keep_awake import hold_awake
from backends.planning.blueprint import (
    SERVER,
    STAGES,
    Blueprint,
    Facts,
    Kept,
    Node,
    awake_names,
    compare,
    draw,
    process_name,
    short_name,
)
from backends.planning.relay_pairs import paired_workers
from backends.split.flags import used_workers
from backends.state import Failure, Plan, ProcessRole, Value
from backends.tasks import end_tasks, gather_or_cancel

LISTEN_POLL_S = 0.1
# Another program may take a free port between our look and the bind of it.
PORT_ATTEMPTS = 3


class Built(Value, frozen=True, kw_only=True):
    """A cluster whose processes all run; its model may still be loading."""

    blueprint: Blueprint
    facts: Facts
    incarnations: dict[str, str]
    """Of every process, by its short name."""
    api_port: int
    """The port of the API on this machine's loopback."""

    @property
    def server(self) -> str:
        """The incarnation of llama-server."""
        return self.incarnations[SERVER]


class PortTaken(MachineError):
    """Somebody else took a port that was free when we looked."""


class Builder:
    """Starts what a plan lacks, and stops the rest; cancellable at any time."""

    def __init__(
        self, context: ClusterContext, discovery: Discovery, processes: ClusterProcesses
    ) -> None:
        self._context = context
        self._machines = context.machines
        self._steps = context.steps
        self._discovery = discovery
        self._processes = processes
        self.again: set[str] = set()
        """Processes to be started again though they fit, by their short names."""

    async def build(self, plan: Plan) -> Built:
        """Keep what fits, stop what does not, start what is missing."""
        again, self.again = self.again, set()
        for attempt in range(PORT_ATTEMPTS):
            facts = await self._discovery.facts(plan)
            try:
                return await self._built(plan, facts, again)
            except PortTaken:
                if attempt + 1 == PORT_ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    async def _built(self, plan: Plan, facts: Facts, again: set[str]) -> Built:
        blueprint = draw(plan, facts)
        found = self._processes.found()
        records = {
            (machine, r.name): r
            for machine, r in found
            if short_name(r.name) not in again
        }
        kept = compare(blueprint, records, self._context.ways.incarnations)
        if any(node.short_name == SERVER for node in kept.missing):
            self._context.gateway.holds(plan, self._context.api.wait_s)
        fits = {node.spec.name for node in blueprint.nodes if node not in kept.missing}
        awake = awake_names(plan)
        kept_names = (GATEWAY, *awake)
        still = [name for name in kept_names if name == GATEWAY or name not in again]
        stays = {*fits, *(process_name(self._context.name, n) for n in still)}
        await self._processes.stop([o for o in found if o.record.name not in stays])
        names = {node.short_name for node in blueprint.nodes}
        await self._processes.remove_ended({*names, *kept_names})
        await gather_or_cancel(
            hold_awake(
                self._machines.get(machine).agent,
                process_name(self._context.name, name),
            )
            for name, machine in awake.items()
        )
        opening = asyncio.create_task(self._give_out(plan, anew=GATEWAY in again))
        try:
            incarnations = await self._stand(plan, facts, blueprint, kept)
            api_port = await opening
        finally:
            await end_tasks(opening)
        return Built(
            blueprint=blueprint,
            facts=facts,
            incarnations=incarnations,
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
            if role is ProcessRole.SERVER:
                sockets = partial(self._discovery.sockets, plan)
                await self._context.links.put_labs(sockets)
            there = await gather_or_cancel(
                self._standing(node, incarnations, kept.missing) for node in stage
            )
            incarnations |= {
                node.short_name: record.incarnation
                for node, record in zip(stage, there, strict=True)
            }
        return incarnations

    async def _give_out(self, plan: Plan, *, anew: bool) -> int:
        # The gateway stands before anything serves.
        port = await self._discovery.api_port(plan)
        self._context.gateway.access = self._context.api.access
        await self._context.gateway.stand(port, anew=anew)
        return port

    async def _standing(
        self, node: Node, incarnations: dict[str, str], missing: tuple[Node, ...]
    ) -> ProcessRecord:
        """One process of the blueprint, started unless it fits, and listening."""
        agent = self._machines.get(node.machine).agent
        is_workers = node.spec.role in (ProcessRole.WORKER, ProcessRole.WORKER_RELAY)
        worker = worker_of(node.short_name) if is_workers else ""
        with self._steps.step(node.short_name), about_worker(worker):
            if node in missing:
                await agent.remove(node.spec.name)
                record = await agent.start(node.specified(incarnations))
            else:
                there = await agent.record(node.spec.name)
                if there is None:
                    what = f"The process directory of {node.short_name} is gone"
                    raise ProcessFailed(Failure(what=what, process=node.short_name))
                record = there
            if node.short_name != SERVER:
                await self._listening(agent, record)
            here = node.machine == LOCAL
            where = "127.0.0.1:" if here else f"{node.machine}, port "
            self._steps.update(node.short_name, detail=f"{where}{node.spec.port}")
        return record

    async def _listening(self, agent: AgentSession, record: ProcessRecord) -> None:
        """Wait until that process listens.

        Raises:
            ProcessFailed: it ended.
            NeverListened: it does not listen in time.
            PortTaken: it ended because another program has its port.
        """
        port = record.port or 0
        deadline = time.time() + self._discovery.listen_s
        while not await agent.listens(record.pid, port):
            now = await agent.record(record.name)
            if now is None or not now.alive:
                if owner := await agent.port_owner(port):
                    raise PortTaken(f"Port {port} was taken by {owner}")
                raise ProcessFailed(await failure_of(agent, now or record))
            if time.time() > deadline:
                name = short_name(record.name)
                silent = replace(
                    await failure_of(agent, record),
                    what=f"{name} runs but does not listen on port {port}",
                    hint="Its log may say why; launch again to start it afresh.",
                    at=0.0,
                )
                raise NeverListened(silent)
            await asyncio.sleep(LISTEN_POLL_S)
