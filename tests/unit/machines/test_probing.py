"""A look at a peer: what its agent is asked, and what is not asked twice."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from backends.config import PeerConfig
from backends.engine.ask import read_engine
from backends.engine.install import engine_at
from backends.machines.probing import Prober, find_engines
from backends.models.identity import identity_of
from backends.paths import relay_binary
from backends.state import EngineSource, PeerFacts, to_json
from tests.kit.clusters import paths_in
from tests.kit.local_peer import LocalPeer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from backends.engine.ask import Engine

# Tells what it was called with; a banner comes with the first client only, as in a
# stock worker. No question but one is worth waking a GPU.
PROGRAM = """#!{python} -ES
import os, socket, sys
with open("{calls}", "a") as calls:
    print(sys.argv[1], file=calls)
if (os.environ.get("CUDA_VISIBLE_DEVICES") == "") == (sys.argv[1] == "--list-devices"):
    sys.exit("this question is not about GPUs, or they are hidden")
if sys.argv[1] == "-H":
    if sys.argv[5:] != {worker_options}:
        sys.exit("invalid options")
    server = socket.create_server(("127.0.0.1", int(sys.argv[4])))
    server.accept()
    print("Starting RPC server v3.5.1", flush=True)
    server.accept()
elif sys.argv[1] == "--version":
    print("version: 7 (abc)")
elif sys.argv[1] == "--help":
    print("-ngl,  --n-gpu-layers N   layers")
else:
    print("  CUDA0: RTX (100 MiB, 90 MiB free)")
