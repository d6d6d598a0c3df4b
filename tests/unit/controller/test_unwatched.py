"""What a controller blames that takes over a cluster nobody watched for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from backends.controller.unwatched import ended_unwatched
from backends.errors import HostError
from backends.machines.host import ProcessRecord
from backends.planning.blueprint import needed_names
from backends.split.layout import make_split
from backends.state import Plan, ProcessRole, ProcessState, WorkerSpec

if TYPE_CHECKING:
    from backends.state import Failure

PLAN = Plan(
    model="/m.gguf",
    split=make_split(12, ["bob/CPU"], [13]),
    workers=(WorkerSpec(name="bob", peer="bob"),),
)


class Everywhere:
    """Machines on which all of a plan was started, and some of it ended."""

    def __init__(self, *ended: str) -> None:
        self.ended = ended

    def get(self, name: str) -> Everywhere:
        return self

    @property
    def host(self) -> Everywhere:
        return self

    async def record(self, name: str) -> ProcessRecord:
        ended = name.removeprefix("default/") in self.ended
        return ProcessRecord(
            name=name,
            role=ProcessRole.OTHER,
            state=ProcessState.EXITED if ended else ProcessState.RUNNING,
            pid=1,
            argv=(),
            exit_signal=9 if ended else None,
        )

    async def read_log(self, *_: object) -> None:
        raise HostError("There is none")


async def blamed(*ended: str) -> Failure | None:
    machines = cast("Any", Everywhere(*ended))
    return await ended_unwatched("default", PLAN, machines, 1.0)


@pytest.mark.parametrize("name", ["worker-relay-bob", "relay-bob", "llama-server"])
async def test_what_is_started_again_with_the_tunnels_is_not_to_blame(
    name: str,
) -> None:
    assert name in needed_names(PLAN)
    assert await blamed(name) is None


async def test_a_worker_is_to_blame_before_its_relay() -> None:
    failure = await blamed("bob", "worker-relay-bob")
    assert failure is not None
    assert failure.process == "bob"
