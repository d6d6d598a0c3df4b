"""From a plan and the facts to every process of a cluster: one pure step.

A process is wanted exactly as its specification, its command line included, says. A
running process is kept if it was started from an equal one. The processes and
transports that it depends on must still be the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from backends.engine.argv import (
    BUFFERS_VERBOSITY,
    LAYERS_VERBOSITY,
    server_argv,
    worker_argv,
)
from backends.engine.ask import Engine
from backends.gateway.control_messages import GATEWAY, gateway_argv
from backends.link.relay import (
    pair_argv,
    relay_argv,
    relay_name,
    worker_relay_argv,
    worker_relay_name,
)
from backends.machine_names import LOCAL
from backends.machines.agent import PRIVATE, ProcessRecord, ProcessSpec
from backends.machines.keep_awake import keep_awake_name
from backends.planning.relay_pairs import paired_workers
from backends.speculation.methods import speculation_argv
from backends.split.flags import (
    Placement,
    check_exact,
    compile_split,
    is_relayed,
    used_workers,
)
from backends.state import (
    AUTO_DRAFT,
    ModelInfo,
    Plan,
    ProcessCommand,
    ProcessRole,
    ProcessState,
    Value,
    WorkerSpec,
)

if TYPE_CHECKING:
    from backends.gateway.listen_settings import ListenSettings
    from backends.planning.relay_pairs import Pairing

SERVER = "llama-server"
UNKNOWN_PORT = "<port>"
UNKNOWN_SOCKET = "<socket>"
UNKNOWN_ID = "<id>"
UNKNOWN_KEY = "<key file>"
_PART = re.compile(r"-\d{5}-of-\d{5}$")


@dataclass(frozen=True, kw_only=True)
class Site:
    """Facts beside a plan: paths of programs and model, and taken ports."""

    engines: Mapping[str, Engine]
    """By machine; of the flags those of the head's count."""
    model_path: str
    """Of the model on the head."""
    sparse: bool = False
    """True if that has holes."""
    draft_path: str = ""
    """Of the draft model there; empty without one."""
    relay: str = ""
    """The head's ``dllm-relay``; needed for a plan with relays."""
    ports: Mapping[str, int] = field(default_factory=dict)
    """By process: where it listens. One that is not there yet has no number."""
    ways: Mapping[str, str] = field(default_factory=dict)
    """By worker: where the head reaches it. Unset: at the worker's own port."""
    stats: Mapping[str, str] = field(default_factory=dict)
    """By worker: the socket on the head where its relay gives out its counters."""
    pairings: Mapping[str, Pairing] = field(default_factory=dict)
    """By worker; one that is not in it has the head's relay alone."""
    folders: Mapping[str, str] = field(default_factory=dict)
    """By machine: the folder there of the cluster's process directories."""

    def port(self, process: str) -> int | str:
        return self.ports.get(process, UNKNOWN_PORT)

    def key_file(self, machine: str, process: str) -> str:
        folder = self.folders.get(machine)
        return f"{folder}/{process}/{PRIVATE}" if folder else UNKNOWN_KEY

    def pair_argv(self, head: str, process: str, pairing: Pairing) -> tuple[str, ...]:
        return pair_argv(
            identity=pairing.identity if self.folders else UNKNOWN_ID,
            # The worker's own file may be another; both say what is in theirs.
            models=(self.model_path,) if pairing.models or self.sparse else (),
            sparse=self.sparse,
            key_file=self.key_file(head, process),
        )

    def pairing(self, worker: WorkerSpec) -> Pairing | None:
        found = self.pairings.get(worker.name)
        return found if found and found.paired else None

    def direct(self, worker: WorkerSpec) -> str:
        """The address of the relay beside a worker without a tunnel; empty: none."""
        pairing = self.pairing(worker)
        port = self.port(worker_relay_name(worker.name))
        return pairing.data.endpoint(port) if pairing else ""

    def way(self, worker: WorkerSpec) -> str:
        name = worker_relay_name(worker.name) if self.pairing(worker) else worker.name
        own = worker.endpoint or f"127.0.0.1:{self.port(name)}"
        return self.ways.get(worker.name, own)


def commands(plan: Plan, site: Site) -> tuple[ProcessCommand, ...]:
    workers = used_workers(plan)
    return (
        *(_worker(w, site) for w in workers if not w.endpoint),
        *(_worker_relay(w, site) for w in workers if site.pairing(w)),
        *(_relay(plan, w, site) for w in workers if plan.relay),
        _server(plan, placement_at(plan, site), site),
    )


def gateway_command(cluster: str, plan: Plan, access: ListenSettings) -> ProcessCommand:
    return ProcessCommand(
        machine=LOCAL,
        name=GATEWAY,
        role=ProcessRole.GATEWAY,
        argv=gateway_argv(
            cluster, plan.api_port or UNKNOWN_PORT, UNKNOWN_SOCKET, access
        ),
    )


