"""Taking away: what we put there, all of it, and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from backends.peers.identity import start_id
from backends.provision.clean import clean
from backends.provision.errors import PeerBusy
from backends.provision.remote import lock
from tests.unit.provision.conftest import write_program

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.provision.local_shell import LocalShell


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
    me = start_id(os.getpid())
    assert me is not None
    living = write_process(home, "living", os.getpid(), me)
    dead = write_process(home, "dead", os.getpid(), "another:1")
    await clean(shell)
    assert living.exists()
    assert not dead.exists()


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
