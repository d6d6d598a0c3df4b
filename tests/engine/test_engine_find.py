"""The finished engine of this user: found, asked, driven."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil
import pytest

from backends.engine import ask, install
from backends.engine.argv import (
    LAYERS_VERBOSITY,
    server_argv,
    worker_argv,
)
from backends.engine.ask import read_engine
from backends.engine.llama_client import Health, ServerClient
from backends.engine.logs import LoadLog, clean_lines, end_reason
from backends.errors import EngineError
from backends.machines.agent import AgentSession
from backends.machines.local import local_agent_for_now
from backends.paths import Paths, user_paths
from backends.state import (
    ChatMessage,
    ChatRequest,
    EngineInfo,
    Sampling,
    ServerSettings,
)
from tests.engine.conftest import User
from tests.kit.engines import flags_of
from tests.kit.models import write_llama
from tests.native.stock import free_port, start, wait_for_port, wait_until_up

pytestmark = pytest.mark.engine
HELLO = ChatRequest(
    messages=(ChatMessage(role="user", content="Hello"),),
    sampling=Sampling(temperature=0.0, max_tokens=24, seed=1),
)


def engines() -> list[EngineInfo]:
    return [e for e in install.all_engines(None, user_paths()) if e.source == "cache"]


@pytest.fixture(params=[0, pytest.param(1, marks=pytest.mark.trial)])
def location(request: pytest.FixtureRequest) -> EngineInfo:
    found = engines()
    if len(found) <= request.param:
        pytest.skip("not built here: dllm-tui engine build [--version 8.0.0]")
    index: int = request.param
    return found[index]


def only(number: int) -> pytest.MarkDecorator:
    """One engine, where another would show nothing more."""
    return pytest.mark.parametrize("location", [number], indirect=True)


@pytest.fixture
def fresh(tmp_path: Path) -> Paths:
    return msgspec.structs.replace(user_paths(), cache_dir=tmp_path)


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[AgentSession]:
    async with local_agent_for_now(tmp_path / "run") as agent:
        yield agent


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_llama(file, n_layer=12, n_embd=64, n_ff=128)
    return str(file)


async def test_it_tells_its_version_protocol_and_flags(
    agent: AgentSession, location: EngineInfo, fresh: Paths
) -> None:
    known = await read_engine(agent, location, fresh)
    assert "commit" in known.info.version
    assert Path(location.directory).name.startswith(known.info.rpc_protocol)
    assert {"-fit", "-lv", "--rpc", "--device", "-ts", "--ctx-size"} <= known.flags
    assert known.info.backends == ("cpu", "rpc")
    assert await read_engine(agent, location, fresh) == known


@only(0)
async def test_asking_leaves_nothing_running(
    agent: AgentSession, location: EngineInfo, fresh: Paths
) -> None:
    await read_engine(agent, location, fresh)
    await agent.close()
    ours = psutil.Process().children(recursive=True)
    assert not [c for c in ours if c.status() != psutil.STATUS_ZOMBIE]


@only(0)
async def test_a_program_that_does_not_run_is_explained(
    agent: AgentSession, location: EngineInfo, fresh: Paths, tmp_path: Path
) -> None:
    broken = tmp_path / "llama-server"
    broken.write_text("#!/bin/sh\necho 'libcudart.so.12: cannot open' >&2\nexit 127\n")
    broken.chmod(0o755)
    here = msgspec.structs.replace(location, server_path=str(broken))
    with pytest.raises(EngineError, match="libcudart"):
        await read_engine(agent, here, fresh)
    broken.write_bytes(b"\x7fELF junk")
    with pytest.raises(EngineError, match=r"Cannot run|failed"):
        await read_engine(agent, here, fresh)


@only(0)
async def test_a_program_that_hangs_is_not_waited_for(
    agent: AgentSession,
    location: EngineInfo,
    fresh: Paths,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ask, "ANSWER_S", 0.3)
    monkeypatch.setattr(ask, "BANNER_S", 0.3)
    hangs = tmp_path / "llama-server"
    hangs.write_text("#!/bin/sh\nexec sleep 600\n")
    hangs.chmod(0o755)
    changed = msgspec.structs.replace(location, server_path=str(hangs))
    with pytest.raises(EngineError, match="no answer"):
        await read_engine(agent, changed, fresh)
    changed = msgspec.structs.replace(location, worker_path=str(hangs))
    with pytest.raises(EngineError, match="did not begin to listen"):
        await read_engine(agent, changed, fresh)


def start_workers(
    stack: ExitStack, location: EngineInfo, folder: Path
) -> dict[int, subprocess.Popen[bytes]]:
    """Two workers by their ports."""
    found = {}
    for port in (free_port(), free_port()):
        argv = worker_argv(location, port=port, devices=("CPU",), threads=1)
        found[port] = start(stack, list(argv), folder / f"{port}.log")
        wait_for_port(port)
    return found


async def argv_for(
    location: EngineInfo,
    model: str,
    ports: list[int],
    *,
    port: int,
) -> tuple[str, ...]:
    """A server with layers 0-4 on the head, then 3 and 5 on the workers."""
    return server_argv(
        location,
        await flags_of(location),
        model=model,
        rpc_endpoints=[f"127.0.0.1:{port}" for port in ports],
        device_names=["RPC0", "RPC1"],
        n_gpu_layers=8,
        tensor_split=(3, 5),
        ctx_size=512,
        server=ServerSettings(),
        port=port,
        verbosity=LAYERS_VERBOSITY,
    )


EXPECTED = {
    **dict.fromkeys(range(5), "CPU"),
    **dict.fromkeys(range(5, 8), "RPC0"),
    **dict.fromkeys(range(8, 13), "RPC1"),
}


class Cluster(NamedTuple):
    """A llama-server over two workers that has loaded its model."""

    server: subprocess.Popen[bytes]
    workers: dict[int, subprocess.Popen[bytes]]
    log: Path
    client: ServerClient


@pytest.fixture
async def cluster(
    location: EngineInfo, model: str, tmp_path: Path
) -> AsyncIterator[Cluster]:
    with ExitStack() as stack:
        workers = start_workers(stack, location, tmp_path)
        port, file = free_port(), tmp_path / "server.log"
        argv = await argv_for(location, model, [*workers], port=port)
        server = start(stack, list(argv), file)
        wait_until_up(f"http://127.0.0.1:{port}", server)
        async with ServerClient(port) as client:
            yield Cluster(server, workers, file, client)


async def test_a_cluster_from_load_to_answer(cluster: Cluster) -> None:
    assert await cluster.client.health() is Health.OK
    log = LoadLog()
    log.feed(cluster.log.read_text(errors="replace"))
    assert log.url
    assert log.layer_devices == EXPECTED
    kinds = {(name.partition("[")[2][:-1], kind) for name, kind in log.buffers}
    for worker in cluster.workers:
        assert {(f"127.0.0.1:{worker}", k) for k in ("model", "kv", "compute")} <= kinds
    pieces = [piece async for piece in cluster.client.chat(HELLO)]
    last = pieces[-1]
    assert last.failure is None
    assert last.timings is not None
    assert last.timings.tokens > 0
    assert last.timings.first_token_s is not None
    [slot] = await cluster.client.slots()
    assert slot.ctx_used >= last.timings.prompt_tokens
    cluster.server.terminate()
    assert cluster.server.wait(30) == 0


async def test_a_worker_that_dies_mid_answer_is_explained(cluster: Cluster) -> None:
    longer = Sampling(max_tokens=400, temperature=0.0)
    answer = cluster.client.chat(msgspec.structs.replace(HELLO, sampling=longer))
    await anext(answer)
    [*cluster.workers.values()][1].kill()
    pieces = [piece async for piece in answer]
    failure = pieces[-1].failure
    assert failure is not None
    assert "in the middle of the answer" in failure.what
    number = -cluster.server.wait(30)
    assert number == signal.SIGABRT
    output = cluster.log.read_text(errors="replace")
    reason = end_reason(clean_lines(output), None, number)
    assert reason is not None
    assert "a worker died" in reason


@only(1)
def test_use_is_remembered_until_auto(user: User, location: EngineInfo) -> None:
    used = user.json("engine", "use", location.directory)
    assert used["directory"] == location.directory
    status = user.json("engine", "status")
    assert status["source"] == "config"
    assert status["directory"] == location.directory
    user.run("engine", "use", "auto")
    assert user.json("engine", "status")["source"] == "cache"


def test_use_refuses_what_is_no_engine(user: User, tmp_path: Path) -> None:
    refused = user.run("engine", "use", str(tmp_path), code=1)
    assert "holds no llama-server" in refused.stderr
    assert not (user.home / "config" / "dllm-tui" / "config.toml").exists()
    user.run("engine", "build", "--version", "0.0.1", code=2)
    user.run("engine", "build", "--jobs", "0", code=2)