def placement_at(plan: Plan, site: Site) -> Placement:
    """The split as arguments: workers are reached at their relays, or by their ways."""
    behind = {
        worker.name: f"127.0.0.1:{site.port(relay_name(worker.name))}"
        if plan.relay
        else site.way(worker)
        for worker in used_workers(plan)
    }
    return compile_split(plan, behind)


def _worker(worker: WorkerSpec, site: Site) -> ProcessCommand:
    return ProcessCommand(
        machine=worker.peer,
        name=worker.name,
        role=ProcessRole.WORKER,
        argv=worker_argv(
            site.engines[worker.peer].info,
            port=site.port(worker.name),
            devices=worker.devices,
            threads=worker.threads,
            caches=bool(worker.cache),
        ),
    )


def _worker_relay(worker: WorkerSpec, site: Site) -> ProcessCommand:
    name = worker_relay_name(worker.name)
    pairing = site.pairings[worker.name]
    return ProcessCommand(
        machine=worker.peer,
        name=name,
        role=ProcessRole.WORKER_RELAY,
        argv=worker_relay_argv(
            pairing.program,
            worker=worker.name,
            listen_port=site.port(name),
            rpc_server=f"127.0.0.1:{site.port(worker.name)}",
            models=pairing.models,
            key_file=site.key_file(worker.peer, name),
            direct=site.direct(worker),
        ),
    )


def _relay(plan: Plan, worker: WorkerSpec, site: Site) -> ProcessCommand:
    name = relay_name(worker.name)
    pairing = site.pairing(worker)
    return ProcessCommand(
        machine=plan.head,
        name=name,
        role=ProcessRole.RELAY,
        argv=relay_argv(
            site.relay,
            worker=worker.name,
            listen_port=site.port(name),
            upstream=site.way(worker),
            direct=site.direct(worker),
            stats=site.stats.get(worker.name, ""),
            pair=site.pair_argv(plan.head, name, pairing) if pairing else None,
        ),
    )


def model_alias(plan: Plan) -> str:
    """The model's name for clients: its file's name, or the user's choice."""
    options = dict(zip(plan.extra_args, plan.extra_args[1:], strict=False))
    asked = options.get("--alias") or options.get("-a") or ""
    if first := asked.partition(",")[0].strip():
        return first
    stem = plan.model.rpartition("/")[2].removesuffix(".gguf")
    return _PART.sub("", stem).replace(",", "-")


def _server(plan: Plan, placement: Placement, site: Site) -> ProcessCommand:
    engine = site.engines[plan.head]
    return ProcessCommand(
        machine=plan.head,
        name=SERVER,
        role=ProcessRole.SERVER,
        argv=server_argv(
            engine.info,
            engine.flags,
            model=site.model_path,
            rpc_endpoints=placement.rpc_endpoints,
            device_names=placement.device_names,
            n_gpu_layers=placement.n_gpu_layers,
            tensor_split=placement.tensor_split,
            ctx_size=plan.ctx_size,
            server=plan.server,
            port=site.port(SERVER),
            verbosity=BUFFERS_VERBOSITY if is_relayed(plan) else LAYERS_VERBOSITY,
            alias=model_alias(plan),
            speculation=_speculation(plan, placement, site),
            overrides=placement.overrides,
            prompt_cache_mib=plan.prompt_cache_mib,
            extra=plan.extra_args,
        ),
    )


def _speculation(plan: Plan, placement: Placement, site: Site) -> tuple[str, ...]:
    if plan.speculation is None or plan.server.draft == AUTO_DRAFT:
        return ()
    is_away = placement.n_gpu_layers > plan.split.n_layer
    return speculation_argv(
        site.engines[plan.head].flags,
        plan.speculation,
        site.draft_path,
        plan.server.draft_max,
        # Further arguments may give the CPU work that the plan knows nothing of.
        is_alone=is_away
        and plan.server.threads is None
        and not plan.extra_args
        and not plan.experts,
    )


# Without it an abort of ggml first runs a debugger for a backtrace, for seconds.
ENGINE_ENV = {"GGML_NO_BACKTRACE": "1"}
STAGES = (
    ProcessRole.WORKER,
    ProcessRole.WORKER_RELAY,
    ProcessRole.RELAY,
    ProcessRole.SERVER,
)
"""In this order they start."""


@dataclass(frozen=True, kw_only=True)
class Facts(Site):
    cluster: str
    model: ModelInfo


class Node(Value, frozen=True, kw_only=True):
    """One process of a cluster: where it runs, what it is, what it waits for."""

    machine: str
    short_name: str
    """Its name within the cluster."""
    spec: ProcessSpec
    waits_for: tuple[str, ...] = ()
    """Short names of processes, and ``way:WORKER``: each must be there before."""

    def specified(self, incarnations: Mapping[str, str]) -> ProcessSpec:
        after = {name: incarnations[name] for name in self.waits_for}
        return msgspec.structs.replace(self.spec, after=after)


