"""Logs read through a shell are those read from the disk."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from backends.errors import HostError
from backends.paths import relay_binary
from backends.peers.logs import read_log
from backends.peers.remote_host import RemoteHost
from tests.unit.peers.local_processes import python, spec, wait_ended
from tests.unit.peers.remote.local_shell import LocalShell

if TYPE_CHECKING:
    from pathlib import Path

EVERY_BYTE = bytes(range(256)) * 40
TEXT = ("línea ✓ 😀\n" * 900).encode()


def written(run_dir: Path, data: bytes) -> Path:
    directory = run_dir / "p"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "log").write_bytes(data)
    (directory / "process.json").write_text('{"pid": 1, "start_id": "gone"}')
    return directory


@pytest.mark.parametrize("data", [b"", b"0123456789", EVERY_BYTE, TEXT, b"a\xe2\x82"])
async def test_the_same_as_from_the_disk(
    host: RemoteHost, run_dir: Path, data: bytes
) -> None:
    directory = written(run_dir, data)
    size = len(data)
    offsets = (0, 1, 4095, 4096, 4097, size - 1, size, size + 1, -1, -5, -size - 9)
    for offset in offsets:
        for limit in (-1, 5, 4096, 1 << 30):
            expected = read_log(directory, offset, limit)
            assert await host.read_log("p", offset, limit) == expected


async def test_one_read_is_bounded(host: RemoteHost, run_dir: Path) -> None:
    written(run_dir, b"x" * (3 << 20))
    chunk = await host.read_log("p", 5, 1 << 30)
    assert (chunk.offset, chunk.next_offset) == (5, 5 + (1 << 20))


async def test_without_base64(run_dir: Path, tmp_path: Path) -> None:
    """Then od stands in."""
    tools = tmp_path / "tools"
    tools.mkdir()
    names = "sh awk od dd tail head wc uname cat tr sleep getconf"
    for name in names.split():
        (tools / name).symlink_to(shutil.which(name) or "/missing")
    shell = LocalShell(path=str(tools))
    host = RemoteHost(shell, run_dir=str(run_dir), relay=str(relay_binary()))
    directory = written(run_dir, EVERY_BYTE)
    assert await host.read_log("p", 7, 9999) == read_log(directory, 7, 9999)


async def test_a_directory_without_a_log(host: RemoteHost, run_dir: Path) -> None:
    directory = written(run_dir, b"")
    (directory / "log").unlink()
    for offset in (0, 7):
        expected = read_log(directory, offset, 100)
        assert await host.read_log("p", offset, 100) == expected


async def test_a_log_that_cannot_be_read(host: RemoteHost, run_dir: Path) -> None:
    os.makedirs(run_dir / "p/log")
    with pytest.raises(HostError, match="The log of p cannot be read"):
        await host.read_log("p", 0, 100)


async def test_following_while_it_grows(host: RemoteHost) -> None:
    code = "for i in range(20000): print(f'línea {i} ✓', flush=i % 99 == 0)"
    await host.start(spec(argv=python(code)))
    text, at, ended = "", 0, False
    while True:
        chunk = await host.read_log("p", at, 30_000)
        assert (chunk.offset, chunk.restarted) == (at, False)
        if not chunk.text and ended:
            break
        record = await host.record("p")
        ended = record is not None and not record.alive
        text, at = text + chunk.text, chunk.next_offset
    assert text == "".join(f"línea {i} ✓\n" for i in range(20000))


async def test_a_log_beyond_its_limit_restarts(run_dir: Path) -> None:
    host = RemoteHost(
        LocalShell(),
        run_dir=str(run_dir),
        relay=str(relay_binary()),
        log_limit_bytes=1000,
    )
    code = "import time; print('x' * 5000, flush=True); time.sleep(3); print('new')"
    await host.start(spec(argv=python(code)))
    await wait_ended(host)
    chunk = await host.read_log("p", 5001, 100)
    assert (chunk.text, chunk.offset, chunk.restarted) == ("new\n", 0, True)
