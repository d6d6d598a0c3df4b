"""A machine over SSH: where its sockets go, and one host for every agent there."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import stat
import time
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, cast

import pytest
from msgspec.structs import replace

from backends.demo import MODEL_PATH
from backends.errors import MachineError
from backends.machine_names import at_peer
from backends.machines.machine import merged, path_at
from backends.machines.model_files import read_there
from backends.models.layers import read_model
from backends.paths import SOCKET_PATH_BYTES_MAX
from backends.state import ModelCatalogue, ModelFile, Peer, PeerFacts
from backends.writing import UNUSED_S
from tests.kit.local_peer import LocalShell, ssh_peer
from tests.unit.machines.test_agent import HELLO, Scripted, line, ok
from tests.unit.models.ggufs import write_split

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from backends.machines.peer import SshPeer
    from backends.paths import Paths
    from tests.kit.local_peer import LocalShell

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
        with pytest.raises(MachineError, match="belongs to somebody else"):
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


# --- Models of peers: their headers, and one catalogue of all machines ---


async def test_two_first_reads_of_one_model_do_not_meet(
    shell: LocalShell, tmp_path: Path
) -> None:
    cache = tmp_path / "headers"
    path = str(MODEL_PATH)
    infos = await asyncio.gather(*(read_there(shell, path, cache) for _ in range(4)))
    assert {info.path for info in infos} == {f"mini:{path}"}
    assert [file.name for file in cache.rglob("*") if file.is_file()] == [
        MODEL_PATH.name
    ]


async def test_what_is_unread_is_forgotten(shell: LocalShell, tmp_path: Path) -> None:
    cache = tmp_path / "headers"
    models = [tmp_path / f"{name}.gguf" for name in ("old", "used", "new")]
    for model in models:
        shutil.copy(MODEL_PATH, model)
    for model in models[:2]:
        await read_there(shell, str(model), cache)
    left = next(cache.rglob("old.gguf")).with_name("left-over.tmp")
    left.touch()
    long_ago = time.time() - UNUSED_S - 60
    for path in (*cache.rglob("*.gguf"), left):
        os.utime(path, (long_ago, long_ago))
    await read_there(shell, str(models[1]), cache)
    await read_there(shell, str(models[2]), cache)
    kept = {file.name for file in cache.rglob("*") if file.is_file()}
    assert kept == {"used.gguf", "new.gguf"}


async def test_a_model_in_parts_of_all_sizes(shell: LocalShell, tmp_path: Path) -> None:
    parts = write_split(tmp_path, "many", 3)
    assert len({part.stat().st_size for part in parts}) == 3
    found = await read_there(shell, str(parts[1]), tmp_path / "headers")
    assert found.layers == read_model(parts[0]).layers
    assert found.files == tuple(f"mini:{part}" for part in parts)


async def test_trouble_of_our_disk_is_told(shell: LocalShell, tmp_path: Path) -> None:
    cache = tmp_path / "headers"
    cache.write_text("in the way")
    with pytest.raises(MachineError, match=r"headers/mini.* on this machine cannot be"):
        await read_there(shell, str(MODEL_PATH), cache)


OURS = ModelCatalogue(
    models=(
        ModelFile(
            path="/m/a.gguf", name="a", size_bytes=5, source="models", identity="1-5-a"
        ),
    )
)


def model(path: str, size_bytes: int, identity: str = "") -> ModelFile:
    name = PurePath(path).stem
    return ModelFile(
        path=path, name=name, size_bytes=size_bytes, source="m", identity=identity
    )


def peer(name: str, *models: ModelFile) -> Peer:
    return Peer(name=name, facts=PeerFacts(at=0, models=models))


def test_the_same_bytes_are_one_row() -> None:
    there = model("/x/other name.gguf", 5, "1-5-a")
    (row,) = merged(OURS, [peer("ada", there), peer("bob", there)]).models
    assert row.path == "/m/a.gguf"
    assert row.held_by == ("local", "ada", "bob")


def test_each_copy_here_is_a_row() -> None:
    copy = model("/m/copy.gguf", 5, "1-5-a")
    ours = replace(OURS, models=(*OURS.models, copy))
    rows = merged(ours, [peer("ada", model("/x.gguf", 5, "1-5-a"))]).models
    assert [row.path for row in rows] == ["/m/a.gguf", "/m/copy.gguf"]
    assert {row.held_by for row in rows} == {("local", "ada")}


def test_what_only_peers_hold_is_listed_with_its_place() -> None:
    there = model("/x/b.gguf", 7, "1-7-b")
    rows = merged(OURS, [peer("ada", there), peer("bob", there)]).models
    assert [row.name for row in rows] == ["a", "b"]
    assert rows[1].path == "ada:/x/b.gguf"
    assert rows[1].held_by == ("ada", "bob")


def test_the_same_name_with_other_bytes_is_another_row() -> None:
    there = model("/x/a.gguf", 5, "1-5-z")
    rows = merged(OURS, [peer("ada", there)]).models
    assert [row.held_by for row in rows] == [("local",), ("ada",)]


def test_unread_identities_do_not_meet() -> None:
    there = model("/x/d.gguf", 7)
    rows = merged(OURS, [peer("ada", there), peer("bob", there)]).models
    assert [row.held_by for row in rows[1:]] == [("ada",), ("bob",)]


def test_where_a_peer_has_a_model() -> None:
    same, called = model("/x/copy.gguf", 5, "1-5-a"), model("/x/a.gguf", 5, "1-5-z")
    assert path_at(peer("ada", called, same), "1-5-a", "a.gguf") == "/x/copy.gguf"
    assert path_at(peer("ada", called), "1-5-a", "a.gguf") == "/x/a.gguf"
    assert path_at(peer("ada", called), "1-5-a", "b.gguf") == ""
    assert path_at(peer("ada", model("/x/c.gguf", 7)), "", "b.gguf") == ""
    assert path_at(Peer(name="bob"), "1-5-a", "a.gguf") == ""


def test_places() -> None:
    assert at_peer("ada:/m/x.gguf") == ("ada", "/m/x.gguf")
    assert at_peer("/m/x:y.gguf") is None
    assert at_peer("m.gguf") is None
