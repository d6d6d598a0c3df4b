"""Installing on a peer by copying: complete, resumable, atomic, idempotent."""

from __future__ import annotations

import asyncio
import os
import shutil
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from backends.engine.versions import SOURCES
from backends.machines import parcels
from backends.machines.facts import MachineInfo
from backends.machines.local import local_host_for_now
from backends.machines.provisioning import InstallMethod, Provisioned, clean, provision
from backends.machines.shell import (
    CannotBuild,
    DoesNotRun,
    PeerBusy,
    PeerFull,
    ProvisionError,
    lock,
)
from backends.paths import Paths, relay_binary
from backends.state import EngineInfo, PeerWork, ProvisionMode
from tests.kit.local_peer import LocalPeer, LocalShell, write_program


@dataclass
class Install:
    """Provision the peer with everything as usual."""

    peer: LocalPeer
    head: MachineInfo
    engine: EngineInfo
    helper: Path
    paths: Paths
    works: list[PeerWork] = field(default_factory=list)

    async def __call__(self, mode: ProvisionMode = ProvisionMode.AUTO) -> Provisioned:
        return await provision(
            self.peer,
            head=self.head,
            engine=self.engine,
            helper=self.helper,
            paths=self.paths,
            report=self.works.append,
            mode=mode,
        )

    async def begin(self) -> None:
        """Break an installation off while it sends the engine."""
        running = asyncio.create_task(self())
        while not (running.done() or any("Sending l" in w.detail for w in self.works)):
            await asyncio.wait([running], timeout=0.001)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


@pytest.fixture
async def install(
    peer: LocalPeer, engine: EngineInfo, paths: Paths, tmp_path: Path
) -> Install:
    async with local_host_for_now(tmp_path / "head") as host:
        head = await host.machine()
    helper = Path(shutil.copy(relay_binary(), tmp_path / "dllm-relay"))
    return Install(peer, head, engine, helper, paths)


def root(home: Path) -> Path:
    return home / ".cache" / "dllm-tui"


def is_copy(there: str, here: str | Path) -> bool:
    return Path(there).read_bytes() == Path(here).read_bytes()


def half_sent(home: Path) -> Path:
    (found,) = (root(home) / "provision").glob("engines_*")
    return found / "llama-server"


async def test_an_empty_home_gets_engine_and_relay(
    install: Install, home: Path, engine: EngineInfo
) -> None:
    done = await install()
    assert (done.engine_method, done.helper_method) == (
        InstallMethod.COPIED,
        InstallMethod.COPIED,
    )
    assert done.engine.directory == f"{root(home)}/engines/7.0.0-test"
    assert is_copy(done.engine.server_path, engine.server_path)
    assert os.access(done.helper, os.X_OK)
    assert any(work.progress == 1.0 for work in install.works)
    assert not list((root(home) / "provision").iterdir())


async def test_what_is_there_is_not_sent_again(install: Install) -> None:
    await install()
    again = await install()
    assert (again.engine_method, again.helper_method) == (
        InstallMethod.PRESENT,
        InstallMethod.PRESENT,
    )
    assert again.engine.version == "1 (abc)"


async def test_a_changed_relay_of_the_same_version_replaces_the_old(
    install: Install,
) -> None:
    await install()
    with install.helper.open("ab") as program:
        program.write(b"more")
    again = await install()
    assert again.helper_method is InstallMethod.COPIED
    assert is_copy(again.helper, install.helper)


async def test_a_program_that_does_not_run_there_is_not_installed(
    install: Install, engine: EngineInfo, home: Path
) -> None:
    write_program(Path(engine.worker_path), "no such library", code=127)
    with pytest.raises(DoesNotRun, match="ggml-rpc-server does not run there: no such"):
        await install(ProvisionMode.COPY)
    assert not (root(home) / "engines").exists()


def without_compiler(shell: LocalShell) -> None:
    for name in ("c++", "g++", "clang++"):
        shell.program(name, "", code=1)


async def test_a_peer_without_compiler_says_what_is_missing(
    install: Install, shell: LocalShell
) -> None:
    without_compiler(shell)
    shell.program("uname", "Plan9")
    with pytest.raises(CannotBuild, match=r"it runs Plan9.*has no C\+\+ compiler"):
        await install()


