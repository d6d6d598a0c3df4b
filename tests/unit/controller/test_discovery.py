"""Which models the relay beside a worker is told of."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from backends.controller.discovery import Discovery
from backends.controller.journal import Record
from backends.data_place import DataPlace
from backends.engine.ask import Engine
from backends.errors import HostError
from backends.link.relay import worker_relay_argv
from backends.link.transport import LinkTransport, local_transport
from backends.machines.agent import ProcessRecord
from backends.machines.machine import LocalMachine
from backends.planning.pairing import (
    CAN_COMPRESS,
    CAN_PAIR,
    CAN_SEAL,
)
from backends.split.layout import make_split
from backends.state import (
    EngineInfo,
    EngineSource,
    ModelFile,
    ModelInfo,
    Plan,
    ProcessRole,
    ProcessState,
    Transport,
    WorkerSpec,
)
from tests.kit.clusters import Stage
from tests.unit.planning.machines import MODEL

BEFORE = "/models/before.gguf"
PLAN = Plan(
    model=MODEL.path,
    split=make_split(12, ["bob/CPU"], [13]),
    workers=(WorkerSpec(name="bob", peer="bob"),),
)


class Able:
    features = (*CAN_PAIR, CAN_SEAL, CAN_COMPRESS)
    run_dir = "/run/dllm"
    transport = Transport.LOCAL

    def __init__(self, name: str, *seen: ProcessRecord) -> None:
        self.name = name
        self.seen = seen
        self.copies: tuple[str, ...] = ()
        self.place: DataPlace | HostError = DataPlace(address="10.0.0.7")

    @property
    def host(self) -> Able:
        return self

    async def data_place(self) -> DataPlace:
        if isinstance(self.place, HostError):
            raise self.place
        return self.place

    async def connect(self) -> None:
        return

    async def free_port(self) -> int:
        return 1

    async def engine(self, *_: object) -> Engine:
        info = EngineInfo(
            directory="/e",
            server_path="/e/llama-server",
            worker_path="/e/rpc-server",
            source=EngineSource.CONFIG,
        )
        return Engine(info=info, flags=frozenset())

    async def model(self, _: str) -> ModelInfo:
        return MODEL

    async def model_path(self, _: ModelInfo) -> str:
        return MODEL.path

    searched = " in ~/.models"

    async def copies_of(self, _: ModelInfo) -> tuple[str, ...]:
        return self.copies

    def relay_program(self) -> str:
        return "/dllm-relay"

    def relay_stats(self, _: str) -> str:
        return "/stats"

    async def way_to(self, port: int, _: object) -> LinkTransport:
        return local_transport(port)

    async def way_from(self, way: LinkTransport, _: object) -> LinkTransport:
        return way


def beside(model: str, direct: str = "") -> ProcessRecord:
    """The relay that runs beside bob's worker, with that model, and met there."""
    return ProcessRecord(
        name="default/worker-relay-bob",
        role=ProcessRole.WORKER_RELAY,
        state=ProcessState.RUNNING,
        pid=7,
        argv=worker_relay_argv(
            "/dllm-relay",
            worker="bob",
            listen_port=2,
            rpc_server="127.0.0.1:1",
            models=[model],
            key_file="/private",
            direct=direct,
        ),
        port=2,
    )


def discovery_of(
    folder: Path, machines: dict[str, Able], *, has_served: bool
) -> Discovery:
    context = Stage(folder, Record(server="7@1" if has_served else "")).context
    context.machines = cast("Any", SimpleNamespace(get=machines.__getitem__))
    return Discovery(context)


@pytest.mark.parametrize(
    ("copies", "has_served", "told", "why"),
    [
        ((), False, (), "bob has no copy of the model in ~/.models: its weights cross"),
        ((), True, (BEFORE,), "bob has the model on disk"),
        ((BEFORE,), True, (BEFORE,), "bob has the model on disk"),
        (("/new.gguf",), True, ("/new.gguf",), "bob has the model on disk"),
    ],
)
async def test_what_an_earlier_goal_s_relay_was_told_of_is_no_copy(
    tmp_path: Path,
    copies: tuple[str, ...],
    has_served: bool,
    told: tuple[str, ...],
    why: str,
) -> None:
    bob = Able("bob", beside(BEFORE))
    bob.copies = copies
    machines = {"local": Able("local"), "bob": bob}
    facts = await discovery_of(tmp_path, machines, has_served=has_served).facts(PLAN)
    pairing = facts.pairings["bob"]
    assert pairing.models == told
    assert pairing.why.startswith(why)


HERE = "[fd00::7]:4711"
NOWHERE = "its relay was started without another address"


@pytest.mark.parametrize(
    ("direct", "now", "found", "why"),
    [
        (HERE, DataPlace(address="10.0.0.7"), HERE, ""),
        (HERE, DataPlace(why="its sshd does not say"), HERE, ""),
        (HERE, HostError("bob opens no further session"), HERE, ""),
        ("", DataPlace(address="10.0.0.7"), "", NOWHERE),
        ("", DataPlace(why="its sshd does not say"), "", "its sshd does not say"),
    ],
)
async def test_a_relay_that_serves_is_left_where_it_listens(
    tmp_path: Path, direct: str, now: DataPlace | HostError, found: str, why: str
) -> None:
    bob = Able("bob", beside(BEFORE, direct))
    bob.place = now
    machines = {"local": Able("local"), "bob": bob}
    facts = await discovery_of(tmp_path, machines, has_served=True).facts(PLAN)
    data = facts.pairings["bob"].data
    assert (data.endpoint(2), data.why) == (found, why)


async def test_a_goal_that_has_not_served_looks_where_its_relays_are_met(
    tmp_path: Path,
) -> None:
    bob = Able("bob", beside(BEFORE, HERE))
    machines = {"local": Able("local"), "bob": bob}
    facts = await discovery_of(tmp_path, machines, has_served=False).facts(PLAN)
    assert facts.pairings["bob"].data == DataPlace(address="10.0.0.7")


def file(path: str, size_bytes: int = 9, problem: str = "") -> ModelFile:
    return ModelFile(
        path=path,
        name="m",
        size_bytes=size_bytes,
        source="models",
        problem=problem,
    )


FOUND = (
    file("/b/m.gguf"),
    file("/a/m.gguf"),
    file("/a/other.gguf"),
    file("/c/m.gguf", size_bytes=8),
    file("/d/m.gguf", problem="it is truncated"),
)


async def test_this_machine_may_hold_what_is_read_at_a_peer() -> None:
    nothing = cast("Any", None)
    here = LocalMachine(nothing, nothing, nothing, lambda: FOUND)
    there = replace(MODEL, path="ada:/x/m.gguf", size_bytes=9)
    assert await here.copies_of(there) == ("/a/m.gguf", "/b/m.gguf")
    read = replace(MODEL, path="/x/m.gguf", size_bytes=9)
    assert await here.copies_of(read) == ("/x/m.gguf",)
