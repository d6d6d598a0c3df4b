"""Being told: ends, arrivals, removals, without a question; and silence otherwise."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from backends.machines.facts import MemoryInfo, MemoryLimit, device_of
from backends.state import DeviceKind, ProcessState
from tests.kit.processes import exists, words_of
from tests.kit.waiting import PATIENCE_S, until
from tests.unit.machines.processes import (
    IGNORES_TERM,
    first_line,
    python,
    shell,
    spec,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from backends.machines.agent import AgentSession

    OpenAgent = Callable[..., AgentSession]
    from collections.abc import Iterator

IDLE_S = 3.0


def agent_of(run_dir: Path) -> int:
    """The agent over a run directory."""
    for process in psutil.process_iter():
        if words_of(process)[1:] == ["agent", "--run-dir", str(run_dir)]:
            return process.pid
    raise AssertionError("there is no agent")


def names(agent: AgentSession) -> list[str]:
    return [record.name for record in agent.seen]


async def test_a_killed_process_is_told_of_without_a_question(
    agent: AgentSession,
) -> None:
    started = await agent.start(spec())
    told = asyncio.Event()
    agent.subscribe(told.set)
    os.kill(started.pid, signal.SIGKILL)
    while (seen := agent.seen[0]).alive:
        await asyncio.wait_for(told.wait(), PATIENCE_S)
        told.clear()
    assert seen.exit_signal == signal.SIGKILL


async def test_what_another_one_does_is_told(
    agent: AgentSession, run_dir: Path, open_agent: OpenAgent
) -> None:
    """A second head, or a person, at the same directories."""
    await agent.connect()
    other = open_agent(run_dir)
    await other.start(spec("default/w"))
    await until(lambda: names(agent) == ["default/w"], "the arrival")
    await other.stop("default/w")
    await until(lambda: not agent.seen[0].alive, "the end")
    await other.remove("default/w")
    await until(lambda: names(agent) == [], "the removal")
    await other.start(spec("default/w"))
    await until(lambda: names(agent) == ["default/w"], "the next arrival")
    shutil.rmtree(run_dir)
    await until(lambda: names(agent) == [], "the loss of everything")
    await other.stop("default/w")


async def test_what_is_being_stopped_is_known_to_everybody_until_it_is_gone(
    agent: AgentSession, run_dir: Path, open_agent: OpenAgent
) -> None:
    """Also when who asked waits no longer: nobody may count on that process."""
    await agent.start(spec(argv=python(IGNORES_TERM)))
    await first_line(agent)
    asked = asyncio.create_task(agent.stop("p", grace_s=600))
    other = open_agent(run_dir)
    while (told := (await other.records())[0]).state is ProcessState.RUNNING:
        assert not asked.done()
    assert told.state is ProcessState.STOPPING
    asked.cancel()
    await asyncio.wait([asked])
    assert asked.cancelled()
    assert agent.seen[0].state is ProcessState.STOPPING
    # Who asks again may be in a hurry.
    await agent.stop("p", grace_s=0)
    await until(lambda: not agent.seen[0].alive, "the end")
    started = await agent.start(spec())
    assert started.state is ProcessState.RUNNING


async def test_a_subscription_ends(agent: AgentSession) -> None:
    told: list[str] = []
    ends = [agent.subscribe(lambda: told.append("x")) for _ in range(2)]
    for end in (*ends, *ends):
        end()
    await agent.start(spec())
    assert told == []


async def test_a_dead_agent_is_started_again(
    agent: AgentSession, run_dir: Path
) -> None:
    """By itself, and it tells what happened meanwhile; what it started lives on."""
    started = await agent.start(spec("default/w"))
    other = await agent.start(spec("default/v"))
    pid = agent_of(run_dir)
    os.kill(pid, signal.SIGSTOP)
    os.kill(other.pid, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    alive = {"default/v": False, "default/w": True}
    await until(lambda: {r.name: r.alive for r in agent.seen} == alive, "the news")
    assert exists(started.pid)
    assert (await agent.records())[1].pid == started.pid
    assert agent_of(run_dir) != pid


async def test_the_agent_ends_with_us(agent: AgentSession, run_dir: Path) -> None:
    started = await agent.start(spec())
    pid = agent_of(run_dir)
    await agent.close()
    assert not exists(pid)
    assert exists(started.pid)


def io_of(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return {name: int(value) for name, value in (line.split(": ") for line in lines)}


def children_of(pid: int) -> str:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text()


def switches_of(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)


async def is_still(pid: int) -> bool:
    """Whether it reads, writes and computes nothing for a while, and is not woken."""
    before = (io_of(pid), switches_of(pid), psutil.Process(pid).cpu_times())
    deadline = time.monotonic() + IDLE_S
    while time.monotonic() < deadline:
        assert children_of(pid) == ""
        await asyncio.sleep(0.05)
    after = (io_of(pid), switches_of(pid), psutil.Process(pid).cpu_times())
    return before == after


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_nothing_happens_when_idle(agent: AgentSession, run_dir: Path) -> None:
    """No message, no write, no child, and the agent is not even woken: it waits."""
    await agent.start(spec("default/w"))
    await agent.start(
        spec("default/logs", argv=shell("while :; do echo x; sleep .1; done"))
    )
    await agent.start(spec("default/ended", argv=("true",)))
    await until(lambda: not {r.name: r.alive for r in agent.seen}["default/ended"])
    await asyncio.sleep(0.5)
    told: list[str] = []
    agent.subscribe(lambda: told.append("news"))
    pid = agent_of(run_dir)
    # Where the whole machine stood still meanwhile, it was woken once; no more often.
    assert await is_still(pid) or await is_still(pid) or await is_still(pid)
    assert told == []


async def test_a_slow_stop_holds_up_nothing(agent: AgentSession) -> None:
    """Neither messages nor another stop."""
    for name in ("default/slow", "default/b"):
        await agent.start(spec(name, argv=python(IGNORES_TERM)))
        await first_line(agent, name)
    slow = asyncio.create_task(agent.stop("default/slow", grace_s=600))
    await until(lambda: agent.seen[1].state is ProcessState.STOPPING, "the stop")
    assert await agent.stop("default/b", grace_s=0) is not None
    assert not slow.done()
    os.kill(agent.seen[1].pid, signal.SIGKILL)
    await slow


# --- Ports and memory of this machine ---

LISTENER = """
import socket, sys, time
s = socket.socket(); s.bind((sys.argv[1], 0)); s.listen()
print(s.getsockname()[1], flush=True); time.sleep(600)
"""


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def port_of(server: socket.socket) -> int:
    return int(server.getsockname()[1])


async def test_free_ports_are_free_and_not_given_twice(agent: AgentSession) -> None:
    found = [await agent.free_port() for _ in range(50)]
    assert len(set(found)) == 50
    for port in found:
        with socket.create_server(("127.0.0.1", port)):
            pass


async def test_who_listens(agent: AgentSession, listening: socket.socket) -> None:
    port = port_of(listening)
    assert await agent.listens(os.getpid(), port)
    assert not await agent.listens(os.getppid(), port)
    assert not await agent.listens(os.getpid(), port - 1)
    owner = await agent.port_owner(port)
    assert owner == f"{psutil.Process().name()} (pid {os.getpid()})"


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
async def test_a_started_listener(agent: AgentSession, address: str) -> None:
    record = await agent.start(spec(argv=python(LISTENER, address)))
    port = int(await first_line(agent))
    assert await agent.listens(record.pid, port)
    owner = await agent.port_owner(port)
    assert owner is not None
    assert owner.endswith(f"(pid {record.pid})")
    await agent.stop("p")
    assert not await agent.listens(record.pid, port)
    assert await agent.port_owner(port) is None


async def test_lingering_connections_leave_a_port_free(agent: AgentSession) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    address = server.getsockname()
    client = socket.create_connection(address)
    accepted, _ = server.accept()
    # Who closes first lingers in TIME_WAIT: the server's end.
    accepted.close()
    client.close()
    server.close()
    assert await agent.port_owner(address[1]) is None


GIB = 1 << 30


async def test_this_machine(agent: AgentSession) -> None:
    device = await agent.memory()
    assert (device.id, device.name, device.kind) == ("local/CPU", "CPU", DeviceKind.CPU)
    assert device.memory_pool == "local"
    assert 0 < device.free_bytes <= device.total_bytes
    assert device.total_bytes <= psutil.virtual_memory().total
    assert "core" in device.description
    assert device.budget_bytes is None


def told(*limits: tuple[int, int]) -> MemoryInfo:
    return MemoryInfo(
        total_bytes=8 * GIB,
        available_bytes=6 * GIB,
        limits=tuple(MemoryLimit(limit_bytes=a, available_bytes=b) for a, b in limits),
        cpu="Some   CPU",
        cores=4,
    )


def test_without_a_limit_it_is_the_machine_s() -> None:
    device = device_of(told(), "box")
    assert (device.total_bytes, device.free_bytes) == (8 * GIB, 6 * GIB)
    assert device.description == "Some CPU, 4 cores"


def test_the_narrowest_limit_of_all_levels_counts() -> None:
    """What is left may be least at another level than the one with the least limit."""
    device = device_of(told((4 * GIB, GIB), (2 * GIB, 2 * GIB), (100 * GIB, GIB)), "b")
    assert (device.total_bytes, device.free_bytes) == (2 * GIB, GIB)
