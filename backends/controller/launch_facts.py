"""The facts a blueprint is drawn from: engines, model, draft, pairs, ports, ways.

A preparation finds those of ``site_of`` before a launch, the builder before each later
start.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from backends.config import API_PORT_DEFAULT
from backends.controller.context import ClusterContext
from backends.controller.links import End
from backends.controller.steps import Steps
from backends.controller.stopping import ClusterProcesses
from backends.direct_address import DirectAddress, wanted_place
from backends.engine.ask import Engine
from backends.engine.versions import require_same_protocol
from backends.errors import (
    DllmError,
    MachineError,
    ModelError,
    PeerUnreachable,
    PlanError,
    about_worker,
)
from backends.gateway.control_messages import GATEWAY
from backends.gateway.listen_settings import (
    ApiSettings,
    api_settings,
    require_address,
    require_safe,
)
from backends.link.relay import direct_in, models_in, worker_relay_name
from backends.link.transport import (
    LinkTransport,
    TransportSpec,
    direct_transport,
    path_of,
    port_of,
)
from backends.machine_names import LOCAL
from backends.machines.agent import ProcessRecord
from backends.machines.bare import connects, numeric_address
from backends.machines.local_inventory import LocalInventory
from backends.machines.machine import Machine, Machines, open_way
from backends.models.header import read_header
from backends.models.parts import part_paths
from backends.models.sparse import has_holes
from backends.planning.blueprint import (
    Facts,
    awake_names,
    machines_of,
    needed_names,
    own_workers,
    process_name,
)
from backends.planning.checking import check_holes, check_stand_ins
from backends.planning.relay_pairs import PairEnd, Pairing, alone_by_plan, pairing_of
from backends.printable import printable
from backends.server_settings import weight_files
from backends.split.flags import used_workers
from backends.state import ModelInfo, Plan, WorkerSpec
from backends.tasks import gather_or_cancel

OTHER_DRAFT = "Take another draft (dllm-tui models drafts), or none (--draft none)."


async def site_of(
    cluster: str,
    plan: Plan,
    machines: Machines,
    inventory: LocalInventory,
    steps: Steps,
    running: Callable[[WorkerSpec], Sequence[str]] = lambda _: (),
) -> Facts:
    """The facts of a plan, without ports, ways and keys; reports two steps."""
    head = machines.get(plan.head)
    with steps.step("engine"):
        engines = await engines_of(plan, machines)
    with steps.step("model"):
        model = await inventory.model(plan.model)
        if model.n_layer != plan.split.n_layer:
            raise PlanError(
                f"The plan is for {plan.split.n_layer} layers, "
                f"{plan.model} has {model.n_layer}",
                "Pick the model again to get a plan for it.",
            )
        model_path = await head.model_path(model)
        await check_whole(plan)
        draft = await draft_path(plan, machines, inventory)
    workers = used_workers(plan) if plan.relay else ()
    return Facts(
        cluster=cluster,
        engines=engines,
        model=model,
        model_path=model_path,
        sparse=model.sparse is not None,
        draft_path=draft,
        relay=head.relay_program() if workers else "",
        stats={w.name: head.relay_stats(relay_key(cluster, w.name)) for w in workers},
        pairings=await _pairings(plan, model, machines, running),
    )


def relay_key(cluster: str, worker: str) -> str:
    return f"{cluster}.{worker}"


async def engines_of(plan: Plan, machines: Machines) -> dict[str, Engine]:
    """The engine of every machine that takes part, the head's first, by machine."""
    first = await machines.get(plan.head).engine(plan.engine)
    protocol = first.info.rpc_protocol
    engines = {plan.head: first}
    for worker in own_workers(plan):
        if worker.peer in engines:
            continue
        wanted = plan.engine if worker.peer == LOCAL else None
        with about_worker(worker.name):
            there = await machines.get(worker.peer).engine(wanted, protocol)
            require_same_protocol(protocol, there.info.rpc_protocol, worker.peer)
        engines[worker.peer] = there
    return engines


