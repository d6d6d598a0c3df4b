"""What starting one process of a cluster comes to where it cannot be used."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from backends.controller.builder import Builder
from backends.controller.discovery import LISTEN_AGAIN_S, LISTEN_S, Discovery
from backends.controller.steps import StepBoard
from backends.errors import DllmError, HostError, NeverListened, PeerUnreachable
from backends.machines.host import ProcessRecord, ProcessSpec
from backends.planning.blueprint import Node
from backends.state import ProcessRole, ProcessState, Step


class Machine:
    """One that starts what it is told to, or says why it does not."""

    def __init__(self, why_not: DllmError | None) -> None:
        self.host = self
        self._why_not = why_not

    async def remove(self, name: str) -> None:
        pass

    async def start(self, spec: ProcessSpec) -> ProcessRecord:
        if self._why_not is not None:
            raise self._why_not
        return await self.record(spec.name)

    async def record(self, name: str) -> ProcessRecord:
        return ProcessRecord(
            name=name,
            role=ProcessRole.WORKER,
            state=ProcessState.RUNNING,
            pid=7,
            argv=("rpc-server",),
            port=5000,
        )

    async def listens(self, pid: int, port: int) -> bool:
        return False

    async def read_log(self, name: str, start: int, count: int) -> Any:
        return SimpleNamespace(text="nothing yet\n")


async def started(name: str, role: ProcessRole, why_not: DllmError | None) -> None:
    """Try; a minute passes with every look at the clock."""
    machine = Machine(why_not)
    builder: Any = Builder.__new__(Builder)
    builder._machines = SimpleNamespace(get=lambda name: machine)
    builder._steps = StepBoard(lambda: 0.0, lambda: None)
    builder._steps.reset(Step(id=name, title=name))
    builder._discovery = SimpleNamespace(listen_s=LISTEN_S)
    minutes = itertools.count()
    builder._clock = lambda: 60.0 * next(minutes)
    spec = ProcessSpec(name=f"default/{name}", role=role, argv=("rpc-server",))
    node = Node(machine="ada", short_name=name, spec=spec)
    await builder._standing(node, {}, (node,))


@pytest.mark.parametrize(
    ("name", "role", "worker"),
    [
        ("ada", ProcessRole.WORKER, "ada"),
        ("worker-relay-ada", ProcessRole.WORKER_RELAY, "ada"),
        ("relay-ada", ProcessRole.RELAY, ""),
    ],
)
@pytest.mark.parametrize(
    "why_not", [HostError("ada: no space left"), PeerUnreachable("ada is away"), None]
)
async def test_an_error_tells_without_which_worker_one_can_do(
    name: str, role: ProcessRole, worker: str, why_not: DllmError | None
) -> None:
    with pytest.raises(type(why_not) if why_not else NeverListened) as raised:
        await started(name, role, why_not)
    assert raised.value.worker == worker
    if why_not is None:
        assert raised.value.what == f"{name} runs but does not listen on port 5000"


def test_what_listened_before_has_less_time_to_do_so_again() -> None:
    discovery: Any = Discovery.__new__(Discovery)
    discovery._has_served = lambda: False
    assert discovery.listen_s == LISTEN_S
    discovery._has_served = lambda: True
    assert discovery.listen_s == LISTEN_AGAIN_S < LISTEN_S
