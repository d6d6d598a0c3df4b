"""Other shells, other awks, and macOS as far as its tools can be imitated."""

from __future__ import annotations

import calendar
import json
import os
import shutil
import socket
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from backends.errors import HostError
from backends.paths import relay_binary
from backends.peers.answers import Answer, memory_in
from backends.peers.remote_host import RemoteHost
from tests.unit.peers.local_processes import (
    LEAVES_A_STRAY,
    executable,
    exists,
    first_line,
    python,
    spec,
)
from tests.unit.peers.remote.local_shell import LocalShell

if TYPE_CHECKING:
    from pathlib import Path

PRETENDS_TO_BE_A_MAC = """#!/bin/sh
case "$*" in
*axEww*) exec {ps} axeww -o pid=,command= ;;
*) exec {ps} "$@" ;;
esac
"""
AWKS = ("mawk", "gawk", "original-awk")
SHELLS = ("dash", "bash", "ksh", "yash", "mksh")


def host_with(tools: Path, run_dir: Path) -> RemoteHost:
    path = f"{tools}:{os.environ['PATH']}"
    shell = LocalShell(path=path)
    return RemoteHost(shell, run_dir=str(run_dir), relay=str(relay_binary()))


def found(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


async def lead_a_life(host: RemoteHost) -> None:
    """Everything once, on a process with a stray child."""
    started = await host.start(spec(argv=python(LEAVES_A_STRAY, "session")))
    stray = int(await first_line(host))
    (record,) = await host.records()
    assert (record.pid, record.alive) == (started.pid, True)
    assert record.rss_bytes is not None
    assert record.rss_bytes > 1 << 20
    assert await host.orphans() == []
    assert await host.free_port() > 0
    assert not await host.listens(started.pid, 9)
    assert (await host.memory()).total_bytes > 0
    ended = await host.stop("p")
    assert ended is not None
    assert ended.exit_signal == 15
    assert not exists(started.pid)
    assert not exists(stray)
    await host.remove("p")
    assert await host.records() == []


@pytest.mark.parametrize("awk", AWKS)
async def test_awks(run_dir: Path, tmp_path: Path, awk: str) -> None:
    (tmp_path / "awk").symlink_to(found(awk))
    await lead_a_life(host_with(tmp_path, run_dir))


@pytest.mark.parametrize("shell", SHELLS)
async def test_shells(run_dir: Path, tmp_path: Path, shell: str) -> None:
    (tmp_path / "sh").symlink_to(found(shell))
    await lead_a_life(host_with(tmp_path, run_dir))


async def test_a_directory_that_cannot_be_deleted(
    host: RemoteHost, run_dir: Path, tmp_path: Path
) -> None:
    await host.start(spec())
    await host.stop("p")
    why = "echo 'rm: cannot remove p: Read-only file system' >&2; exit 1"
    executable(tmp_path / "rm", f"#!/bin/sh\n{why}\n")
    sentence = r"run/p cannot be deleted \(Read-only file system\) on local"
    with pytest.raises(HostError, match=sentence):
        await host_with(tmp_path, run_dir).remove("p")
    await host.remove("p")


async def test_a_machine_without_free_ports(run_dir: Path, tmp_path: Path) -> None:
    executable(tmp_path / "tr", "#!/bin/sh\necho 5000 5010\n")
    with pytest.raises(HostError, match="local has no free port"):
        await host_with(tmp_path, run_dir).free_port()


async def test_a_port_of_somebody_unseen(run_dir: Path, tmp_path: Path) -> None:
    """As another user's are."""
    executable(tmp_path / "ls", "#!/bin/sh\nexit 2\n")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        host = host_with(tmp_path, run_dir)
        assert await host.port_owner(port) == "another process"
        assert not await host.listens(os.getpid(), port)


def as_on_a_mac(run_dir: Path, pid: int, key: str = "start_id") -> None:
    """Write an identity as spawn does on macOS: the start in µs."""
    argv = ["ps", "-o", "lstart=", "-p", str(pid)]
    environment = {**os.environ, "TZ": "UTC0", "LC_ALL": "C"}
    shown = subprocess.run(argv, capture_output=True, text=True, env=environment)
    began = calendar.timegm(time.strptime(shown.stdout.strip(), "%a %b %d %X %Y"))
    path = run_dir / "p/process.json"
    changed = {**json.loads(path.read_text()), key: str(began * 1_000_000 + 123_456)}
    path.write_text(json.dumps(changed))


async def test_processes_of_a_mac(
    host: RemoteHost, run_dir: Path, tmp_path: Path
) -> None:
    tools = tmp_path / "mac"
    tools.mkdir()
    executable(tools / "ps", PRETENDS_TO_BE_A_MAC.format(ps=found("ps")))
    executable(tools / "uname", "#!/bin/sh\necho Darwin\n")
    mac = host_with(tools, run_dir)
    started = await host.start(spec(argv=python(LEAVES_A_STRAY)))
    stray = int(await first_line(host))
    supervisor = json.loads((run_dir / "p/process.json").read_text())["supervisor_pid"]
    record = await mac.record("p")
    assert record is not None
    assert not record.alive
    as_on_a_mac(run_dir, started.pid)
    as_on_a_mac(run_dir, supervisor, "supervisor_start_id")
    record = await mac.record("p")
    assert record is not None
    assert record.alive
    assert record.rss_bytes is not None
    assert record.rss_bytes > 1 << 20
    assert await mac.orphans() == []
    with pytest.raises(HostError, match="still runs"):
        await mac.start(spec())
    (run_dir / "p/process.json").rename(run_dir / "kept")
    lost = await mac.orphans()
    assert {orphan.pid for orphan in lost} == {started.pid, stray}
    assert {orphan.name for orphan in lost} == {"p"}
    (run_dir / "kept").rename(run_dir / "p/process.json")
    await mac.stop("p")
    assert not any(exists(pid) for pid in (started.pid, stray, supervisor))


def test_memory_of_a_mac() -> None:
    text = (
        "total 17179869184\npage 16384\npages 1000\npages 500\n"
        "cpu Apple M2 Pro\ncores 10\nend\n"
    )
    device = memory_in(Answer("mac", text), "mac")
    assert (device.id, device.memory_pool) == ("mac/CPU", "mac")
    assert (device.total_bytes, device.free_bytes) == (16 << 30, 1500 * 16384)
    assert device.description == "Apple M2 Pro, 10 cores"


LINUX = "MemTotal 1000\nMemFree 100\nMemAvailable 600\ncpu \nmachine riscv64\n"


@pytest.mark.parametrize(
    ("more", "total", "free"),
    [
        ("", 1000 * 1024, 600 * 1024),
        ("max max\ncurrent 5\n", 1000 * 1024, 600 * 1024),
        ("max 4096\ncurrent 2048\ninactive_file 1024\n", 4096, 3072),
        ("max 100\ncurrent 150\n", 100, 0),
    ],
)
def test_memory_of_linux(more: str, total: int, free: int) -> None:
    text = f"{LINUX}{more}cores 0\nprocessors 1\nend\n"
    device = memory_in(Answer("nuc", text), "nuc")
    assert (device.total_bytes, device.free_bytes) == (total, free)
    assert device.description == "riscv64, 1 core"