async def draft_path(plan: Plan, machines: Machines, inventory: LocalInventory) -> str:
    """Return the path of the draft model on the head; empty without a draft."""
    if plan.speculation is None or not plan.speculation.model:
        return ""
    with blaming_draft():
        draft = await inventory.model(plan.speculation.model)
        return await machines.get(plan.head).model_path(draft)


@contextlib.contextmanager
def blaming_draft() -> Iterator[None]:
    """Have what is wrong with a model's file told of the draft."""
    try:
        yield
    except ModelError as error:
        raise ModelError(
            f"The draft model cannot be used: {error.what}", OTHER_DRAFT
        ) from error


async def check_whole(plan: Plan) -> None:
    """Refuse a sparse file that llama-server would read for itself alone."""
    draft = [plan.speculation.model] if plan.speculation else []
    files = [*weight_files(plan.extra_args), *draft] if plan.head == LOCAL else []
    if sparse := await asyncio.to_thread(_first_sparse, files):
        raise PlanError(
            f"{printable(sparse)} is sparse, and what it lacks only the model's own "
            "workers can have",
            "Name the whole file it was made from.",
        )


def _first_sparse(files: list[str]) -> str:
    for file in files:
        for part in part_paths(Path(file)):
            with contextlib.suppress(ModelError, OSError, ValueError):
                if has_holes(read_header(part)):
                    return part.name
    return ""


async def _pairings(
    plan: Plan,
    model: ModelInfo,
    machines: Machines,
    running: Callable[[WorkerSpec], Sequence[str]],
) -> dict[str, Pairing]:
    """The pairing of each worker; empty for a plan without relays."""

    async def pairing(worker: WorkerSpec) -> Pairing:
        if alone := alone_by_plan(plan, worker):
            return Pairing(why=alone)
        machine = machines.get(worker.peer)
        argv = running(worker)
        models, told = await machine.copies_of(model), models_in(argv)
        there = PairEnd(
            machine=machine.name,
            program=machine.relay_program(),
            features=await _features(machine),
            models=told if set(models) <= set(told) else models,
            searched=machine.searched,
            data=await _direct_address(machine, argv),
        )
        head = machines.get(plan.head)
        here = PairEnd(machine=head.name, features=await _features(head))
        return pairing_of(there, here)

    check_holes(plan, model)
    workers = used_workers(plan) if plan.relay else ()
    found = await gather_or_cancel(map(pairing, workers))
    pairs = dict(zip((worker.name for worker in workers), found, strict=True))
    if workers:
        check_stand_ins(plan, model, pairs)
    return pairs


async def _direct_address(machine: Machine, running: Sequence[str]) -> DirectAddress:
    """The address of a worker's relay, or a reason for the tunnel.

    A relay that serves stays at its address, even if SSH reaches its machine at
    another address.
    """
    try:
        if known := direct_in(running):
            return wanted_place(known)
        place = await machine.direct_address()
    except PeerUnreachable:
        raise
    except DllmError as error:
        return DirectAddress(why=error.what)
    if running and place.address:
        return DirectAddress(why="its relay was started without another address")
    return place


async def _features(machine: Machine) -> tuple[str, ...]:
    await machine.agent.connect()
    return machine.agent.features


API = "api"
"""Name of the way to llama-server."""

EXPECTED_S = 60.0
"""Facts of a preparation are used for so long."""
LISTEN_S = 60.0
LISTEN_AGAIN_S = 20.0


