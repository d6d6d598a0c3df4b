"""Being told: ends, arrivals, removals, without a question; and silence otherwise."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from backends.state import ProcessState
from tests.kit.processes import words_of
from tests.kit.waiting import PATIENCE_S, until
from tests.unit.machines.processes import (
    IGNORES_TERM,
    exists,
    first_line,
    python,
    shell,
    spec,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from backends.machines.agent import AgentSession

    OpenHost = Callable[..., AgentSession]

IDLE_S = 3.0
GRACE_S = 3.0


def agent_of(run_dir: Path) -> int:
    """The agent over a run directory."""
    for process in psutil.process_iter():
        if words_of(process)[1:] == ["host", "--run-dir", str(run_dir)]:
            return process.pid
    raise AssertionError("there is no agent")


def names(host: AgentSession) -> list[str]:
    return [record.name for record in host.seen]


async def told_after_s(host: AgentSession, name: str) -> float:
    """Seconds until the kill of a new process is told, without a question."""
    started = await host.start(spec(name))
    told = asyncio.Event()
    unsubscribe = host.subscribe(told.set)
    began = time.monotonic()
    os.kill(started.pid, signal.SIGKILL)
    while (seen := {each.name: each for each in host.seen}[name]).alive:
        await asyncio.wait_for(told.wait(), PATIENCE_S)
        told.clear()
    took_s = time.monotonic() - began
    unsubscribe()
    assert seen.state is ProcessState.EXITED
    assert seen.exit_signal == signal.SIGKILL
    return took_s


async def test_a_killed_process_is_told_of_within_a_second(host: AgentSession) -> None:
    """At least one of three: a machine that is shared may stand still for longer."""
    names = ("default/w1", "default/w2", "default/w3")
    assert min([await told_after_s(host, name) for name in names]) < 1.0


async def test_an_end_is_told_with_its_exit_status(host: AgentSession) -> None:
    told: list[int | None] = []
    host.subscribe(lambda: told.extend(r.exit_code for r in host.seen if not r.alive))
    await host.start(spec(argv=shell("exit 3")))
    await until(lambda: bool(told), "the end")
    assert set(told) == {3}


async def test_what_another_one_does_is_told(
    host: AgentSession, run_dir: Path, open_host: OpenHost
) -> None:
    """A second head, or a person, at the same directories."""
    await host.connect()
    other = open_host(run_dir)
    await other.start(spec("default/w"))
    await until(lambda: names(host) == ["default/w"], "the arrival")
    await other.stop("default/w")
    await until(lambda: not host.seen[0].alive, "the end")
    await other.remove("default/w")
    await until(lambda: names(host) == [], "the removal")
    await other.start(spec("default/w"))
    await until(lambda: names(host) == ["default/w"], "the next arrival")
    shutil.rmtree(run_dir)
    await until(lambda: names(host) == [], "the loss of everything")
    await other.stop("default/w")


async def test_stopping_is_seen(host: AgentSession) -> None:
    await host.start(spec(argv=python(IGNORES_TERM)))
    await first_line(host)
    states: set[ProcessState] = set()
    host.subscribe(lambda: states.update(r.state for r in host.seen))
    await host.stop("p", grace_s=0.2)
    assert states == {
        ProcessState.STOPPING, ProcessState.EXITED,
    }  # fmt: skip


async def test_what_is_being_stopped_is_known_to_everybody_until_it_is_gone(
    host: AgentSession, run_dir: Path, open_host: OpenHost
) -> None:
    """Also when who asked waits no longer: nobody may count on that process."""
    await host.start(spec(argv=python(IGNORES_TERM)))
    await first_line(host)
    asked = asyncio.create_task(host.stop("p", grace_s=1.0))
    await asyncio.sleep(0.05)
    asked.cancel()
    await asyncio.wait([asked])
    assert asked.cancelled()
    other = open_host(run_dir)
    (told,) = await other.records()
    assert told.state is ProcessState.STOPPING
    assert host.seen[0].state is ProcessState.STOPPING
    await until(lambda: not host.seen[0].alive, "the end")
    started = await host.start(spec())
    assert started.state is ProcessState.RUNNING


async def test_a_subscription_ends(host: AgentSession) -> None:
    told: list[str] = []
    ends = [host.subscribe(lambda: told.append("x")) for _ in range(2)]
    for end in (*ends, *ends):
        end()
    await host.start(spec())
    assert told == []


async def test_an_agent_that_dies_is_started_again(
    host: AgentSession, run_dir: Path
) -> None:
    """By itself, and it tells what happened meanwhile; what it started lives on."""
    started = await host.start(spec("default/w"))
    other = await host.start(spec("default/v"))
    agent = agent_of(run_dir)
    os.kill(agent, signal.SIGSTOP)
    os.kill(other.pid, signal.SIGKILL)
    os.kill(agent, signal.SIGKILL)
    alive = {"default/v": False, "default/w": True}
    await until(lambda: {r.name: r.alive for r in host.seen} == alive, "the news")
    assert exists(started.pid)
    assert (await host.records())[1].pid == started.pid
    assert agent_of(run_dir) != agent


async def test_the_agent_ends_with_us(host: AgentSession, run_dir: Path) -> None:
    started = await host.start(spec())
    agent = agent_of(run_dir)
    await host.close()
    assert not exists(agent)
    assert exists(started.pid)


def io_of(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return {name: int(value) for name, value in (line.split(": ") for line in lines)}


def children_of(pid: int) -> str:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text()


def switches_of(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)


async def is_still(agent: int) -> bool:
    """Whether it reads, writes and computes nothing for a while, and is not woken."""
    before = (io_of(agent), switches_of(agent), psutil.Process(agent).cpu_times())
    deadline = time.monotonic() + IDLE_S
    while time.monotonic() < deadline:
        assert children_of(agent) == ""
        await asyncio.sleep(0.05)
    after = (io_of(agent), switches_of(agent), psutil.Process(agent).cpu_times())
    return before == after


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_nothing_happens_where_nothing_happens(
    host: AgentSession, run_dir: Path
) -> None:
    """No message, no write, no child, and the agent is not even woken: it waits."""
    await host.start(spec("default/w"))
    await host.start(
        spec("default/logs", argv=shell("while :; do echo x; sleep .1; done"))
    )
    await host.start(spec("default/ended", argv=("true",)))
    await until(lambda: not {r.name: r.alive for r in host.seen}["default/ended"])
    await asyncio.sleep(0.5)
    told: list[str] = []
    host.subscribe(lambda: told.append("news"))
    agent = agent_of(run_dir)
    # Where the whole machine stood still meanwhile, it was woken once; no more often.
    assert await is_still(agent) or await is_still(agent) or await is_still(agent)
    assert told == []


async def test_messages_are_not_held_up_by_a_slow_stop(host: AgentSession) -> None:
    for name in ("default/a", "default/b"):
        await host.start(spec(name, argv=python(IGNORES_TERM)))
        await first_line(host, name)
    began = time.monotonic()
    stops = [
        asyncio.create_task(host.stop(name, grace_s=GRACE_S))
        for name in ("default/a", "default/b")
    ]
    await asyncio.sleep(0.1)
    await host.records()
    assert not any(stop.done() for stop in stops)
    await asyncio.gather(*stops)
    # Nor does one stop wait for the other.
    assert time.monotonic() - began < 2 * GRACE_S
