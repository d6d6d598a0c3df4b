"""What is known of processes follows the machines, and who tells of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, MagicMock

import msgspec
import pytest
from aiohttp.test_utils import make_mocked_request
from msgspec.structs import replace

from backends.config import Config
from backends.controller import processes as module
from backends.controller.api import Api
from backends.controller.clusters import Clusters
from backends.controller.exit_reasons import failure_of
from backends.controller.processes import ProcessBook, usage_of
from backends.machines.agent import ProcessRecord
from backends.paths import Paths
from backends.state import (
    ClusterSnapshot,
    LogChunk,
    ProcessInfo,
    ProcessRole,
    ProcessState,
)
from tests.kit.machines import Cast, FakeAgent


def running(**names: str) -> Cast:
    """Machines with a process each."""
    machines = Cast(*(machine for machine in names if machine != "local"))
    for machine, name in names.items():
        machines.appears(machine, name, ProcessRole.WORKER)
    return machines


def test_a_machine_taken_from_the_settings_is_forgotten() -> None:
    machines = running(local="w", ada="x")
    book = ProcessBook(cast("Any", machines), lambda: None)
    book.take()
    gone = machines.machines.pop("ada").processes
    book.take()
    assert [one.name for one in book.of("default")] == ["w"]
    assert not book.knows("ada")
    assert not gone._subscribers


def test_another_agent_of_a_machine_is_listened_to() -> None:
    """As after an installation there, however quickly that one came."""
    news: list[int] = []
    machines = running(ada="w")
    book = ProcessBook(cast("Any", machines), lambda: news.append(1))
    book.take()
    ada = machines.machines["ada"]
    before, ada._agent = ada.processes, FakeAgent(ada)
    book.take()
    book.take()
    assert not before._subscribers
    ada.processes.tell()
    assert news == [1]


@pytest.mark.parametrize(("worker", "told"), [("w", "ours"), ("controller", "its")])
async def test_a_worker_may_be_named_controller(
    tmp_path: Path, worker: str, told: str
) -> None:
    parts: Any = MagicMock()
    parts.inventory.paths.controller_log = tmp_path / "controller.log"
    parts.inventory.paths.controller_log.write_text("ours")
    its = LogChunk(name="controller", text="its", offset=0, next_offset=3)
    parts.peers.get.return_value.agent.read_log = AsyncMock(return_value=its)
    one = ProcessInfo(name=worker, role=ProcessRole.WORKER, state=ProcessState.RUNNING)
    snapshot = ClusterSnapshot(processes=(one,))
    parts.cluster_of.return_value = SimpleNamespace(
        name="default", store=SimpleNamespace(snapshot=snapshot)
    )
    asked = make_mocked_request("GET", "/", match_info={"name": "controller"})
    answer = await Api(parts)._log(asked)
    assert msgspec.json.decode(cast("bytes", answer.body), type=LogChunk).text == told


async def test_a_gateway_that_hangs_is_told_though_its_process_runs(
    monkeypatch: pytest.MonkeyPatch, paths: Paths
) -> None:
    monkeypatch.setattr(Clusters, "plans", [None])
    machines = cast("Any", running(local="api-gateway"))
    clusters = Clusters(cast("Any", SimpleNamespace(settings=Config)), paths)
    clusters.book = book = ProcessBook(machines, lambda: None)
    book.take()
    gateway = SimpleNamespace(is_silent=True)
    store = SimpleNamespace(update=lambda **_: None)
    cluster = SimpleNamespace(name="default", gateway=gateway, store=store)
    clusters._clusters["default"] = cast("Any", cluster)
    await clusters.look_for_silent()
    (shown,) = book.of("default")
    assert shown.state is ProcessState.NOT_RESPONDING
    gateway.is_silent = False
    await clusters.look_for_silent()
    assert [event.text for event in clusters.event_log.after(0)] == [
        "api-gateway does not respond: something holds it",
        "api-gateway responds again",
    ]


async def test_what_does_not_respond_is_told_and_told_again_when_it_does(
    monkeypatch: pytest.MonkeyPatch, paths: Paths
) -> None:
    monkeypatch.setattr(module, "LISTEN_S", 0.01)
    monkeypatch.setattr(Clusters, "plans", [None])
    machines = running(local="x", ada="w")
    ada = machines.machines["ada"].processes
    clusters = Clusters(cast("Any", SimpleNamespace(settings=Config)), paths)
    clusters.book = ProcessBook(cast("Any", machines), lambda: None)
    clusters.book.take()
    shown: list[ProcessState] = []

    async def frozen() -> Any:
        await asyncio.Event().wait()

    for state, is_frozen in (
        (ProcessState.NOT_RESPONDING, False),
        (ProcessState.NOT_RESPONDING, True),
        (ProcessState.RUNNING, False),
    ):
        ada.put(replace(ada.seen[0], state=state))
        with monkeypatch.context() as patched:
            if is_frozen:
                patched.setattr(ada, "records", frozen)
            for _ in range(2):
                await clusters.look_for_silent()
        shown += [p.state for p in clusters.book.of("default") if p.name == "w"]
    silent = ProcessState.NOT_RESPONDING
    assert shown == [silent, silent, ProcessState.RUNNING]
    assert [event.text for event in clusters.event_log.after(0)] == [
        "w on ada does not respond: something holds it",
        "agent on ada does not respond: something holds it",
        "agent on ada responds again",
        "w on ada responds again",
    ]


# --- usage -------------------------------------------------------------------------

MIB = 1 << 20


def record(cpu_ms: int | None, rss_bytes: int | None = 5 * MIB) -> ProcessRecord:
    return ProcessRecord(
        name="default/worker1",
        role=ProcessRole.WORKER,
        state=ProcessState.RUNNING,
        pid=7,
        argv=("rpc-server",),
        rss_bytes=rss_bytes,
        cpu_ms=cpu_ms,
    )


def test_one_reading_tells_no_rate() -> None:
    assert usage_of(record(4000), 10.0, None).cpu_cores is None


@pytest.mark.parametrize(
    ("later_ms", "passed_s", "cores"),
    [(4000, 5.0, 0.0), (9000, 5.0, 1.0), (19000, 5.0, 3.0), (4012, 5.0, 0.0)],
)
def test_two_readings_tell_the_cores_kept_busy(
    later_ms: int, passed_s: float, cores: float
) -> None:
    before = usage_of(record(4000), 10.0, None)
    assert usage_of(record(later_ms), 10.0 + passed_s, before).cpu_cores == cores


def test_a_reading_soon_after_counts_with_the_next() -> None:
    first = usage_of(record(0), 10.0, None)
    second = usage_of(record(5000), 15.0, first)
    soon = usage_of(record(5010), 15.1, second)
    assert soon.cpu_cores == 1.0
    assert usage_of(record(7500), 20.0, soon).cpu_cores == 0.5


def test_memory_counts_in_whole_mib() -> None:
    told = usage_of(record(0, rss_bytes=5 * MIB + 4096), 1.0, None)
    assert told.rss_bytes == 5 * MIB
    assert usage_of(record(0, rss_bytes=None), 1.0, None).rss_bytes is None


# --- What is told of a process that ended: the reason, and what to do about it ---

DATA = Path(__file__).parents[1] / "engine" / "data"


class LogAgent:
    def __init__(self, log: str) -> None:
        self._log = log

    async def read_log(self, name: str, offset: int, limit_bytes: int) -> LogChunk:
        return LogChunk(name=name, text=self._log, offset=0, next_offset=len(self._log))


def ended(code: int | None = 1) -> ProcessRecord:
    return ProcessRecord(
        name="default/llama-server",
        role=ProcessRole.SERVER,
        state=ProcessState.EXITED,
        pid=1,
        argv=("/my engines/llama-server", "-m", "m.gguf", "--frobnicate"),
        exit_code=code,
    )


@pytest.mark.parametrize(
    ("log", "flag"), [("badarg", "--frobnicate"), ("badval", "-c")]
)
async def test_a_refused_argument_is_named_with_where_the_others_stand(
    log: str, flag: str
) -> None:
    agent = LogAgent((DATA / f"fail_{log}.log").read_text())
    failure = await failure_of(cast("Any", agent), ended())
    assert flag in failure.what
    assert f"Leave {flag} out of the further arguments" in failure.hint
    assert "'/my engines/llama-server' --help" in failure.hint


async def test_another_end_is_to_be_read_in_the_log() -> None:
    agent = LogAgent((DATA / "fail_trunc.log").read_text())
    failure = await failure_of(cast("Any", agent), ended())
    assert failure.hint == "Launch again; if it repeats, its log says why."


async def test_what_clients_asked_is_not_among_the_last_words() -> None:
    """As both engines print it for requests that they cannot read."""
    log = """\
