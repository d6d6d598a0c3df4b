"""A controller that dies loses nothing: adoption, orphans, damaged directories."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backends.errors import MachineError
from backends.paths import relay_binary
from backends.state import ProcessRole, ProcessState
from tests.kit.processes import exists
from tests.unit.machines.processes import (
    SLEEPER,
    known,
    shell,
    spec,
    wait_ended,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from backends.machines.agent import AgentSession

    OpenAgent = Callable[..., AgentSession]

ROOT = Path(__file__).resolve().parents[3]

CONTROLLER = """
import asyncio, os, signal, sys
from pathlib import Path
from backends.machines.agent import ProcessSpec
from backends.machines.local import local_agent
from backends.state import ProcessRole

async def main():
    agent = local_agent(Path(sys.argv[1]))
    for number in range(3):
        await agent.start(ProcessSpec(
            name=f"w{number}", role=ProcessRole.WORKER, argv=("sleep", "600"),
            port=50000 + number,
        ))
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.usefixtures("forking")
async def test_a_killed_controller_leaves_everything_running(
    run_dir: Path, open_agent: OpenAgent
) -> None:
    controller = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CONTROLLER, str(run_dir), cwd=ROOT
    )
    assert await controller.wait() == -signal.SIGKILL
    agent = open_agent(run_dir)
    records = await agent.records()
    assert [(r.name, r.port, r.alive) for r in records] == [
        ("w0", 50000, True), ("w1", 50001, True), ("w2", 50002, True),
    ]  # fmt: skip
    assert {(r.role, r.argv) for r in records} == {(ProcessRole.WORKER, SLEEPER)}
    for record in records:
        await agent.stop(record.name)
        await agent.remove(record.name)
    assert os.listdir(run_dir) == []
    assert not any(exists(record.pid) for record in records)


@pytest.mark.usefixtures("forking")
async def test_what_is_lent_ends_with_a_killed_lender(
    run_dir: Path, open_agent: OpenAgent
) -> None:
    """It cannot end anything any more: its agent does."""
    lender = CONTROLLER.replace("sys.argv[1])", "sys.argv[1]), stop_at_end=True")
    assert lender != CONTROLLER
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", lender, str(run_dir), cwd=ROOT
    )
    assert await process.wait() == -signal.SIGKILL
    agent = open_agent(run_dir)
    for number in range(3):
        await wait_ended(agent, f"w{number}")
    records = await agent.records()
    assert len(records) == 3
    assert not any(exists(record.pid) for record in records)


async def test_what_was_started_meanwhile_ends_with_it(
    agent: AgentSession, run_dir: Path, tmp_path: Path
) -> None:
    """Its first look finds nothing yet."""
    await agent.start(spec())
    command = (str(relay_binary()), "agent", "--run-dir", str(run_dir), "--stop-at-end")
    for _ in range(5):
        (run_dir / "p").rename(tmp_path / "aside")
        other = await asyncio.create_subprocess_exec(
            *command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        await asyncio.sleep(0.2)
        # On a busy machine we may come too late, and try again.
        with contextlib.suppress(ProcessLookupError):
            other.send_signal(signal.SIGSTOP)
        looks = exists(other.pid)
        (tmp_path / "aside").rename(run_dir / "p")
        with contextlib.suppress(ProcessLookupError):
            other.send_signal(signal.SIGCONT)
        await other.wait()
        if looks:
            break
    assert looks
    await wait_ended(agent)


TURNED_BACK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *told) {
  static int hours;
  int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
  int failed = real(id, told);
  if (id == CLOCK_REALTIME) told->tv_sec -= 3600L * hours++;
  return failed;
}
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs LD_PRELOAD")
async def test_a_clock_that_is_turned_back_delays_no_end(
    run_dir: Path, tmp_path: Path
) -> None:
    shim = tmp_path / "clock.so"
    source = tmp_path / "clock.c"
    source.write_text(TURNED_BACK)
    built = await asyncio.create_subprocess_exec(
        "cc", "-shared", "-fPIC", str(source), "-o", str(shim), "-ldl"
    )
    assert await built.wait() == 0
    agent = await asyncio.create_subprocess_exec(
        *(str(relay_binary()), "agent", "--run-dir", str(run_dir), "--stop-at-end"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "LD_PRELOAD": str(shim)},
    )
    try:
        async with asyncio.timeout(60):
            assert await agent.wait() == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            agent.kill()


async def test_lost_directory_makes_orphan(
    agent: AgentSession, run_dir: Path, tmp_path: Path, open_agent: OpenAgent
) -> None:
    started = await agent.start(spec())
    assert await agent.orphans() == []
    shutil.rmtree(run_dir / "p")
    assert await agent.record("p") is None
    (orphan,) = await agent.orphans()
    assert (orphan.name, orphan.pid, orphan.argv) == ("p", started.pid, SLEEPER)
    for folder in (tmp_path / "ru", tmp_path / "run2", tmp_path / "elsewhere"):
        assert await open_agent(folder).orphans() == [], "those of others"
    assert await agent.stop(orphan.name) is None
    assert not exists(started.pid)
    assert await agent.orphans() == []


