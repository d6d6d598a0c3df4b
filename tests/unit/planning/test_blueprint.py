"""What of a blueprint is kept: only what runs, is what is wanted, and stays."""

from __future__ import annotations

import msgspec
import pytest

from backends.machines.agent import ProcessRecord, ProcessSpec
from backends.planning.blueprint import Blueprint, Node, compare
from backends.split.flags import Placement
from backends.state import ProcessRole, ProcessState

WORKER = Node(
    machine="here",
    short_name="worker1",
    spec=ProcessSpec(name="one/worker1", role=ProcessRole.WORKER, argv=("rpc", "1")),
)
RELAY = Node(
    machine="here",
    short_name="relay-worker1",
    spec=ProcessSpec(name="one/relay", role=ProcessRole.RELAY, argv=("relay",)),
    waits_for=("worker1",),
)


NOWHERE = Placement(rpc_endpoints=(), devices=(), n_gpu_layers=0)


def record(spec: ProcessSpec, state: ProcessState, pid: int = 7) -> ProcessRecord:
    return ProcessRecord(
        name=spec.name,
        role=spec.role,
        state=state,
        pid=pid,
        argv=spec.argv,
        digest=spec.digest,
        started_at=1.0,
    )


def missing(*records: ProcessRecord) -> list[str]:
    blueprint = Blueprint(nodes=(WORKER, RELAY), placement=NOWHERE)
    there = {("here", one.name): one for one in records}
    return [node.short_name for node in compare(blueprint, there, {}).missing]


def after(worker: ProcessRecord) -> ProcessSpec:
    return RELAY.specified({"worker1": worker.incarnation})


def test_what_runs_as_it_should_is_kept() -> None:
    worker = record(WORKER.spec, ProcessState.RUNNING)
    assert missing(worker, record(after(worker), ProcessState.RUNNING)) == []


@pytest.mark.parametrize("state", [ProcessState.STOPPING, ProcessState.EXITED])
def test_what_ends_is_not_kept_nor_what_depends_on_it(state: ProcessState) -> None:
    worker = record(WORKER.spec, state)
    relay = record(after(worker), ProcessState.RUNNING)
    assert missing(worker, relay) == ["worker1", "relay-worker1"]


def test_another_command_line_or_another_worker_is_another_process() -> None:
    worker = record(WORKER.spec, ProcessState.RUNNING)
    relay = record(after(worker), ProcessState.RUNNING)
    other = record(
        msgspec.structs.replace(WORKER.spec, argv=("rpc", "2")), ProcessState.RUNNING
    )
    assert missing(other, relay) == ["worker1", "relay-worker1"]
    again = record(WORKER.spec, ProcessState.RUNNING, pid=8)
    assert missing(again, relay) == ["relay-worker1"]