class Blueprint(Value, frozen=True, kw_only=True):
    """Every process of a cluster, each after those it waits for."""

    nodes: tuple[Node, ...]
    placement: Placement

    def stage(self, role: ProcessRole) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.spec.role is role)


class Kept(Value, frozen=True, kw_only=True):
    incarnations: dict[str, str]
    """Of what is there: processes by short name, ways as ``way:WORKER``."""
    missing: tuple[Node, ...]


def process_name(cluster: str, short_name: str) -> str:
    return f"{cluster}/{short_name}"


def short_name(name: str) -> str:
    return name.rpartition("/")[2]


def cluster_of(name: str) -> str:
    return name.rpartition("/")[0] or "default"


def own_workers(plan: Plan) -> tuple[WorkerSpec, ...]:
    return tuple(worker for worker in used_workers(plan) if not worker.endpoint)


def machines_of(plan: Plan) -> tuple[str, ...]:
    return tuple(dict.fromkeys([plan.head, *(w.peer for w in own_workers(plan))]))


def needed_names(plan: Plan) -> dict[str, str]:
    workers = {worker.name: worker.peer for worker in own_workers(plan)}
    beside = {worker_relay_name(w.name): w.peer for w in paired_workers(plan)}
    relays = [relay_name(w.name) for w in used_workers(plan)] if plan.relay else []
    on_head = dict.fromkeys([*relays, SERVER], plan.head)
    return {**workers, **beside, **on_head, GATEWAY: LOCAL, **awake_names(plan)}


def awake_names(plan: Plan) -> dict[str, str]:
    """Short name of each process that holds a machine of the plan awake, and where."""
    if not plan.keep_awake:
        return {}
    return {keep_awake_name(machine): machine for machine in machines_of(plan)}


def draw(plan: Plan, facts: Facts) -> Blueprint:
    placement = placement_at(plan, facts)
    check_exact(plan, placement)
    drawn = commands(plan, facts)
    names = [command.name for command in drawn if command.name != SERVER]
    used = used_workers(plan)
    ways = () if plan.relay else tuple(f"way:{worker.name}" for worker in used)
    waits_for: dict[str, tuple[str, ...]] = {SERVER: (*names, *ways)}
    keys: dict[str, str] = {}
    caches = {worker.name: worker.cache for worker in used if worker.cache}
    for worker in used:
        beside, before = worker_relay_name(worker.name), relay_name(worker.name)
        waits_for[beside] = (worker.name,)
        there = [name for name in (worker.name, beside) if name in names]
        waits_for[before] = (*there, f"way:{worker.name}")
        if pairing := facts.pairing(worker):
            keys |= {beside: pairing.key, before: pairing.key}
    nodes = (
        Node(
            machine=command.machine,
            short_name=command.name,
            spec=_spec(
                command,
                facts,
                key=keys.get(command.name, ""),
                cache=caches.get(command.name, ""),
            ),
            waits_for=waits_for.get(command.name, ()),
        )
        for command in drawn
    )
    return Blueprint(nodes=tuple(nodes), placement=placement)


def _spec(
    command: ProcessCommand, facts: Facts, *, key: str, cache: str
) -> ProcessSpec:
    is_engine = command.role in (ProcessRole.WORKER, ProcessRole.SERVER)
    env = ENGINE_ENV if is_engine else {}
    return ProcessSpec(
        name=process_name(facts.cluster, command.name),
        role=command.role,
        argv=command.argv,
        port=facts.ports[command.name],
        env={**env, "LLAMA_CACHE": cache} if cache else env,
        # A stock rpc-server dies of a client that leaves before its answer.
        ignore_sigpipe=command.role is ProcessRole.WORKER,
        private=key,
    )


def compare(
    blueprint: Blueprint,
    records: Mapping[tuple[str, str], ProcessRecord],
    ways: Mapping[str, str],
) -> Kept:
    """The processes that run as the blueprint wants, and the others.

    ``records`` are keyed by machine and name, ``ways`` map workers to incarnations.
    """
    incarnations = {f"way:{worker}": way for worker, way in ways.items()}
    missing: list[Node] = []
    for node in blueprint.nodes:
        record = records.get((node.machine, node.spec.name))
        there = all(name in incarnations for name in node.waits_for)
        if record is not None and there and _fits(node, record, incarnations):
            incarnations[node.short_name] = record.incarnation
        else:
            missing.append(node)
    return Kept(incarnations=incarnations, missing=tuple(missing))


def _fits(node: Node, record: ProcessRecord, incarnations: Mapping[str, str]) -> bool:
    # One that lives and was asked to end will, whoever wants it now.
    runs = record.state is ProcessState.RUNNING
    return runs and record.digest == node.specified(incarnations).digest


def stop_order(records: Iterable[ProcessRecord]) -> list[list[ProcessRecord]]:
    """Processes in the stages in which they are stopped: who uses others goes first."""
    found = list(records)
    stages = [[r for r in found if r.role is role] for role in reversed(STAGES)]
    others = [r for r in found if r.role not in STAGES]
    return [stage for stage in (*stages, others) if stage]
