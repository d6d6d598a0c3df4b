"""From a plan to a serving cluster, step by step; adopting whatever already runs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from backends.controller.arrival import Arrival
from backends.controller.bare import connects
from backends.controller.evidence import Placed, look_at, require_alive
from backends.controller.load import LoadWatch
from backends.controller.machines import route
from backends.controller.places import LOCAL
from backends.controller.starting import ENGINE_ENV, Starter
from backends.engine.argv import server_argv
from backends.engine.http import Health, ServerClient
from backends.engine.protocols import require_same_protocol
from backends.errors import HostError, PeerUnreachable, PlanError
from backends.link.relay import relay_name
from backends.peers.host import ProcessSpec
from backends.split.compare import measured_split
from backends.split.flags import Placement, check_exact, compile_split
from backends.split.layout import format_ranges
from backends.state import MeasuredSplit, ProcessRole, Step, Transport, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from backends.controller.machines import Machine, Machines
    from backends.controller.readers import Engine, Readers
    from backends.controller.steps import StepBoard
    from backends.peers.host import ProcessRecord
    from backends.state import ModelInfo, Plan, WorkerSpec

SERVER = "llama-server"
POLL_S = 0.1
# Every look at another machine is a round trip and a few processes there.
POLL_REMOTE_S = 0.5
API_PORTS_TRIED = 10


class Running(Value, frozen=True, kw_only=True):
    """A cluster that serves."""

    placement: Placement
    processes: tuple[Placed, ...]
    """Workers first, then relays: the order in which to look for who died."""
    relayed: tuple[str, ...] = ()
    """Workers behind a relay."""
    server_pid: int
    api_port: int
    """On our own loopback, wherever the head is."""
    measured: MeasuredSplit


def launch_steps(plan: Plan) -> tuple[Step, ...]:
    """The steps of a launch, all pending."""
    return (
        Step(id="engine", title="Find the engine"),
        Step(id="model", title="Read the model"),
        *(
            Step(
                id=f"worker:{worker.name}",
                title=f"{'Reach' if worker.endpoint else 'Start'} {worker.name}",
            )
            for worker in used_workers(plan)
        ),
        *([Step(id="relays", title="Start the relays")] if plan.relay else ()),
        Step(id="server", title="Start llama-server"),
        Step(id="load", title="Load the model"),
        Step(id="verify", title="Compare with the plan"),
    )


def used_workers(plan: Plan) -> tuple[WorkerSpec, ...]:
    """The workers whose device holds layers."""
    used = {share.device for share in plan.split.shares if share.layers}
    return tuple(w for w in plan.workers if f"{w.name}/{w.device}" in used)


class Launcher:
    """Brings a plan up on its machines; one call at a time."""

    def __init__(
        self,
        machines: Machines,
        board: StepBoard,
        readers: Readers,
        *,
        default_api_port: Callable[[], tuple[int | None, int]],
        found: Callable[[Engine, ModelInfo], None],
        looked: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        """Use these parts.

        ``default_api_port`` gives the port demanded by the configuration (or None) and
        the one to begin looking at; ``found`` is told the engine and the model,
        ``looked`` that the machines were looked at anew.
        """
        self._machines = machines
        self._board = board
        self._readers = readers
        self._default_api_port = default_api_port
        self._found = found
        self._looked = looked
        self._clock = clock
        self._starter = Starter(clock)

    async def bring_up(self, plan: Plan, known: MeasuredSplit | None) -> Running:
        """Start what does not run yet, wait until it serves, and compare the splits.

        ``known`` is the measurement of a llama-server that already serves.

        Raises:
            DllmError: a step failed; the board and the error say which and why.
        """
        head = self._machines.get(plan.head)
        engine, model = await self._prepare(plan, head)
        engines = await self._engines(plan, head, engine)
        ports = await self._workers(plan, head, engines)
        relayed = tuple(w.name for w in used_workers(plan)) if plan.relay else ()
        processes = processes_of(plan)
        if plan.relay:
            with self._board.step("relays"):
                ports = await self._relays(plan, head, ports)
        placement = compile_split(plan, ports)
        check_exact(plan, placement)
        with self._board.step("server"):
            server, api_port = await self._server(engine, plan, head, placement, model)
        watch = LoadWatch(head.host, SERVER, plan.split.n_layer)
        with self._board.step("load"):
            arrival = Arrival(self._machines, plan, model, used_workers(plan))
            await self._loaded(api_port, processes, watch, arrival)
        with self._board.step("verify"):
            measured = known or await self._verify(plan, placement, watch, model)
        return Running(
            placement=placement,
            processes=processes,
            relayed=relayed,
            server_pid=server.pid,
            api_port=api_port,
            measured=measured,
        )

    async def _prepare(self, plan: Plan, head: Machine) -> tuple[Engine, ModelInfo]:
        with self._board.step("engine"):
            engine = await head.engine(plan.engine)
            info = engine.info
            self._board.update(
                "engine", detail=f"{info.version} · RPC {info.rpc_protocol}"
            )
        with self._board.step("model"):
            model = await self._readers.model(plan.model)
            if model.n_layer != plan.split.n_layer:
                raise PlanError(
                    f"The plan is for {plan.split.n_layer} layers, "
                    f"{plan.model} has {model.n_layer}",
                    "Pick the model again to get a plan for it.",
                )
            self._board.update("model", detail=model.name or model.arch)
        self._found(engine, model)
        return engine, model

    async def _engines(
        self, plan: Plan, head: Machine, engine: Engine
    ) -> Mapping[str, Engine]:
        """The engine of every machine that takes part, all speaking one protocol.

        Raises:
            EngineError: one has none, or one that does not match; nothing has started.
        """
        protocol = engine.info.rpc_protocol
        engines = {head.name: engine}
        for worker in used_workers(plan):
            if worker.endpoint or worker.peer in engines:
                continue
            machine = self._machines.get(worker.peer)
            there = await machine.engine(
                plan.engine if worker.peer == LOCAL else None, protocol
            )
            require_same_protocol(protocol, there.info.rpc_protocol, worker.peer)
            engines[worker.peer] = there
        return engines

    async def _workers(
        self, plan: Plan, head: Machine, engines: Mapping[str, Engine]
    ) -> dict[str, int]:
        """Ports of the head that lead to the workers in use, each one listening.

        Those somebody else started are reached at their own endpoint instead.
        """
        ports: dict[str, int] = {}
        for worker in used_workers(plan):
            step = f"worker:{worker.name}"
            with self._board.step(step):
                if worker.endpoint:
                    self._board.update(step, detail=worker.endpoint)
                    continue
                machine = self._machines.get(worker.peer)
                engine = engines[worker.peer]
                port = await self._starter.worker(machine, engine, worker)
                ports[worker.name] = await route(machine, head, port)
                self._board.update(step, detail=_where(machine, port))
        return ports

    async def _relays(
        self, plan: Plan, head: Machine, ports: Mapping[str, int]
    ) -> dict[str, int]:
        """Ports of the relays, one before each worker, each one listening."""
        relays: dict[str, int] = {}
        for worker in used_workers(plan):
            if worker.endpoint:
                # A relay knows no names.
                upstream, _ = await connects(worker.endpoint)
            else:
                upstream = f"127.0.0.1:{ports[worker.name]}"
            relays[worker.name] = await self._starter.relay(head, worker.name, upstream)
        return relays

    async def _server(
        self,
        engine: Engine,
        plan: Plan,
        head: Machine,
        placement: Placement,
        model: ModelInfo,
    ) -> tuple[ProcessRecord, int]:
        """The llama-server of this plan, started unless it runs, and its port here."""
        api_port = await self._api_port(plan, head)
        record = await head.host.record(SERVER)
        if record is None or not record.alive or not record.port:
            there = api_port if head.name == LOCAL else await head.host.free_port()
            path = await head.model_path(model)
            argv = _server_argv(engine, plan, placement, path, there)
            spec = ProcessSpec(
                name=SERVER,
                role=ProcessRole.SERVER,
                argv=argv,
                port=there,
                env=ENGINE_ENV,
            )
            record = await self._starter.start(head.host, spec)
        return record, await self._reach_api(plan, head, record.port or 0, api_port)

    async def _reach_api(self, plan: Plan, head: Machine, port: int, here: int) -> int:
        """A port of ours for llama-server's: ``here``, unless it was just taken."""
        try:
            return await head.reach_port(port, at=here)
        except PeerUnreachable:
            raise
        except HostError:
            if plan.api_port or self._default_api_port()[0]:
                raise
            return await head.reach_port(port)

    async def _api_port(self, plan: Plan, head: Machine) -> int:
        """The port asked for here, or the first free one where none was demanded.

        Raises:
            HostError: the demanded port is taken.
        """
        here = self._machines.get(LOCAL).host
        if head.name == LOCAL:
            record = await here.record(SERVER)
            if record is not None and record.alive and record.port:
                return record.port
        configured, first = self._default_api_port()
        demanded = plan.api_port or configured
        if demanded:
            owner = await here.port_owner(demanded)
            if owner:
                raise HostError(
                    f"Port {demanded} is in use by {owner}",
                    "Stop that program or choose another port (--port, api_port).",
                )
            return demanded
        for port in range(first, first + API_PORTS_TRIED):
            if not await here.port_owner(port):
                return port
        return await here.free_port()

    async def _loaded(
        self,
        api_port: int,
        processes: tuple[Placed, ...],
        watch: LoadWatch,
        arrival: Arrival,
    ) -> None:
        """Wait, without limit, until llama-server is healthy or somebody dies."""
        remote = any(placed.machine != LOCAL for placed in processes)
        async with ServerClient(api_port) as client:
            while True:
                await look_at(self._machines, processes)
                self._looked()
                await require_alive(self._machines, processes, self._clock())
                await watch.read()
                arrival.measure()
                self._board.update(
                    "load",
                    detail=" · ".join(filter(None, (watch.phase, arrival.text))),
                    progress=arrival.fraction,
                )
                if await client.health() is Health.OK:
                    return
                await asyncio.sleep(POLL_REMOTE_S if remote else POLL_S)

    async def _verify(
        self, plan: Plan, placement: Placement, watch: LoadWatch, model: ModelInfo
    ) -> MeasuredSplit:
        await watch.read_all()
        measured = measured_split(
            plan, placement, watch.layer_devices, watch.buffers(placement)
        )
        self._board.update(
            "verify",
            detail=measured.mismatches[0]
            if measured.mismatches
            else format_ranges(measured.layers, model.n_layer),
        )
        return measured


