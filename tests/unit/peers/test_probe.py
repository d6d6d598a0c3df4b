"""The probe on this machine, under every sh there is: finds things, leaves nothing."""

from __future__ import annotations

import asyncio
import contextlib
import platform
import shutil
from typing import TYPE_CHECKING

import psutil
import pytest

from backends.models.identity import identity_of
from backends.peers.probe import probe, survey
from tests.unit.provision.conftest import write_program
from tests.unit.provision.local_shell import LocalShell

if TYPE_CHECKING:
    from pathlib import Path

    from backends.state import PeerFacts

SHELLS = [("sh",), ("bash", "--posix"), ("busybox", "sh")]
# A worker as old as its banner, which comes with the first client only.
WORKER = """\
import socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("-p") + 1])))
server.accept()
print("Starting RPC server v3.5.1", flush=True)
server.accept()
"""


@pytest.fixture(params=SHELLS, ids=lambda sh: sh[0])
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> LocalShell:
    """This machine with an empty home."""
    if shutil.which(request.param[0]) is None:
        pytest.skip(f"no {request.param[0]} here")
    home = tmp_path / 'it\'s a "home" $HOME'
    home.mkdir()
    return LocalShell(home, sh=request.param)


async def look(
    shell: LocalShell, *engines: Path, models: Path | None = None
) -> PeerFacts:
    return await probe(
        shell,
        engine_dirs=[str(path) for path in engines],
        model_dirs=[str(models)] if models else [],
        budgets={"CPU": 1},
    )


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


async def test_this_machine(shell: LocalShell) -> None:
    facts = await look(shell)
    assert (facts.os, facts.arch) == (platform.system(), platform.machine())
    assert facts.libc == " ".join(platform.libc_ver())
    assert 1 <= facts.performance_cores <= facts.cores
    assert facts.memory_bytes <= psutil.virtual_memory().total
    assert 0 < facts.memory_free_bytes <= facts.memory_bytes
    assert facts.disk_free_bytes > 0
    assert abs(facts.clock_offset_s) < 2
    assert facts.devices[0].budget_bytes == 1 << 30
    assert not facts.engines
    assert not facts.models


async def test_nothing_is_left_behind(shell: LocalShell) -> None:
    await look(shell)
    assert everything_below(shell.home) == []
    assert running_in(shell.home) == []


async def test_a_broken_engine_is_no_failure(shell: LocalShell, tmp_path: Path) -> None:
    broken, whole = tmp_path / "broken one", tmp_path / "whole"
    for name in ("llama-server", "rpc-server"):
        write_program(broken / name, "cannot open shared object", code=127)
        write_program(whole / name, "version: 7 (abc)")
    facts = await look(shell, broken, whole, tmp_path / "absent")
    assert [engine.directory for engine in facts.engines] == [str(whole)]
    assert facts.engines[0].version == "7 (abc)"
    shell.env["XDG_CACHE_HOME"] = str(shell.home / "elsewhere")
    engines = shell.home / "elsewhere" / "dllm-tui" / "engines" / "x"
    for name in ("llama-server", "ggml-rpc-server"):
        write_program(engines / name, "no driver", code=1)
    told = await survey(shell, "engines")
    assert told.problems == (f"The engine in {engines} does not run: no driver",)


async def test_the_protocol_of_a_foreign_engine_is_learnt(
    shell: LocalShell, tmp_path: Path
) -> None:
    program = write_program(tmp_path / "e" / "llama-server", "version: 7 (abc)")
    worker = write_program(program.with_name("ggml-rpc-server"), "")
    python = shutil.which("python3") or ""
    await asyncio.to_thread(worker.write_text, f"#!{python}\n{WORKER}")
    facts = await look(shell, tmp_path / "e")
    assert facts.engines[0].rpc_protocol == "3.5.1"


async def test_models_are_found_once_with_their_identity(
    shell: LocalShell, tmp_path: Path
) -> None:
    hub = shell.home / ".cache/huggingface/hub/models--a--b"
    blob, link = hub / "blobs/0123", hub / "snapshots/abc/b $x's.gguf"
    blobs = shell.home / ".ollama/models/blobs"
    manifest = shell.home / ".ollama/models/manifests/registry/library/m/latest"
    for folder in (blob.parent, link.parent, blobs, manifest.parent):
        folder.mkdir(parents=True)
    blob.write_bytes(b"GGUF" * 100)
    link.symlink_to(blob)
    mine = tmp_path / "more models"
    mine.mkdir()
    (mine / "a.GGUF").symlink_to(blob)
    (mine / "notes.txt").touch()
    (blobs / f"sha256-{'a' * 64}").write_bytes(b"ollama")
    manifest.write_text(
        '{"layers":[{"mediaType":"application/vnd.ollama.image.model",'
        f'"digest":"sha256:{"a" * 64}","size":6}}]}}'
    )
    facts = await look(shell, models=mine)
    assert {(m.path, m.size_bytes, m.identity) for m in facts.models} == {
        (str(mine / "a.GGUF"), 400, identity_of(blob)),
        (
            str(blobs / f"sha256-{'a' * 64}"),
            6,
            identity_of(blobs / f"sha256-{'a' * 64}"),
        ),
    }
