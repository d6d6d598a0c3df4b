"""Machines of the tests: over a temporary run directory, or a home of their own."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import asyncssh
import pytest
import pytest_asyncio

from backends.machines.host import local_host
from backends.state import EngineInfo, EngineSource
from tests.unit.machines.local_shell import LocalShell
from tests.unit.machines.processes import kill_family_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from backends.machines.host import AgentHost
    from backends.machines.ssh.files import Files
    from backends.state import PeerWork


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    """The run directory; what still runs under it afterwards is killed."""
    directory = tmp_path / "run"
    yield directory
    kill_family_of(directory)


@pytest.fixture
async def open_host() -> AsyncIterator[Callable[..., AgentHost]]:
    """Makes hosts over run directories; their agents end with the test."""
    hosts: list[AgentHost] = []

    def make(directory: Path, **options: Path) -> AgentHost:
        hosts.append(local_host(directory, **options))  # type: ignore[arg-type]
        return hosts[-1]

    yield make
    for host in hosts:
        await host.close()


@pytest.fixture
def host(open_host: Callable[..., AgentHost], run_dir: Path) -> AgentHost:
    """The machine under test."""
    return open_host(run_dir)


class _Open(asyncssh.SSHServer):
    """Lets everybody in: it listens on a socket in a private directory only."""

    def begin_auth(self, username: str) -> bool:
        return False


@pytest_asyncio.fixture
async def files(tmp_path: Path) -> AsyncIterator[Files]:
    """Opens SFTP sessions on this machine."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    server = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_factory=_Open,
        server_host_keys=[key],
        sftp_factory=asyncssh.SFTPServer,
    )
    port = server.get_port()

    @contextlib.asynccontextmanager
    async def open_files() -> AsyncIterator[asyncssh.SFTPClient]:
        async with (
            asyncssh.connect(
                "127.0.0.1", port, known_hosts=None, username="me", config=None
            ) as connection,
            connection.start_sftp_client() as client,
        ):
            yield client

    yield open_files
    server.close()
    await server.wait_closed()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The peer's home, with a name that breaks careless scripts."""
    home = tmp_path / 'it\'s a "home" $HOME'
    home.mkdir()
    return home


@pytest.fixture
def shell(home: Path) -> LocalShell:
    """The peer."""
    return LocalShell(home)


def write_program(path: Path, answer: str, code: int = 0, padding: int = 0) -> Path:
    """A program that prints a line whatever it is asked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f"#!/bin/sh\necho '{answer}'\nexit {code}\n"
    path.write_bytes(text.encode() + b"#" * padding)
    path.chmod(0o755)
    return path


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
def relay(tmp_path: Path) -> Path:
    """The head's relay: a script that knows its version."""
    return write_program(tmp_path / "dllm-relay", "dllm-relay 9.9.9")


@pytest.fixture
def works() -> list[PeerWork]:
    """What was reported."""
    return []
