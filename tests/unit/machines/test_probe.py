"""The probe on this machine, under every sh there is: finds things, leaves nothing."""

from __future__ import annotations

import contextlib
import platform
import shutil
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from backends.machines.probing import survey
from tests.unit.machines.conftest import write_program
from tests.unit.machines.local_shell import LocalShell

if TYPE_CHECKING:
    from pathlib import Path

    from backends.machines.probing import Probed

SHELLS = [("sh",), ("bash", "--posix"), ("busybox", "sh")]


@pytest.fixture(params=SHELLS, ids=lambda sh: sh[0])
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> LocalShell:
    """This machine with an empty home."""
    if shutil.which(request.param[0]) is None:
        pytest.skip(f"no {request.param[0]} here")
    home = tmp_path / 'it\'s a "home" $HOME'
    home.mkdir()
    return LocalShell(home, sh=request.param)


def everything_below(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def running_in(home: Path) -> list[str]:
    """Processes that have a home: those of the probe, not those of other tests."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.environ().get("HOME") == str(home):
                found.append(process.name())
    return found


async def look(shell: LocalShell, *engines: Path) -> Probed:
    folders = [str(path) for path in engines]
    return await survey(shell, "system", "tools", "engines", engine_dirs=folders)


async def test_this_machine(shell: LocalShell) -> None:
    told = await look(shell)
    assert (told.os, told.arch) == (platform.system(), platform.machine())
    assert told.libc == " ".join(platform.libc_ver())
    assert 1 <= told.performance_cores <= told.cores
    assert told.memory_bytes <= psutil.virtual_memory().total
    assert 0 < told.memory_free_bytes <= told.memory_bytes
    assert told.disk_free_bytes > 0
    assert told.clock is not None
    assert abs(told.clock - time.time()) < 20
    assert told.env["HOME"] == str(shell.home)
    assert not told.engines


async def test_nothing_is_left_behind(shell: LocalShell) -> None:
    await look(shell)
    assert everything_below(shell.home) == []
    assert running_in(shell.home) == []


async def test_engines_are_seen_and_not_started(
    shell: LocalShell, tmp_path: Path
) -> None:
    cache = shell.home / "elsewhere" / "dllm-tui"
    shell.env["XDG_CACHE_HOME"] = str(cache.parent)
    mine, ours = tmp_path / "my engine", cache / "engines" / "x"
    calls = tmp_path / "calls"
    for folder in (mine, ours):
        for name in ("llama-server", "rpc-server"):
            program = write_program(folder / name, "")
            program.write_text(f"#!/bin/sh\necho >>'{calls}'\n")
    (ours / "provisioned").touch()
    (ours / "engine.json").write_text('{\n\t"rpc_protocol": "7.0.0"\n}\n')
    relay = write_program(cache / "relay" / "1.2.3" / "dllm-relay", "")
    told = await look(shell, mine, tmp_path / "absent")
    assert [(e.directory, e.source, e.rpc_protocol) for e in told.engines] == [
        (str(mine), "config", ""),
        (str(ours), "provisioned", "7.0.0"),
    ]
    assert told.relays == {"1.2.3": str(relay)}
    assert not calls.exists()
