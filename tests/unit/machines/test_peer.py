"""A machine over SSH: where its sockets go, and one host for every agent there."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from backends.errors import HostError
from backends.paths import SOCKET_PATH_BYTES_MAX
from tests.kit.local_peer import LocalShell, ssh_peer
from tests.unit.machines.test_agent_channel import HELLO, Scripted, line, ok

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backends.machines.peer import SshPeer
    from backends.paths import Paths

DEEP = "/home/" + "long/" * 20 + "run"
HEAD = secrets.token_hex(4)


class Connection(LocalShell):
    """A connection to this machine, whose agents tell of a run directory."""

    connected = True
    lost = None
    run_dir = DEEP

    async def hold(self, line_: str, *args: str) -> Scripted:
        stream = Scripted(lambda request: ok(request, port=7))
        stream.coming.get_nowait()
        stream.coming.put_nowait(line({**HELLO, "run_dir": self.run_dir}))
        return stream


@pytest.fixture
def connection(tmp_path: Path) -> Connection:
    return Connection(tmp_path)


@pytest.fixture
def machine(connection: Connection, paths: Paths) -> SshPeer:
    return ssh_peer("mini", cast("Any", connection), paths, HEAD)


@pytest.fixture
def fallback() -> Iterator[Path]:
    folder = Path(f"/tmp/dllm-{os.geteuid()}-{HEAD}")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


async def test_sockets_are_beside_the_processes(
    machine: SshPeer, connection: Connection
) -> None:
    connection.run_dir = "/home/ada/run"
    await machine.agent_at("/relay")
    assert machine.relay_stats("default.w") == "/home/ada/run/default.w.sock"
    long = machine.relay_stats("w" * 100)
    assert len(long) <= SOCKET_PATH_BYTES_MAX
    assert long.startswith("/home/ada/run/")
    assert long == machine.relay_stats("w" * 100)
    await machine.end_agent()


async def test_a_deep_home_has_its_sockets_in_a_private_folder(
    machine: SshPeer, fallback: Path
) -> None:
    await machine.agent_at("/relay")
    assert machine.relay_stats("default.w") == f"{fallback}/default.w.sock"
    assert stat.S_IMODE(os.stat(fallback).st_mode) == 0o700
    await machine.end_agent()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
@pytest.mark.parametrize("how", ["owned", "linked"])
async def test_a_folder_that_somebody_made_ready_is_not_used(
    machine: SshPeer, fallback: Path, tmp_path: Path, how: str
) -> None:
    if how == "owned":
        os.mkdir(fallback)
        os.chown(fallback, 12345, 12345)
    else:
        os.symlink(tmp_path, fallback)
    try:
        with pytest.raises(HostError, match="belongs to somebody else"):
            await machine.agent_at("/relay")
    finally:
        if how == "linked":
            os.unlink(fallback)


async def test_who_listens_hears_of_the_next_agent_too(machine: SshPeer) -> None:
    heard: list[int] = []
    host = await machine.agent_at("/relay")
    assert host is not None
    host.subscribe(lambda: heard.append(len(host.seen)))
    await machine.end_agent()
    assert await machine.agent_at("/newer") is host
    stream = cast("Any", host)._channel._stream
    record = {"name": "default/w", "pid": 7, "alive": True}
    stream.coming.put_nowait(json.dumps({"push": "record", "record": record}).encode())
    stream.coming.put_nowait(b"\n")
    assert await host.free_port() == 7
    assert heard == [1]
    await machine.end_agent()
