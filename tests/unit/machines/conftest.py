"""Machines of the tests: over a temporary run directory, or a home of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from backends.machines.local import local_agent
from backends.state import EngineInfo, EngineSource
from tests.kit.local_peer import LocalPeer, LocalShell, write_program
from tests.kit.processes import kill_family_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from backends.machines.agent import AgentSession
    from backends.state import PeerWork


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    """The run directory; what still runs under it afterwards is killed."""
    directory = tmp_path / "run"
    yield directory
    kill_family_of(directory)


@pytest.fixture
async def open_agent() -> AsyncIterator[Callable[..., AgentSession]]:
    """Makes agents over run directories; their agents end with the test."""
    agents: list[AgentSession] = []

    def make(directory: Path, **options: Path) -> AgentSession:
        agents.append(local_agent(directory, **options))  # type: ignore[arg-type]
        return agents[-1]

    yield make
    for agent in agents:
        await agent.close()


@pytest.fixture
def agent(open_agent: Callable[..., AgentSession], run_dir: Path) -> AgentSession:
    return open_agent(run_dir)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The peer's home, with a name that breaks careless scripts."""
    home = tmp_path / 'it\'s a "home" $HOME'
    home.mkdir()
    return home


@pytest.fixture
def shell(home: Path) -> LocalShell:
    return LocalShell(home)


@pytest.fixture
async def peer(shell: LocalShell, tmp_path: Path) -> AsyncIterator[LocalPeer]:
    peer = LocalPeer(shell, tmp_path / "run")
    yield peer
    await peer.end_agent()


@pytest.fixture
def engine(tmp_path: Path) -> EngineInfo:
    """The head's engine: scripts that answer as llama.cpp would."""
    folder = tmp_path / "engine"
    write_program(folder / "llama-server", "version: 1 (abc)", padding=3_000_000)
    write_program(folder / "ggml-rpc-server", "usage")
    (folder / "engine.json").write_text(
        '{"key": "7.0.0-test", "version": "0.3.36", "package": "llama-cpp-python",'
        '"sha256": "", "rpc_protocol": "7.0.0", "accelerator": "none",'
        '"backends": ["cpu", "rpc"], "flags": ["-DGGML_NATIVE=ON"],'
        '"host_cpu": "here", "built_at": 1.0}'
    )
    return EngineInfo(
        directory=str(folder),
        server_path=str(folder / "llama-server"),
        worker_path=str(folder / "ggml-rpc-server"),
        source=EngineSource.CONFIG,
    )


@pytest.fixture
def works() -> list[PeerWork]:
    return []