def processes_of(plan: Plan) -> tuple[Placed, ...]:
    """Every process of a plan: workers of ours, relays, llama-server."""
    workers = used_workers(plan)
    ours = [Placed(machine=w.peer, name=w.name) for w in workers if not w.endpoint]
    relays = [Placed(machine=plan.head, name=relay_name(w.name)) for w in workers]
    server = Placed(machine=plan.head, name=SERVER)
    return (*ours, *(relays if plan.relay else ()), server)


def needs_ways(plan: Plan) -> bool:
    """Whether bytes between head and workers go through tunnels of ours.

    Such a cluster does not outlive the controller: llama-server has lost its workers.
    """
    return any(w.peer != plan.head and not w.endpoint for w in used_workers(plan))


def _where(machine: Machine, port: int) -> str:
    here = machine.transport is Transport.LOCAL
    return f"127.0.0.1:{port}" if here else f"{machine.name}, port {port}"


def _server_argv(
    engine: Engine, plan: Plan, placement: Placement, model_path: str, port: int
) -> tuple[str, ...]:
    return server_argv(
        engine.location,
        engine.flags,
        model=model_path,
        rpc_endpoints=placement.rpc_endpoints,
        device_names=placement.device_names,
        n_gpu_layers=placement.n_gpu_layers,
        tensor_split=placement.tensor_split,
        ctx_size=plan.ctx_size,
        parallel=plan.parallel,
        port=port,
        extra=plan.extra_args,
    )
