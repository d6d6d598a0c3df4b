"""A controller that dies loses nothing: adoption, orphans, damaged directories."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backends.machines.agent import ProcessSpec
from backends.state import ProcessRole, ProcessState
from tests.unit.machines.processes import (
    SLEEPER,
    exists,
    first_line,
    shell,
    spec,
    wait_ended,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from backends.machines.agent import AgentSession

    OpenHost = Callable[..., AgentSession]

ROOT = Path(__file__).resolve().parents[3]

CONTROLLER = """
import asyncio, os, signal, sys
from pathlib import Path
from backends.machines.agent import ProcessSpec
from backends.machines.local import local_host
from backends.state import ProcessRole

async def main():
    host = local_host(Path(sys.argv[1]))
    for number in range(3):
        await host.start(ProcessSpec(
            name=f"w{number}", role=ProcessRole.WORKER, argv=("sleep", "600"),
            port=50000 + number,
        ))
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_a_second_host_adopts(
    host: AgentSession, run_dir: Path, open_host: OpenHost
) -> None:
    first = await host.start(
        ProcessSpec(name="w", role=ProcessRole.WORKER, argv=SLEEPER, port=50052)
    )
    other = open_host(run_dir)
    (adopted,) = await other.records()
    assert (adopted.pid, adopted.port) == (first.pid, 50052)
    assert (adopted.role, adopted.argv) == (ProcessRole.WORKER, SLEEPER)
    assert adopted.alive
    await other.stop("w")
    seen = await host.record("w")
    assert seen is not None
    assert not seen.alive


async def test_a_killed_controller_leaves_everything_running(
    run_dir: Path, open_host: OpenHost
) -> None:
    controller = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CONTROLLER, str(run_dir), cwd=ROOT
    )
    assert await controller.wait() == -signal.SIGKILL
    host = open_host(run_dir)
    records = await host.records()
    assert [(r.name, r.port, r.alive) for r in records] == [
        ("w0", 50000, True), ("w1", 50001, True), ("w2", 50002, True),
    ]  # fmt: skip
    for record in records:
        await host.stop(record.name)
        await host.remove(record.name)
    assert os.listdir(run_dir) == []
    assert not any(exists(record.pid) for record in records)


async def test_killing_everything_is_survived(
    host: AgentSession, run_dir: Path, open_host: OpenHost
) -> None:
    started = await host.start(spec())
    process = json.loads((run_dir / "p/process.json").read_text())
    os.kill(process["supervisor_pid"], signal.SIGKILL)
    os.kill(started.pid, signal.SIGKILL)
    await wait_ended(host)
    record = await open_host(run_dir).record("p")
    assert record is not None
    assert (record.state, record.exit_code) == (ProcessState.EXITED, None)
    assert (await host.start(spec())).alive


async def test_a_lost_directory_makes_an_orphan(
    host: AgentSession, run_dir: Path
) -> None:
    started = await host.start(spec())
    assert await host.orphans() == []
    shutil.rmtree(run_dir / "p")
    assert await host.record("p") is None
    (orphan,) = await host.orphans()
    assert (orphan.name, orphan.pid, orphan.argv) == ("p", started.pid, SLEEPER)
    assert await host.stop(orphan.name) is None
    assert not exists(started.pid)
    assert await host.orphans() == []


async def test_relatives_of_an_ended_process_are_orphans(host: AgentSession) -> None:
    await host.start(spec(argv=shell("sleep 600 & echo $!")))
    stray = int(await first_line(host))
    await wait_ended(host)
    assert [(o.name, o.pid) for o in await host.orphans()] == [("p", stray)]


async def test_orphans_of_others_are_not_ours(
    run_dir: Path, tmp_path: Path, open_host: OpenHost
) -> None:
    other = open_host(run_dir)
    started = await other.start(spec())
    shutil.rmtree(run_dir / "p")
    for folder in (tmp_path / "ru", tmp_path / "run2", tmp_path / "elsewhere"):
        assert await open_host(folder).orphans() == []
    await other.stop("p")
    assert not exists(started.pid)


async def test_a_run_directory_behind_a_link(
    run_dir: Path, tmp_path: Path, open_host: OpenHost
) -> None:
    os.mkdir(run_dir)
    os.symlink(run_dir, tmp_path / "link")
    host = open_host(tmp_path / "link")
    started = await host.start(spec())
    shutil.rmtree(run_dir / "p")
    assert [orphan.pid for orphan in await host.orphans()] == [started.pid]


DAMAGE = [
    b"", b"{", b"null", b"[]", b"\xff\xfe", b'{"pid": "x", "start_id": 1}', b"{}",
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_damaged_record_hides_nothing_else(
    host: AgentSession, run_dir: Path, damage: bytes
) -> None:
    await host.start(spec("good"))
    broken = await host.start(spec("bad"))
    (run_dir / "bad/process.json").write_bytes(damage)
    bad, good = await host.records()
    assert good.alive
    assert (bad.name, bad.state, bad.pid) == ("bad", ProcessState.EXITED, 0)
    assert [orphan.pid for orphan in await host.orphans()] == [broken.pid]
    await host.stop("bad")
    assert not exists(broken.pid)
    await host.remove("bad")
    assert [record.name for record in await host.records()] == ["good"]


async def test_what_another_version_wrote_is_read(
    host: AgentSession, run_dir: Path
) -> None:
    await host.start(spec())
    path = run_dir / "p/process.json"
    fields = {**json.loads(path.read_text()), "future": 1, "meta": "not json"}
    path.write_text(json.dumps(fields))
    record = await host.record("p")
    assert record is not None
    assert (record.alive, record.role, record.port) == (True, ProcessRole.OTHER, None)


async def test_arguments_that_are_no_text_can_be_shown(host: AgentSession) -> None:
    await host.start(spec(argv=("sh", "-c", "sleep 600", "a\udcffb")))
    record = await host.record("p")
    assert record is not None
    assert record.argv[3] == "a\ufffdb"
