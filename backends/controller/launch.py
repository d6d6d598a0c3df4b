"""From a plan to a serving cluster, step by step; adopting whatever already runs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from backends.controller.arrival import Arrival
from backends.controller.evidence import failure_of, require_alive
from backends.controller.load import LoadWatch
from backends.engine.argv import server_argv, worker_argv
from backends.engine.http import Health, ServerClient
from backends.errors import HostError, PlanError, ProcessFailed
from backends.link.relay import relay_argv, relay_name
from backends.paths import relay_binary
from backends.peers.host import ProcessSpec
from backends.split.compare import measured_split
from backends.split.flags import Placement, check_exact, compile_split
from backends.split.layout import format_ranges
from backends.state import Failure, MeasuredSplit, ProcessRole, Step, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from backends.controller.readers import Engine, Readers
    from backends.controller.steps import StepBoard
    from backends.peers.host import Host, ProcessRecord
    from backends.state import ModelInfo, Plan, WorkerSpec

SERVER = "llama-server"
POLL_S = 0.1
LISTEN_TIMEOUT_S = 60.0
# Another program may take a free port between our look and the worker's bind.
PORT_ATTEMPTS = 3
API_PORTS_TRIED = 10
# Without it an abort of ggml first runs a debugger for a backtrace, for seconds.
ENGINE_ENV = {"GGML_NO_BACKTRACE": "1"}


class Running(Value, frozen=True, kw_only=True):
    """A cluster that serves."""

    placement: Placement
    process_names: tuple[str, ...]
    """Workers first, then relays: the order in which to look for who died."""
    relayed: tuple[str, ...] = ()
    """Workers behind a relay."""
    server_pid: int
    api_port: int
    measured: MeasuredSplit


def launch_steps(plan: Plan) -> tuple[Step, ...]:
    """The steps of a launch, all pending."""
    return (
        Step(id="engine", title="Find the engine"),
        Step(id="model", title="Read the model"),
        *(
            Step(id=f"worker:{worker.name}", title=f"Start {worker.name}")
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
    """Brings a plan up on one host; one call at a time."""

    def __init__(
        self,
        host: Host,
        board: StepBoard,
        readers: Readers,
        *,
        relay_socket: Callable[[str], Path],
        default_api_port: Callable[[], tuple[int | None, int]],
        found: Callable[[Engine, ModelInfo], None],
        clock: Callable[[], float],
    ) -> None:
        """Use these parts.

        ``relay_socket`` tells where a worker's relay gives out its counters,
        ``default_api_port`` gives the port demanded by the configuration (or None) and
        the one to begin looking at; ``found`` is told the engine and the model.
        """
        self._host = host
        self._board = board
        self._readers = readers
        self._relay_socket = relay_socket
        self._default_api_port = default_api_port
        self._found = found
        self._clock = clock

    async def bring_up(self, plan: Plan, known: MeasuredSplit | None) -> Running:
        """Start what does not run yet, wait until it serves, and compare the splits.

        ``known`` is the measurement of a llama-server that already serves.

        Raises:
            DllmError: a step failed; the board and the error say which and why.
        """
        engine, model = await self._prepare(plan)
        ports = await self._workers(engine, plan)
        relayed = tuple(ports) if plan.relay else ()
        processes = (*ports, *map(relay_name, relayed), SERVER)
        if plan.relay:
            with self._board.step("relays"):
                ports = await self._relays(ports)
        placement = compile_split(plan, ports)
        check_exact(plan, placement)
        with self._board.step("server"):
            server = await self._server(engine, plan, placement)
        watch = LoadWatch(self._host, SERVER, plan.split.n_layer)
        with self._board.step("load"):
            arrival = Arrival(self._host, plan, model, used_workers(plan))
            await self._loaded(server, processes, watch, arrival)
        with self._board.step("verify"):
            measured = known or await self._verify(plan, placement, watch, model)
        return Running(
            placement=placement,
            process_names=processes,
            relayed=relayed,
            server_pid=server.pid,
            api_port=server.port or 0,
            measured=measured,
        )

    async def _prepare(self, plan: Plan) -> tuple[Engine, ModelInfo]:
        with self._board.step("engine"):
            engine = await self._readers.engine(plan.engine)
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

    async def _workers(self, engine: Engine, plan: Plan) -> Mapping[str, int]:
        """Ports of all workers in use, each one listening."""
        ports: dict[str, int] = {}
        for worker in used_workers(plan):
            step = f"worker:{worker.name}"
            with self._board.step(step):
                ports[worker.name] = await self._worker(engine, worker)
                self._board.update(step, detail=f"127.0.0.1:{ports[worker.name]}")
        return ports

    async def _worker(self, engine: Engine, worker: WorkerSpec) -> int:
        record = await self._host.record(worker.name)
        if record is not None and record.alive and record.port:
            await self._listening(record, record.port)
            return record.port
        for attempt in range(PORT_ATTEMPTS):
            port = await self._host.free_port()
            spec = ProcessSpec(
                name=worker.name,
                role=ProcessRole.WORKER,
                argv=worker_argv(
                    engine.location,
                    port=port,
                    device=worker.device,
                    threads=worker.threads,
                ),
                port=port,
                env=ENGINE_ENV,
                ignore_sigpipe=True,
            )
            try:
                await self._listening(await self._start(spec), port)
            except ProcessFailed:
                taken = await self._host.port_owner(port)
                if attempt + 1 == PORT_ATTEMPTS or not taken:
                    raise
            else:
                return port
        raise AssertionError("unreachable")

    async def _relays(self, worker_ports: Mapping[str, int]) -> Mapping[str, int]:
        """Ports of the relays, one before each worker, each one listening."""
        ports: dict[str, int] = {}
        for worker, port in worker_ports.items():
            record = await self._host.record(relay_name(worker))
            if record is None or not record.alive:
                record = await self._start(await self._relay_spec(worker, port))
            ports[worker] = record.port or 0
            await self._listening(record, ports[worker])
        return ports

    async def _relay_spec(self, worker: str, worker_port: int) -> ProcessSpec:
        port = await self._host.free_port()
        argv = relay_argv(
            relay_binary(),
            worker=worker,
            listen_port=port,
            worker_port=worker_port,
            stats=self._relay_socket(worker),
        )
        return ProcessSpec(
            name=relay_name(worker), role=ProcessRole.RELAY, argv=argv, port=port
        )

    async def _listening(self, record: ProcessRecord, port: int) -> None:
        """Wait until that process listens.

        Raises:
            ProcessFailed: it ended, or does not listen in time.
        """
        deadline = self._clock() + LISTEN_TIMEOUT_S
        while not await self._host.listens(record.pid, port):
            await require_alive(self._host, [record.name], self._clock())
            if self._clock() > deadline:
                failure = await failure_of(self._host, record, self._clock())
                what = f"{record.name} runs but does not listen on port {port}"
                raise ProcessFailed(
                    Failure(what=what, argv=failure.argv, log_tail=failure.log_tail)
                )
            await asyncio.sleep(POLL_S)

    async def _server(
        self, engine: Engine, plan: Plan, placement: Placement
    ) -> ProcessRecord:
        """The llama-server of this plan, started unless it runs already."""
        record = await self._host.record(SERVER)
        if record is not None and record.alive and record.port:
            return record
        port = await self._api_port(plan)
        argv = server_argv(
            engine.location,
            engine.flags,
            model=plan.model,
            rpc_endpoints=placement.rpc_endpoints,
            device_names=placement.device_names,
            n_gpu_layers=placement.n_gpu_layers,
            tensor_split=placement.tensor_split,
            ctx_size=plan.ctx_size,
            parallel=plan.parallel,
            port=port,
            extra=plan.extra_args,
        )
        spec = ProcessSpec(
            name=SERVER, role=ProcessRole.SERVER, argv=argv, port=port, env=ENGINE_ENV
        )
        return await self._start(spec)

    async def _api_port(self, plan: Plan) -> int:
        """The port asked for, or the first free one where none was demanded.

        Raises:
            HostError: the demanded port is taken.
        """
        configured, first = self._default_api_port()
        demanded = plan.api_port or configured
        if demanded:
            owner = await self._host.port_owner(demanded)
            if owner:
                raise HostError(
                    f"Port {demanded} is in use by {owner}",
                    "Stop that program or choose another port (--port, api_port).",
                )
            return demanded
        for port in range(first, first + API_PORTS_TRIED):
            if not await self._host.port_owner(port):
                return port
        return await self._host.free_port()

    async def _start(self, spec: ProcessSpec) -> ProcessRecord:
        """Start a process in place of the ended one of that name."""
        await self._host.remove(spec.name)
        return await self._host.start(spec)

    async def _loaded(
        self,
        server: ProcessRecord,
        names: tuple[str, ...],
        watch: LoadWatch,
        arrival: Arrival,
    ) -> None:
        """Wait, without limit, until llama-server is healthy or somebody dies."""
        async with ServerClient(server.port or 0) as client:
            while True:
                await require_alive(self._host, names, self._clock())
                await watch.read()
                await arrival.measure()
                self._board.update(
                    "load",
                    detail=" · ".join(filter(None, (watch.phase, arrival.text))),
                    progress=arrival.fraction,
                )
                if await client.health() is Health.OK:
                    return
                await asyncio.sleep(POLL_S)

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
