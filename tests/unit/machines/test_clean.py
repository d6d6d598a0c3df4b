"""Taking away: what we put there, all of it, and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from backends.machines.agent import ProcessSpec
from backends.machines.local import local_host, local_host_for_now
from backends.machines.provisioning import clean
from backends.machines.shell import PeerBusy, lock
from backends.paths import relay_binary
from backends.state import ProcessRole
from tests.kit.local_peer import write_program

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kit.local_peer import LocalShell


@pytest.fixture
def cache(home: Path) -> Path:
    """Our cache on the peer with one engine of ours and one of its user's."""
    cache = home / ".cache" / "dllm-tui"
    for name in ("ours", "theirs"):
        write_program(cache / "engines" / name / "llama-server", name, padding=50_000)
    (cache / "engines" / "ours" / "provisioned").touch()
    write_program(cache / "relay" / "1.0" / "dllm-relay", "dllm-relay 1.0")
    (cache / "provision" / "half").mkdir(parents=True)
    return cache


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def write_process(home: Path, name: str, pid: int, started: str) -> Path:
    folder = home / ".local" / "state" / "dllm-tui" / "run" / name
    folder.mkdir(parents=True)
    told = {"pid": pid, "start_id": started, "argv": ['a"pid": 1']}
    (folder / "process.json").write_text(json.dumps(told))
    return folder


async def test_ours_goes_and_theirs_stays(
    shell: LocalShell, cache: Path, home: Path
) -> None:
    model = home / ".models" / "a.gguf"
    model.parent.mkdir()
    model.touch()
    assert await clean(shell) > 50_000
    assert names_in(cache) == ["engines"]
    assert names_in(cache / "engines") == ["theirs"]
    assert model.exists()
    assert await clean(shell) == 0


async def test_directories_of_dead_processes_go(
    shell: LocalShell, home: Path, cache: Path
) -> None:
    run_dir = home / ".local/state/dllm-tui/run/head"
    async with local_host_for_now(run_dir) as host:
        spec = ProcessSpec(
            name="default/w", role=ProcessRole.WORKER, argv=("sleep", "600")
        )
        started = await host.start(spec)
        with pytest.raises(PeerBusy, match=rf"default/w \(pid {started.pid}\)"):
            await clean(shell, host)
        assert (cache / "relay").exists()
        await host.stop("default/w")
        assert await clean(shell, host) > 0
    assert not run_dir.parent.exists()


async def test_an_agent_that_only_looks_is_not_in_the_way(
    shell: LocalShell, home: Path, cache: Path
) -> None:
    program = cache / "relay/1.0/dllm-relay"
    shutil.copy(relay_binary(), program)
    host = local_host(home / "run", relay=program)
    try:
        await host.connect()
        assert await clean(shell, host) > 0
        assert not program.exists()
        assert await host.records() == []
    finally:
        await host.close()


async def test_nothing_of_a_head_that_looked_and_left_stays(
    shell: LocalShell, home: Path, cache: Path
) -> None:
    run = home / ".local" / "state" / "dllm-tui" / "run"
    write_process(home, "0f-head/default/worker", os.getpid(), "another:1")
    (run / "1e-other-head").mkdir()
    assert await clean(shell) > 0
    assert names_in(home / ".local" / "state") == []
    # Without anything there at all.
    assert await clean(shell) == 0


async def test_nothing_goes_while_something_of_ours_runs(
    shell: LocalShell, cache: Path
) -> None:
    program = cache / "engines" / "ours" / "ggml-rpc-server"
    shutil.copy(shutil.which("sleep") or "", program)
    child = await asyncio.create_subprocess_exec(program, "60")
    try:
        with pytest.raises(PeerBusy, match=rf"ggml-rpc-server \(pid {child.pid}\)"):
            await clean(shell)
    finally:
        child.kill()
        await child.wait()
    assert program.exists()
    assert await clean(shell) > 0


async def test_nothing_goes_while_somebody_installs(
    shell: LocalShell, cache: Path
) -> None:
    async with lock(shell, "install", "An installation"):
        with pytest.raises(PeerBusy, match="an installation"):
            await clean(shell)
    assert (cache / "provision" / "half").exists()
