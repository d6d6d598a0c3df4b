"""Provisioning over real SSH: an empty home gets a working engine and relay."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from backends.engine.find import find_engine
from backends.errors import EngineError, PeerUnreachable
from backends.machines.probing import bandwidth_mb_s, rtt_ms, survey
from backends.machines.provisioning import InstallMethod, Provisioned, clean, provision
from backends.machines.shell import DoesNotRun, PeerBusy, PeerFull
from backends.machines.ssh.config import Destination
from backends.machines.ssh.connection import SshConnection
from backends.paths import Paths, relay_binary, user_paths
from backends.state import EngineInfo, EngineSource, ProvisionMode
from tests.kit.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from backends.state import PeerWork
    from tests.hosts.machine import Machine
    from tests.hosts.network import Network

BUILD_VARIABLE = "DLLM_TEST_BUILD_ON_PEER"
"""Set to 1, the relay and llama.cpp are really compiled on a peer: ten minutes."""


def _real_engine() -> EngineInfo | None:
    try:
        return find_engine(None, user_paths())
    except EngineError:
        return None


# Found before the network gives the head another home.
ENGINE = _real_engine()


@pytest.fixture
def engine() -> EngineInfo:
    """The engine of this machine."""
    if ENGINE is None:
        pytest.skip("needs an engine: make engine")
    return ENGINE


@pytest.fixture
def peer(network: Network) -> Machine:
    """A peer with an empty home."""
    network.write_ssh_config()
    return network.peer("ada")


@pytest_asyncio.fixture
async def connection(peer: Machine) -> AsyncIterator[SshConnection]:
    """A connection to it."""
    connection = SshConnection(peer.name, Destination.parse(peer.name))
    yield connection
    await connection.close()


class Installer:
    """Provisions one peer and keeps what is reported."""

    def __init__(
        self, connection: SshConnection, engine: EngineInfo, paths: Paths
    ) -> None:
        self.connection = connection
        self.engine = engine
        self.paths = paths
        self.works: list[PeerWork] = []

    async def __call__(self, mode: ProvisionMode = ProvisionMode.AUTO) -> Provisioned:
        return await provision(
            self.connection,
            self.connection.files,
            engine=self.engine,
            relay=relay_binary(),
            paths=self.paths,
            report=self.works.append,
            mode=mode,
        )

    async def until(self, text: str) -> asyncio.Task[Provisioned]:
        """Begin, and return once that was reported."""
        running = asyncio.create_task(self())
        while not (running.done() or any(text in w.detail for w in self.works)):
            await asyncio.wait([running], timeout=0.001)
        return running


@pytest.fixture
def install(connection: SshConnection, engine: EngineInfo, paths: Paths) -> Installer:
    """Provision the peer."""
    return Installer(connection, engine, paths)


def size_of(engine: EngineInfo) -> int:
    paths = (engine.server_path, engine.worker_path)
    return sum(Path(path).stat().st_size for path in paths)


def idle(peer: Machine) -> None:
    wait_until(lambda: not peer.processes(), "the end of everything there")


async def test_from_an_empty_home_to_programs_that_run(
    peer: Machine, install: Installer
) -> None:
    done = await install()
    assert (done.engine_method, done.relay_method) == (
        InstallMethod.COPIED,
        InstallMethod.COPIED,
    )
    version = peer.run([done.relay_path, "--version"]).stdout.split()[1]
    assert version == done.relay_version
    told = peer.run([done.engine.server_path, "--version"])
    assert "version:" in told.stdout + told.stderr
    assert peer.run([done.engine.worker_path, "--help"]).returncode == 0
    idle(peer)

    again = await install()
    assert (again.engine_method, again.relay_method) == (
        InstallMethod.PRESENT,
        InstallMethod.PRESENT,
    )
    probed = await survey(install.connection, "engines")
    (found,) = probed.engines
    assert found.directory == done.engine.directory
    assert found.source is EngineSource.PROVISIONED
    assert found.rpc_protocol == done.engine.rpc_protocol
    assert probed.relays == {version: done.relay_path}
    assert await rtt_ms(install.connection) > 0
    assert await bandwidth_mb_s(install.connection)


async def test_clean_leaves_the_home_as_it_was(
    peer: Machine, install: Installer
) -> None:
    await install()
    assert await clean(install.connection) > size_of(install.engine)
    assert not (peer.home / ".cache" / "dllm-tui").exists()


async def test_clean_refuses_while_a_worker_runs(
    peer: Machine, install: Installer
) -> None:
    done = await install()
    command = '"$1" -H 127.0.0.1 -p 50099 >/dev/null 2>&1 & echo'
    peer.run(["sh", "-c", command, "sh", done.engine.worker_path])
    with pytest.raises(PeerBusy, match="ggml-rpc-server"):
        await clean(install.connection)
    peer.kill_processes()
    assert await clean(install.connection) > 0


async def test_a_full_disk(peer: Machine, install: Installer) -> None:
    peer.limit_disk(4 << 20, ".cache")
    with pytest.raises(PeerFull, match="are free on the disk of ada"):
        await install()
    idle(peer)


async def test_a_disk_that_becomes_full_meanwhile(
    peer: Machine, install: Installer
) -> None:
    peer.limit_disk(size_of(install.engine) + (12 << 20), ".cache")
    running = await install.until("Sending llama.cpp")
    filler = peer.inside(f"{peer.remote_home}/.cache/filler")
    # Nothing is sent meanwhile: this holds up the loop.
    with contextlib.suppress(OSError):
        filler.write_bytes(b"x" * size_of(install.engine) * 2)
    with pytest.raises(PeerFull, match="became full"):
        await running
    idle(peer)
    filler.unlink()
    assert (await install()).engine_method is InstallMethod.COPIED


async def test_an_interrupted_copy_leaves_nothing_running_and_goes_on(
    peer: Machine, install: Installer
) -> None:
    running = await install.until("Sending llama.cpp")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    idle(peer)
    cache = peer.home / ".cache" / "dllm-tui"
    assert not (cache / "engines").exists()
    assert list((cache / "provision").glob("engines_*/llama-server"))
    assert (await install()).engine_method is InstallMethod.COPIED


async def test_a_broken_connection_is_said_and_another_try_succeeds(
    peer: Machine, install: Installer
) -> None:
    running = await install.until("Sending llama.cpp")
    peer.stop_sshd()
    peer.kill_processes()
    with pytest.raises(PeerUnreachable):
        await running
    peer.start_sshd()
    assert (await install()).engine_method is InstallMethod.COPIED


async def test_two_consoles_at_once(peer: Machine, install: Installer) -> None:
    running = await install.until("Sending llama.cpp")
    other = SshConnection(peer.name, Destination.parse(peer.name))
    try:
        with pytest.raises(PeerBusy, match="under way on ada already"):
            await Installer(other, install.engine, install.paths)()
    finally:
        await other.close()
    assert (await running).engine_method is InstallMethod.COPIED


async def test_an_engine_that_does_not_run_there_is_not_installed(
    peer: Machine, install: Installer, tmp_path: Path
) -> None:
    folder = tmp_path / "engine"
    shutil.copytree(install.engine.directory, folder)
    worker = folder / "ggml-rpc-server"
    worker.write_text("#!/bin/sh\necho version GLIBC_9.9 not found >&2; exit 1\n")
    install.engine = EngineInfo(
        directory=str(folder),
        server_path=str(folder / "llama-server"),
        worker_path=str(worker),
        source=EngineSource.CONFIG,
    )
    with pytest.raises(DoesNotRun, match=r"version GLIBC_9\.9 not found"):
        await install(ProvisionMode.COPY)
    assert not (peer.home / ".cache" / "dllm-tui" / "engines").exists()


async def test_a_probe_takes_a_moment_and_leaves_nothing(
    peer: Machine, connection: SshConnection
) -> None:
    before = sorted(peer.home.rglob("*"))
    probed = await survey(connection, "system", "tools", "engines")
    assert probed.hostname == peer.name
    assert sorted(peer.home.rglob("*")) == before
    idle(peer)


@pytest.mark.skipif(os.environ.get(BUILD_VARIABLE) != "1", reason=f"{BUILD_VARIABLE}=1")
@pytest.mark.timeout(3600)
async def test_building_there_is_interrupted_and_goes_on(
    peer: Machine, install: Installer
) -> None:
    install.paths = user_paths()
    running = asyncio.create_task(install(ProvisionMode.BUILD))
    while not any("[20/" in work.detail for work in install.works):
        await asyncio.wait([running], timeout=0.1)
        assert not running.done(), running.result()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    idle(peer)
    began = time.monotonic()
    done = await install(ProvisionMode.BUILD)
    print(f"built in {time.monotonic() - began:.0f} s")
    assert (done.engine_method, done.relay_method) == (
        InstallMethod.BUILT,
        InstallMethod.COPIED,
    )
    peer.run([done.engine.worker_path, "--help"])
