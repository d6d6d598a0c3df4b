"""From a plan and the facts to every process of a cluster: one pure step.

A process is wanted exactly as its specification says. A running process is
kept if it was started from an equal one. The processes and transports that it depends
on must still be the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from backends.gateway.target import GATEWAY
from backends.link.relay import relay_name, worker_relay_name
from backends.machines.agent import ProcessRecord, ProcessSpec
from backends.machines.keep_awake import keep_awake_name
from backends.places import LOCAL
from backends.planning.commands import SERVER, Site, commands, placement_at
from backends.planning.pairing import paired_workers
from backends.split.flags import Placement, check_exact, used_workers
from backends.state import (
    Command,
    ModelInfo,
    Plan,
    ProcessRole,
    ProcessState,
    Value,
    WorkerSpec,
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
    """Short name of every process of a plan, and the machine it runs on."""
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


def _spec(command: Command, facts: Facts, *, key: str, cache: str) -> ProcessSpec:
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
