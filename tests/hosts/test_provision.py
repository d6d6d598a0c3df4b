"""Provisioning over real SSH: an empty home gets a working engine and relay."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from backends.engine.accelerators import Sight
from backends.engine.download import release_manifest
from backends.engine.install import BINARIES, MANIFEST, engine_at
from backends.engine.releases import archives_for, find_release
from backends.errors import PeerUnreachable
from backends.machines import artifacts
from backends.machines.peer import SshPeer
from backends.machines.provisioning import InstallMethod, Provisioned, clean
from backends.machines.shell import PeerBusy, PeerFull
from backends.machines.ssh.config import Destination
from backends.machines.ssh.connection import Connection
from backends.paths import Paths, user_paths
from backends.state import EngineInfo, EngineSource, ProvisionMode
from tests.kit.local_peer import Installer, ssh_peer
from tests.kit.releases import LINKS, read
from tests.kit.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.hosts.machine import Machine
    from tests.hosts.network import Network

BUILD_VARIABLE = "DLLM_TEST_BUILD_ON_PEER"
"""Set to 1, the relay and llama.cpp are really compiled on a peer: ten minutes."""


@pytest.fixture
def peer(network: Network) -> Machine:
    """A peer with an empty home."""
    network.write_ssh_config()
    return network.peer("ada")


class Connecting(Installer[SshPeer]):
    async def __call__(self, mode: ProvisionMode = ProvisionMode.AUTO) -> Provisioned:
        if not self.peer.connection.connected:
            await self.peer.connection.connect()
        return await super().__call__(mode)


@pytest_asyncio.fixture
async def install(
    peer: Machine, engine: EngineInfo, paths: Paths
) -> AsyncIterator[Connecting]:
    """Provision the peer."""
    connection = Connection(peer.name, Destination.parse(peer.name))
    reached = ssh_peer(peer.name, connection, paths, "head")
    yield Connecting(reached, engine, paths)
    await reached.end_agent()
    await connection.close()


def size_of(engine: EngineInfo) -> int:
    paths = (engine.server_path, engine.worker_path)
    return sum(Path(path).stat().st_size for path in paths)


def idle(peer: Machine) -> None:
    wait_until(lambda: not peer.processes(), "the end of everything there")


async def test_from_an_empty_home_to_programs_that_run_and_back(
    peer: Machine, install: Connecting
) -> None:
    done = await install()
    assert (done.engine_method, done.helper_method) == (
        InstallMethod.COPIED,
        InstallMethod.COPIED,
    )
    assert "dllm-relay" in peer.run([done.helper, "--version"]).stdout
    told = peer.run([done.engine.server_path, "--version"])
    assert "version:" in told.stdout + told.stderr
    assert peer.run([done.engine.worker_path, "--help"]).returncode == 0
    idle(peer)
    started = peer.sshd_log.count("Starting session: command")
    again = await install()
    assert (again.engine_method, again.helper_method) == (
        InstallMethod.PRESENT,
        InstallMethod.PRESENT,
    )
    # The lock is taken and left: all else is asked of the agent.
    assert peer.sshd_log.count("Starting session: command") == started + 2
    # Nothing is cleaned up while a worker runs.
    command = '"$1" -H 127.0.0.1 -p 50099 >/dev/null 2>&1 & echo'
    peer.run(["sh", "-c", command, "sh", done.engine.worker_path])
    with pytest.raises(PeerBusy, match="ggml-rpc-server"):
        await clean(install.peer.connection)
    peer.kill_processes()
    assert await clean(install.peer.connection) > 0


@pytest.mark.trial
async def test_a_release_goes_there_with_the_links_of_its_libraries(
    peer: Machine, install: Connecting
) -> None:
    release = find_release(None)
    (archive,) = archives_for(release, "Linux", platform.machine(), Sight(), "none")
    folder = install.paths.engines_dir / archive.key
    folder.mkdir(parents=True)
    programs = {name: read(f"{install.engine.directory}/{name}") for name in BINARIES}
    for name, content in {**programs, "libggml.so.0.9.4": b"\x7fELF"}.items():
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o755)
    for name, target in LINKS.items():
        (folder / name).symlink_to(target)
    manifest = release_manifest(release, archive, install.engine.rpc_protocol)
    (folder / MANIFEST).write_bytes(artifacts.manifest_text(manifest))
    install.engine = engine_at(str(folder), EngineSource.CACHE, "the test")
    done = await install()
    assert done.engine_method is InstallMethod.COPIED
    assert done.engine.directory.endswith(f"/engines/{archive.key}")
    told = peer.run([done.engine.server_path, "--version"])
    assert "version:" in told.stdout + told.stderr
    listed = peer.run(["readlink", f"{done.engine.directory}/libggml.so"]).stdout
    assert listed.strip() == "libggml.so.0"
    again = await install()
    assert again.engine_method is InstallMethod.PRESENT
    assert again.engine.rpc_protocol == install.engine.rpc_protocol


@pytest.mark.trial
async def test_a_disk_that_becomes_full_meanwhile(
    peer: Machine, install: Connecting
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


@pytest.mark.trial
async def test_an_interrupted_copy_leaves_nothing_running_and_goes_on(
    peer: Machine, install: Connecting
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


@pytest.mark.trial
async def test_a_broken_connection_is_said_and_another_try_succeeds(
    peer: Machine, install: Connecting
) -> None:
    running = await install.until("Sending llama.cpp")
    peer.stop_sshd()
    peer.kill_processes()
    with pytest.raises(PeerUnreachable):
        await running
    peer.start_sshd()
    assert (await install()).engine_method is InstallMethod.COPIED


@pytest.mark.skipif(os.environ.get(BUILD_VARIABLE) != "1", reason=f"{BUILD_VARIABLE}=1")
@pytest.mark.timeout(3600)
@pytest.mark.trial
async def test_building_there_is_interrupted_and_goes_on(
    peer: Machine, install: Connecting
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
    assert (done.engine_method, done.helper_method) == (
        InstallMethod.BUILT,
        InstallMethod.COPIED,
    )
    peer.run([done.engine.worker_path, "--help"])
