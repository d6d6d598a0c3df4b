"""Stopping: TERM, patience, KILL, and nothing left; never anybody else."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from backends.machines import agent as agent_host
from backends.state import ProcessState
from tests.unit.machines.processes import (
    IGNORES_TERM,
    LEAVES_A_STRAY,
    SAYS_GOODBYE,
    exists,
    first_line,
    python,
    shell,
    spec,
    stray_in_a_lost_session,
    wait_ended,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from backends.machines.agent import AgentSession


def supervisor_of(run_dir: Path) -> int:
    record = json.loads((run_dir / "p/process.json").read_text())
    return int(record["supervisor_pid"])


def edit(run_dir: Path, **changes: object) -> None:
    path = run_dir / "p/process.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def next_tick() -> None:
    """Wait until what starts now has another start time than what ran before.

    A start time counts ticks of 10 ms, and a number does not come round in one.
    """
    time.sleep(2 / os.sysconf("SC_CLK_TCK"))


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is none of ours, leading a group of its own."""
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


async def test_stop_ends_process_and_supervisor(
    host: AgentSession, run_dir: Path
) -> None:
    started = await host.start(spec())
    supervisor = supervisor_of(run_dir)
    began = time.monotonic()
    record = await host.stop("p")
    assert time.monotonic() - began < 20
    assert record is not None
    assert record.state is ProcessState.EXITED
    assert record.exit_signal == signal.SIGTERM
    assert not exists(started.pid)
    assert not exists(supervisor)


async def test_a_process_may_end_in_its_own_way(host: AgentSession) -> None:
    await host.start(spec(argv=python(SAYS_GOODBYE)))
    await first_line(host)
    record = await host.stop("p")
    assert record is not None
    assert record.exit_code == 4
    assert (await host.read_log("p", 0, 100)).text == "ready\nbye\n"


async def test_who_ignores_term_is_killed_after_the_grace(host: AgentSession) -> None:
    await host.start(spec(argv=python(IGNORES_TERM)))
    await first_line(host)
    began = time.monotonic()
    record = await host.stop("p", grace_s=0.3)
    assert 0.3 <= time.monotonic() - began < 20
    assert record is not None
    assert record.exit_signal == signal.SIGKILL


async def test_a_grace_beyond_all_clocks_is_a_long_one(host: AgentSession) -> None:
    """Not one that is over at once."""
    await host.start(spec(argv=python(SAYS_GOODBYE)))
    await first_line(host)
    record = await host.stop("p", grace_s=1e12)
    assert record is not None
    assert record.exit_code == 4


async def test_a_stopped_process_hears_term(host: AgentSession) -> None:
    started = await host.start(spec())
    os.kill(started.pid, signal.SIGSTOP)
    record = await host.stop("p")
    assert record is not None
    assert record.exit_signal == signal.SIGTERM


@pytest.mark.parametrize(
    "options", [(), ("session",), ("unmarked",), ("leave",), ("leave", "session")]
)
async def test_everything_it_started_goes_too(
    host: AgentSession, options: tuple[str, ...]
) -> None:
    await host.start(spec(argv=python(LEAVES_A_STRAY, *options)))
    stray = int(await first_line(host))
    if "leave" in options:
        await wait_ended(host)
    assert exists(stray)
    await host.stop("p")
    assert not exists(stray)


async def test_stopping_what_has_ended_is_fine(host: AgentSession) -> None:
    await host.start(spec(argv=shell("exit 3")))
    await wait_ended(host)
    for _ in range(2):
        record = await host.stop("p")
        assert record is not None
        assert record.exit_code == 3


async def test_two_stops_at_once_are_fine(host: AgentSession) -> None:
    await host.start(spec(argv=python(IGNORES_TERM)))
    await first_line(host)
    records = await asyncio.gather(*(host.stop("p", grace_s=0.2) for _ in range(5)))
    assert {r.exit_signal for r in records if r is not None} == {signal.SIGKILL}


async def test_a_cancelled_stop_can_be_repeated(host: AgentSession) -> None:
    await host.start(spec(argv=python(IGNORES_TERM)))
    await first_line(host)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(host.stop("p", grace_s=60), 0.1)
    record = await host.record("p")
    assert record is not None
    assert record.state is ProcessState.STOPPING
    assert not (await host.stop("p", grace_s=0)).alive  # type: ignore[union-attr]


async def test_another_process_with_its_number_is_left_alone(
    host: AgentSession, run_dir: Path, stranger: subprocess.Popen[bytes]
) -> None:
    next_tick()
    await host.start(spec(argv=("true",)))
    await wait_ended(host)
    edit(run_dir, pid=stranger.pid)
    record = await host.stop("p", grace_s=0)
    assert record is not None
    assert record.state is ProcessState.EXITED
    assert stranger.poll() is None


async def test_a_session_without_its_leader_is_not_ours_by_its_number(
    host: AgentSession, run_dir: Path
) -> None:
    """Daemons live in the session of a process long gone; numbers come round again."""
    stray, leader = stray_in_a_lost_session()
    assert os.getsid(stray) == leader
    await host.start(spec(argv=("true",)))
    await wait_ended(host)
    edit(run_dir, pid=leader)
    try:
        await host.stop("p", grace_s=0)
        assert exists(stray)
    finally:
        os.kill(stray, signal.SIGKILL)


async def test_an_unmarked_relative_that_ignores_term_is_remembered(
    host: AgentSession,
) -> None:
    """The leader that told they are related is gone when its turn comes."""
    code = "import subprocess, sys; subprocess.run(sys.argv[1:], env={})"
    started = await host.start(spec(argv=python(code, *python(IGNORES_TERM))))
    await first_line(host)
    (relative,) = psutil.Process(started.pid).children()
    await host.stop("p", grace_s=0.2)
    assert not exists(relative.pid)


async def test_another_supervisor_number_is_left_alone(
    host: AgentSession, run_dir: Path, stranger: subprocess.Popen[bytes]
) -> None:
    next_tick()
    await host.start(spec(argv=("true",)))
    await wait_ended(host)
    edit(run_dir, supervisor_pid=stranger.pid)
    await host.stop("p", grace_s=0)
    assert stranger.poll() is None


async def test_a_start_time_that_differs_means_ended(
    host: AgentSession, run_dir: Path
) -> None:
    await host.start(spec())
    edit(run_dir, start_id="another-boot:1")
    record = await host.record("p")
    assert record is not None
    assert (record.state, record.exit_code) == (ProcessState.EXITED, None)


async def test_a_supervisor_that_hangs_is_ended(
    host: AgentSession, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_host, "SUPERVISOR_PATIENCE_S", 0.2)
    await host.start(spec())
    supervisor = supervisor_of(run_dir)
    os.kill(supervisor, signal.SIGSTOP)
    record = await host.stop("p")
    assert record is not None
    assert not record.alive
    assert not exists(supervisor)


async def test_a_killed_supervisor_makes_no_difference_but_the_exit_status(
    host: AgentSession, run_dir: Path
) -> None:
    started = await host.start(spec())
    os.kill(supervisor_of(run_dir), signal.SIGKILL)
    record = await host.record("p")
    assert record is not None
    assert record.alive
    ended = await host.stop("p")
    assert ended is not None
    assert (ended.alive, ended.exit_code, ended.exit_signal) == (False, None, None)
    assert not exists(started.pid)


async def test_removing_right_after_a_kill(host: AgentSession, run_dir: Path) -> None:
    for _ in range(20):
        started = await host.start(spec())
        os.kill(started.pid, signal.SIGKILL)
        await wait_ended(host)
        await host.remove("p")
        assert os.listdir(run_dir) == []