0.03.149.990 W srv    operator(): got exception: {"error":{"message":"my secret"}}
0.03.166.580 I slot print_timing: id  3 | task 0 | prompt eval time = 5.70 ms
parse: error parsing grammar: expecting ::= at my secret

root ::= [secret
"secret too
0.03.169.907 E failed to parse grammar
/src/ggml.c:9: GGML_ASSERT(ne > 0) failed
"""
    failure = await failure_of(cast("Any", LogAgent(log)), ended())
    assert failure.log_tail == (
        "0.03.149.990 W srv    operator(): got exception: …",
        "0.03.166.580 I slot print_timing: id  3 | task 0 | prompt eval time = 5.70 ms",
        "parse: error parsing grammar: …",
        "0.03.169.907 E failed to parse grammar",
        "/src/ggml.c:9: GGML_ASSERT(ne > 0) failed",
    )


async def test_a_load_from_a_sparse_file_ends_with_the_relays_reason() -> None:
    """Of a relay of this cluster, and of what it said last."""

    class Logs(LogAgent):
        seen = tuple(
            msgspec.structs.replace(ended(), name=name, role=ProcessRole.RELAY)
            for name in ("other/relay-a", "default/relay-b", "default/relay-mini")
        )
        logs = {
            "other/relay-a": "dllm-relay: a: x is a hole in the sparse file here",
            "default/relay-b": "dllm-relay: b: linked with the relay of b",
            "default/relay-mini": "2026-01-31T23:59:59.123Z E "
            "dllm-relay: mini: y is a hole in the sparse file here",
        }

        async def read_log(self, name: str, *rest: int) -> LogChunk:
            text = self.logs.get(name, self._log)
            return LogChunk(name=name, text=text, offset=0, next_offset=len(text))

    agent = Logs("Remote RPC server crashed or returned malformed response")
    failure = await failure_of(cast("Any", agent), ended(None))
    assert failure.what.endswith(": mini: y is a hole in the sparse file here")
    assert failure.hint.startswith("Put the model there, or a sparse file")
    agent.seen = agent.seen[:2]
    failure = await failure_of(cast("Any", agent), ended(None))
    assert failure.what.endswith(": a worker died or closed the connection")


def test_restarts_count_from_when_a_goal_first_served() -> None:
    machines = running(local="w", ada="x")
    book = ProcessBook(cast("Any", machines), lambda: None)

    def begins_again(pid: int) -> None:
        agent = machines.machines["ada"].processes
        agent.put(replace(agent.processes["default/x"], pid=pid))
        book.take()

    def restarts() -> list[int]:
        return [one.restarts for one in book.of("default")]

    book.take()
    begins_again(7)
    book.settle("default", 1)
    assert restarts() == [0, 0]
    begins_again(8)
    begins_again(9)
    # It serves again: the goal is the same.
    book.settle("default", 1)
    assert restarts() == [0, 2]
    book.settle("default", 2)
    assert restarts() == [0, 0]