"""


class Looks:
    def __init__(self, peer: LocalPeer, folder: Path, **config: Any) -> None:
        shell = cast("Any", peer.connection)
        paths = paths_in(folder)
        self._prober = Prober(shell, PeerConfig(ssh="mini", **config), paths)
        self._peer = peer
        self.facts = PeerFacts(at=0.0)
        self.engines: tuple[Engine, ...] = ()

    async def look(self, *, light: bool) -> PeerFacts:
        agent = await self._peer.agent_at(str(relay_binary()))
        self.facts, self.engines = await self._prober.look(
            agent, self.facts, light=light
        )
        return self.facts


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    """Where programs tell what they were called with."""
    return tmp_path / "calls"


@pytest.fixture
def engine(tmp_path: Path, calls: Path) -> Path:
    folder = tmp_path / "engine"
    folder.mkdir()
    write_engine(folder, calls)
    return folder


def write_engine(
    folder: Path, calls: Path, worker_options: Sequence[str] = ("-d", "CPU")
) -> None:
    text = PROGRAM.format(
        python=sys.executable, calls=calls, worker_options=list(worker_options)
    )
    for name in ("llama-server", "rpc-server"):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


def said(calls: Path) -> list[str]:
    """What programs were called with since this was asked last."""
    lines = sorted(calls.read_text().split()) if calls.exists() else []
    calls.unlink(missing_ok=True)
    return lines


async def test_an_engine_is_asked_once_and_its_devices_each_time(
    peer: LocalPeer, tmp_path: Path, engine: Path, calls: Path
) -> None:
    looks = Looks(peer, tmp_path, engine=str(engine), memory_gib={"CUDA0": 1})
    facts = await looks.look(light=False)
    assert sorted(set(said(calls))) == ["--help", "--list-devices", "--version", "-H"]
    (found,) = facts.engines
    assert (found.version, found.rpc_protocol) == ("7 (abc)", "3.5.1")
    assert looks.engines[0].flags == {"-ngl", "--n-gpu-layers"}
    cpu, gpu = facts.devices
    assert (cpu.id, gpu.id, gpu.free_bytes) == ("mini/CPU", "mini/CUDA0", 90 << 20)
    assert gpu.budget_bytes == 1 << 30
    assert found.devices == (gpu,)
    await looks.look(light=False)
    assert said(calls) == ["--list-devices"]
    light = await looks.look(light=True)
    assert said(calls) == []
    assert light.devices[1] == gpu
    assert light.engines == facts.engines


async def test_a_program_added_to_an_engine_later_is_seen(
    peer: LocalPeer, tmp_path: Path, engine: Path, calls: Path
) -> None:
    """What an engine told is kept; where its programs are is not."""
    agent = await peer.agent_at(str(relay_binary()))
    paths = paths_in(tmp_path)
    found = engine_at(str(engine), EngineSource.CONFIG, "a test")
    assert (await read_engine(agent, found, paths)).info.fit_path == ""
    said(calls)
    shutil.copy(engine / "llama-server", engine / "llama-fit-params")
    now = engine_at(str(engine), EngineSource.ENV, "a test")
    again = (await read_engine(agent, now, paths)).info
    assert (again.fit_path, again.source) == (now.fit_path, EngineSource.ENV)
    assert (again.version, said(calls)) == ("7 (abc)", [])


async def test_an_unknown_engine_is_not_asked_for_gpus_while_one_serves(
    peer: LocalPeer, tmp_path: Path, engine: Path, calls: Path
) -> None:
    facts = await Looks(peer, tmp_path, engine=str(engine)).look(light=True)
    assert "--list-devices" not in said(calls)
    assert facts.engines[0].rpc_protocol == "3.5.1"


async def test_a_worker_too_old_to_be_told_its_device_is_asked_too(
    peer: LocalPeer, tmp_path: Path, engine: Path, calls: Path
) -> None:
    write_engine(engine, calls, worker_options=())
    facts = await Looks(peer, tmp_path, engine=str(engine)).look(light=False)
    assert facts.engines[0].rpc_protocol == "3.5.1"


async def test_an_engine_that_does_not_run_is_said(
    peer: LocalPeer, tmp_path: Path, engine: Path
) -> None:
    text = "#!/bin/sh\necho cannot open shared object >&2\nexit 127\n"
    (engine / "llama-server").write_text(text)
    facts = await Looks(peer, tmp_path, engine=str(engine)).look(light=False)
    assert facts.engines == ()
    assert " failed: cannot open shared object" in facts.problems[0]


async def test_the_machine_and_its_tools(peer: LocalPeer, tmp_path: Path) -> None:
    peer.connection.program("cmake", "cmake version 3.99.1")
    peer.differs = {"hostname": "mini", "usable": 8, "performance": 3}
    looks = Looks(peer, tmp_path)
    facts = await looks.look(light=True)
    assert (facts.os, facts.arch) == (platform.system(), platform.machine())
    assert (facts.hostname, facts.cores, facts.performance_cores) == ("mini", 8, 3)
    assert 0 < facts.memory_free_bytes <= facts.memory_bytes
    assert facts.disk_free_bytes > 0
    assert abs(facts.clock_offset_s) < 5
    assert facts.cmake == "cmake 3.99.1"
    assert facts.relay_version
    assert peer.connection.scripts == [], "the agent needs no shell"


async def test_engines_come_in_the_order_of_preference(
    peer: LocalPeer, tmp_path: Path, calls: Path
) -> None:
    cache = peer.connection.home / ".cache/dllm-tui/engines"
    mine, on_path = tmp_path / "mine/bin", tmp_path / "path"
    folders = [mine, cache / "old", cache / "new", on_path]
    for folder in (*folders, cache / "cut"):
        folder.mkdir(parents=True)
        write_engine(folder, calls)
    (cache / "old/engine.json").write_text('{"built_at": 5.5}')
    new = '{"built_at": 6.5, "rpc_protocol": "3.5.1", "new": 1}'
    (cache / "new/engine.json").write_text(new)
    (cache / "new/provisioned").touch()
    (cache / "cut/rpc-server").unlink()
    peer.connection.env["PATH"] += f":{on_path}"
    agent = await peer.agent_at(str(relay_binary()))
    found = await find_engines(agent, await agent.machine(), f"{tmp_path}/mine/")
    assert [(Path(e.directory), e.source) for e in found] == [
        (mine, EngineSource.CONFIG),
        (cache / "new", EngineSource.PROVISIONED),
        (cache / "old", EngineSource.CACHE),
        (on_path, EngineSource.PATH),
    ]
    assert found[1].rpc_protocol == "3.5.1"
    assert said(calls) == []


async def test_each_model_is_found_once(peer: LocalPeer, tmp_path: Path) -> None:
    home = peer.connection.home
    hub = home / ".cache/huggingface/hub/models--a--b"
    blob, link = hub / "blobs/0123", hub / "snapshots/abc/b $x's.gguf"
    blobs = home / ".ollama/models/blobs"
    manifest = home / ".ollama/models/manifests/registry/library/m/latest"
    for folder in (blob.parent, link.parent, blobs, manifest.parent):
        folder.mkdir(parents=True)
    blob.write_bytes(b"GGUF" * 100)
    link.symlink_to(blob)
    mine = tmp_path / "more models"
    mine.mkdir()
    (mine / "a.GGUF").symlink_to(blob)
    (mine / "dead.gguf").symlink_to(mine / "nowhere")
    (mine / "notes.txt").touch()
    for number in (1, 2):
        (mine / f"c-0000{number}-of-00002.gguf").write_bytes(b"c" * number)
    (mine / "d-00002-of-00002.gguf").write_bytes(b"d")
    weights = blobs / f"sha256-{'a' * 64}"
    weights.write_bytes(b"ollama")
    manifest.write_text(
        '{"layers":[{"mediaType":"application/vnd.ollama.image.model",'
        f'"digest":"sha256:{"a" * 64}","size":6}}]}}'
    )
    looks = Looks(peer, tmp_path, model_dirs=[str(mine)])
    facts = await looks.look(light=True)
    parts = mine / "c-00001-of-00002.gguf"
    assert {(m.path, m.name, m.size_bytes, m.identity) for m in facts.models} == {
        (str(mine / "a.GGUF"), "a", 400, identity_of(blob)),
        (str(parts), "c", 3, identity_of(parts)),
        (str(weights), "registry/library/m:latest", 6, identity_of(weights)),
    }
    shutil.rmtree(blobs)
    assert {m.name for m in (await looks.look(light=True)).models} == {"a", "c"}
    assert facts.model_dirs[:3] == (str(mine), "~/.models", "~/.cache/huggingface/hub")


async def test_a_model_whose_name_is_no_text_is_told_of_and_left_out(
    peer: LocalPeer, tmp_path: Path
) -> None:
    """Such a name cannot be told to a console: none would see anything any more."""
    mine = tmp_path / "models"
    mine.mkdir()
    (mine / "good.gguf").write_bytes(b"GGUF")
    (mine / os.fsdecode(b"bad\xff.gguf")).write_bytes(b"GGUF" * 2)
    facts = await Looks(peer, tmp_path, model_dirs=[str(mine)]).look(light=True)
    assert [model.name for model in facts.models] == ["good"]
    assert "The name bad\N{REPLACEMENT CHARACTER}.gguf is not valid UTF-8" in (
        facts.problems
    )
    assert to_json(facts)