class Discovery:
    """Finds out, for one cluster, all that its plan leaves open; starts nothing.

    It opens ways, and reports the steps ``engine`` and ``model``.
    """

    def __init__(self, context: ClusterContext) -> None:
        self._context = context
        self._cluster = context.name
        self._machines = context.machines
        self._processes = ClusterProcesses(context)
        self._ways = context.ways
        self._steps = context.steps
        self._api_ports = context.api_ports
        self._prepared: tuple[Plan, Facts, float] | None = None
        self._noted: set[tuple[str, str]] = set()
        """Workers and notes on their ways that were told."""

    @property
    def listen_s(self) -> float:
        """The longest wait for a process to listen: shorter if it did before."""
        return LISTEN_AGAIN_S if self._context.has_served else LISTEN_S

    async def facts(self, plan: Plan) -> Facts:
        found, self._prepared = await self._site(plan), None
        engine, model = found.engines[plan.head].info, found.model
        detail = f"{engine.version} · RPC {engine.rpc_protocol}"
        self._steps.update("engine", detail=detail)
        self._steps.update("model", detail=model.name or model.arch)
        pairings = {
            worker: pairing.keyed(worker, self._context.secret())
            if pairing.paired
            else pairing
            for worker, pairing in found.pairings.items()
        }
        ports = await self._ports(plan, pairings)
        ways = await self._endpoints(plan, ports, pairings)
        folders = {
            name: f"{self._machines.get(name).agent.run_dir}/{self._cluster}"
            for name in machines_of(plan)
        }
        return replace(
            found, ports=ports, ways=ways, pairings=pairings, folders=folders
        )

    def expect(self, plan: Plan | None, facts: Facts | None) -> None:
        """Use these facts for a start of exactly this plan, if it comes soon."""
        until = asyncio.get_running_loop().time() + EXPECTED_S
        self._prepared = (plan, facts, until) if plan and facts else None

    async def _site(self, plan: Plan) -> Facts:
        if self._prepared and not self._context.has_served:
            expected, facts, until = self._prepared
            if expected == plan and asyncio.get_running_loop().time() < until:
                self._steps.done("engine")
                self._steps.done("model")
                return facts
        return await site_of(
            self._cluster,
            plan,
            self._machines,
            self._context.inventory,
            self._steps,
            self._told,
        )

    def _told(self, worker: WorkerSpec) -> tuple[str, ...]:
        # If this goal has not served, a running relay is of an earlier goal's
        # model.
        if not self._context.has_served:
            return ()
        name = worker_relay_name(worker.name)
        record = self._record(self._machines.get(worker.peer), name)
        return record.argv if record else ()

    async def _ports(
        self, plan: Plan, pairings: Mapping[str, Pairing]
    ) -> dict[str, int]:
        alone = {worker_relay_name(w) for w, p in pairings.items() if not p.paired}
        without = {GATEWAY, *alone, *awake_names(plan)}
        names = {n: m for n, m in needed_names(plan).items() if n not in without}
        found = await gather_or_cancel(
            self._port(self._machines.get(m), n) for n, m in names.items()
        )
        return dict(zip(names, found, strict=True))

    async def _port(self, machine: Machine, name: str) -> int:
        record = self._record(machine, name)
        return (
            record.port if record and record.port else await machine.agent.free_port()
        )

    def _record(self, machine: Machine, name: str) -> ProcessRecord | None:
        full = process_name(self._cluster, name)
        found = (r for r in machine.agent.seen if r.name == full and r.alive)
        return next(found, None)

    async def api_port(self, plan: Plan) -> int:
        """The port of the gateway: as demanded, as it is, or the first free one."""
        demanded = self._context.demanded_port(plan)
        here = self._machines.get(LOCAL)
        record = self._record(here, GATEWAY)
        if record and record.port and record.port == (demanded or record.port):
            self._api_ports.choose(self._cluster, record.port)
            return record.port
        if demanded:
            await self.require_port(demanded)
            self._api_ports.choose(self._cluster, demanded)
            return demanded
        is_kept = self._context.gateway.keeps_port
        for port in self._api_ports.candidates(self._cluster, API_PORT_DEFAULT):
            is_ours = self._api_ports.choose(self._cluster, port)
            if is_ours and (is_kept(port) or not await here.agent.port_owner(port)):
                return port
        port = await here.agent.free_port()
        self._api_ports.choose(self._cluster, port)
        return port

    async def require_access(self) -> ApiSettings:
        """See that the API may be given out as the settings want it now."""
        inventory = self._context.inventory
        api = api_settings(inventory.config(), inventory.paths)
        await asyncio.to_thread(require_safe, api.access)
        await asyncio.to_thread(require_address, api.access)
        return api

    async def require_port(self, port: int | None) -> None:
        """See that a port that is insisted on can be had; starts and stops nothing."""
        here = self._machines.get(LOCAL)
        ours = self._record(here, GATEWAY)
        if port is None or self._context.gateway.keeps_port(port):
            return
        if ours is not None and ours.port == port:
            return
        cluster = self._api_ports.owner(port)
        owner = await here.agent.port_owner(port)
        if cluster not in (None, self._cluster):
            owner = f"the cluster {cluster}"
        if owner:
            raise MachineError(
                f"Port {port} is in use by {owner}",
                "Stop that program or choose another port (--port, api_port).",
            )

    async def _endpoints(
        self, plan: Plan, ports: dict[str, int], pairings: Mapping[str, Pairing]
    ) -> dict[str, str]:
        workers = used_workers(plan)
        names = [worker.name for worker in workers]
        await self._ways.keep([*names, API, *map(stats_way, names)])
        paired = {name for name, pairing in pairings.items() if pairing.paired}
        ends = {n: worker_relay_name(n) if n in paired else n for n in names}
        found = await gather_or_cancel(
            self._way(plan, w, ports.get(ends[w.name], 0)) for w in workers
        )
        return {w.name: way.endpoint for w, way in zip(workers, found, strict=True)}

    async def _way(self, plan: Plan, worker: WorkerSpec, port: int) -> LinkTransport:
        if worker.endpoint:
            with about_worker(worker.name):
                endpoint = await numeric_address(worker.endpoint)
                if not self._head_holds(endpoint):
                    await connects(worker.endpoint)

            async def direct() -> LinkTransport:
                return direct_transport(endpoint)

            return await self._ways.lead(
                worker.name, End(worker.peer, endpoint), direct
            )
        spec = TransportSpec(
            cluster=self._cluster, worker=worker.name, tcp=not plan.relay
        )
        machine, head = self._machines.get(worker.peer), self._machines.get(plan.head)
        way = await self._ways.lead(
            worker.name,
            End(worker.peer, f"port {port} for {plan.head}"),
            lambda: open_way(machine, head, port, spec),
        )
        if way.note and (worker.name, way.note) not in self._noted:
            self._noted.add((worker.name, way.note))
            self._context.recorder.led(worker.name, way.note)
        return way

    def _head_holds(self, endpoint: str) -> bool:
        processes = self._processes
        words = [w for _, r in processes.found() if r.alive for w in r.argv]
        return processes.server_runs and any(endpoint in w.split(",") for w in words)

    async def sockets(self, plan: Plan) -> dict[str, Path]:
        """Worker to a socket of ours at which its relay gives out its counters."""
        if not plan.relay:
            return {}
        head = self._machines.get(plan.head)

        async def socket(worker: str) -> Path | None:
            key = relay_key(self._cluster, worker)
            way = await self._ways.lead(
                stats_way(worker), End(head.name, key), lambda: head.stats_way(key)
            )
            return path_of(way.endpoint)

        names = [worker.name for worker in used_workers(plan)]
        paths = await gather_or_cancel(map(socket, names))
        return {n: path for n, path in zip(names, paths, strict=True) if path}

    async def server_way(self, plan: Plan, there: int) -> int:
        """A loopback port of ours for llama-server's, wherever the head is."""
        head = self._machines.get(plan.head)
        end = End(head.name, f"port {there}")
        way = await self._ways.lead(API, end, lambda: head.api_way(there))
        return port_of(way.endpoint)


def stats_way(worker: str) -> str:
    """Name of the way to the counters of a worker's relay."""
    return f"stats:{worker}"