async def test_a_run_directory_behind_a_link(
    run_dir: Path, tmp_path: Path, open_agent: OpenAgent
) -> None:
    os.mkdir(run_dir)
    os.symlink(run_dir, tmp_path / "link")
    agent = open_agent(tmp_path / "link")
    started = await agent.start(spec())
    shutil.rmtree(run_dir / "p")
    assert [orphan.pid for orphan in await agent.orphans()] == [started.pid]


async def test_a_damaged_record_hides_nothing_else(
    agent: AgentSession, run_dir: Path
) -> None:
    await agent.start(spec("good"))
    broken = await agent.start(spec("bad"))
    (run_dir / "bad/process.json").write_bytes(b"{")
    bad, good = await agent.records()
    assert good.alive
    assert (bad.name, bad.state, bad.pid) == ("bad", ProcessState.EXITED, 0)
    assert [orphan.pid for orphan in await agent.orphans()] == [broken.pid]
    await agent.stop("bad")
    assert not exists(broken.pid)
    await agent.remove("bad")
    assert [record.name for record in await agent.records()] == ["good"]


async def test_records_of_others_are_read(agent: AgentSession, run_dir: Path) -> None:
    await agent.start(spec())
    path = run_dir / "p/process.json"
    fields = {**json.loads(path.read_text()), "future": 1, "meta": "not json"}
    path.write_text(json.dumps(fields))
    record = await known(agent)
    assert (record.alive, record.role, record.port) == (True, ProcessRole.OTHER, None)


# --- Clusters in the run directory, and foreign files ---


async def test_names_are_those_of_a_cluster(agent: AgentSession, run_dir: Path) -> None:
    one = await agent.start(spec("one/w"))
    two = await agent.start(spec("two/w"))
    assert one.log_path == str(run_dir / "one/w/log")
    assert [record.name for record in await agent.records()] == ["one/w", "two/w"]
    await agent.stop("one/w")
    assert not exists(one.pid)
    assert exists(two.pid)
    await agent.remove("one/w")
    assert os.listdir(run_dir) == ["two"]


async def test_a_process_is_no_cluster(agent: AgentSession) -> None:
    await agent.start(spec("a"))
    await agent.start(spec("b/c"))
    with pytest.raises(MachineError, match="a is a process, not a cluster"):
        await agent.start(spec("a/b"))
    with pytest.raises(MachineError, match=r"b did not start .*it holds 'c'"):
        await agent.start(spec("b"))
    with pytest.raises(MachineError, match=r"b cannot be deleted \(it holds c\)"):
        await agent.remove("b")
    assert [r.name for r in await agent.records()] == ["a", "b/c"]


async def test_foreign_files_stay(agent: AgentSession, run_dir: Path) -> None:
    """A slip must never delete what is not ours."""
    await agent.start(spec("default/w", argv=("true",)))
    await wait_ended(agent, "default/w")
    (run_dir / "default/w/thesis.txt").write_text("years of work")
    (run_dir / "default/w/photos").mkdir()
    with pytest.raises(MachineError, match=r"it holds photos, thesis\.txt"):
        await agent.remove("default/w")
    assert sorted(os.listdir(run_dir / "default/w")) == ["photos", "thesis.txt"]
    assert await agent.record("default/w") is None


async def test_a_link_is_not_followed_to_be_deleted(
    agent: AgentSession, run_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "log").write_text("not ours")
    os.makedirs(run_dir / "p")
    (run_dir / "p/log").symlink_to(tmp_path / "log")
    await agent.remove("p")
    assert (tmp_path / "log").read_text() == "not ours"


async def test_bytes_in_arguments_arrive_and_can_be_shown(agent: AgentSession) -> None:
    """A file name need not be text."""
    print_it = 'printf %s "$1" | od -An -tx1'
    await agent.start(spec(argv=(*shell(print_it), "sh", "a\udcff\udc80é")))
    await wait_ended(agent)
    assert (await agent.read_log("p", 0, 100)).text == " 61 ff 80 c3 a9\n"
    assert (await known(agent)).argv[-1] == "a\ufffd\ufffdé"


async def test_asking_a_program(agent: AgentSession) -> None:
    outcome = await agent.run(shell('echo "$A"; exit 3'), env={"A": "b c"})
    assert (outcome.code, outcome.stdout, outcome.timed_out) == (3, "b c\n", False)
    late = await agent.run(("sleep", "600"), timeout_s=0.1)
    assert (late.timed_out, late.code) == (True, None)
    with pytest.raises(MachineError, match="cannot execute '/no/such'"):
        await agent.run(("/no/such",))