async def test_a_cpu_that_lacks_instructions_is_not_given_the_engine(
    install: Install, shell: LocalShell
) -> None:
    without_compiler(shell)
    install.peer.differs = {"instructions": ""}
    with pytest.raises(CannotBuild, match=r"its CPU lacks.*has no C\+\+ compiler"):
        await install()


async def test_shells_are_few(install: Install, shell: LocalShell) -> None:
    """The lock, room for the helper, its place; the lock is left. Else the agent."""
    await install()
    assert len(shell.scripts) == 4
    shell.scripts.clear()
    await install()
    assert len(shell.scripts) == 2


async def test_a_helper_that_does_not_run_is_brought_anew(install: Install) -> None:
    done = await install()
    await install.peer.end_agent()
    write_program(Path(done.helper), "no", code=1)
    again = await install()
    assert again.helper_method is InstallMethod.COPIED
    assert is_copy(again.helper, install.helper)


async def test_a_full_disk_is_told_before_anything_is_sent(
    install: Install, shell: LocalShell
) -> None:
    shell.program("df", "Filesystem\nx 100 90 10 90% /")
    with pytest.raises(PeerFull, match=r"Only 10\.0 KiB are free on the disk of mini"):
        await install()


async def test_two_consoles_do_not_install_at_once(
    install: Install, shell: LocalShell
) -> None:
    async with lock(shell, "install", "An installation"):
        with pytest.raises(PeerBusy, match="An installation is under way on mini"):
            await install()
    assert (await install()).engine_method is InstallMethod.COPIED


async def test_the_lock_of_a_dead_console_is_taken_over(
    install: Install, home: Path
) -> None:
    left = root(home) / "provision" / "install.lock"
    left.parent.mkdir(parents=True)
    left.write_text("1 some-other-boot:1\n")
    assert (await install()).engine_method is InstallMethod.COPIED


async def test_an_installation_broken_off_goes_on(
    install: Install, home: Path, engine: EngineInfo
) -> None:
    await install.begin()
    assert not (root(home) / "engines").exists()
    assert half_sent(home).is_file()
    done = await install()
    assert done.engine_method is InstallMethod.COPIED
    assert is_copy(done.engine.server_path, engine.server_path)


async def test_what_lies_there_half_and_wrong_is_sent_anew(
    install: Install, home: Path, engine: EngineInfo
) -> None:
    await install.begin()
    half_sent(home).write_bytes(b"x" * 3_000_000)
    done = await install()
    assert is_copy(done.engine.server_path, engine.server_path)


async def test_what_was_installed_can_be_taken_away(
    install: Install, shell: LocalShell, home: Path
) -> None:
    await install()
    assert await clean(shell) > 3_000_000
    assert not root(home).exists()


async def test_a_home_that_cannot_be_written_says_what_to_do(
    install: Install, home: Path
) -> None:
    (home / ".cache").touch()
    with pytest.raises(ProvisionError, match=r"Cannot create .*/provision") as caught:
        await install()
    assert "Let your account on mini write there" in caught.value.hint


async def test_two_peers_at_once_get_one_archive(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = 0

    async def fetch(source: object, folder: Path, **_: Any) -> Path:
        nonlocal fetched
        fetched += 1
        os.mkdir(folder)
        await asyncio.sleep(0.01)
        return folder / "sdist"

    async def unpack(source: object, sdist: Path, tree: Path) -> None:
        await asyncio.sleep(0.01 * fetched)
        os.mkdir(tree)
        (tree / "CMakeLists.txt").touch()

    monkeypatch.setattr("backends.engine.fetch.fetch", fetch)
    monkeypatch.setattr("backends.engine.fetch.unpack", unpack)

    def tell(text: str, fraction: float | None) -> None:
        pass

    one, other = await asyncio.gather(
        *(parcels.engine_source(SOURCES[0], paths, tell) for _ in range(2))
    )
    assert one == other
    assert fetched == 1
    with tarfile.open(one) as tar:
        assert tar.getnames() == ["CMakeLists.txt"]
    assert list(one.parent.iterdir()) == [one]
