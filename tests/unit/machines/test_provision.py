"""Installing on a peer by copying: complete, resumable, atomic, idempotent."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from backends.machines.probing import survey
from backends.machines.provisioning import InstallMethod, Provisioned, clean, provision
from backends.machines.shell import (
    CannotBuild,
    DoesNotRun,
    PeerBusy,
    PeerFull,
    ProvisionError,
    lock,
)
from backends.state import ProvisionMode
from tests.unit.machines.conftest import write_program

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from backends.machines.probing import Probed
    from backends.machines.ssh.files import Files
    from backends.paths import Paths
    from backends.state import EngineInfo, PeerWork
    from tests.unit.machines.local_shell import LocalShell

    Provision = Callable[..., Coroutine[Any, Any, Provisioned]]


@pytest.fixture
def install(
    shell: LocalShell,
    files: Files,
    engine: EngineInfo,
    relay: Path,
    paths: Paths,
    works: list[PeerWork],
) -> Provision:
    """Provision the peer with everything as usual."""

    async def call(mode: ProvisionMode = ProvisionMode.AUTO) -> Provisioned:
        return await provision(
            shell,
            files,
            engine=engine,
            relay=relay,
            paths=paths,
            report=works.append,
            mode=mode,
        )

    return call


def change_peer(monkeypatch: pytest.MonkeyPatch, **changes: object) -> None:
    """Let the peer look different from what it is."""

    async def changed(shell: LocalShell, *parts: str) -> Probed:
        return replace(await survey(shell, *parts), **changes)

    monkeypatch.setattr("backends.machines.provisioning.survey", changed)


def root(home: Path) -> Path:
    return home / ".cache" / "dllm-tui"


def is_copy(there: str, here: str | Path) -> bool:
    return Path(there).read_bytes() == Path(here).read_bytes()


def half_sent(home: Path) -> Path:
    (found,) = (root(home) / "provision").glob("engines_*")
    return found / "llama-server"


async def begin(install: Provision, works: list[PeerWork]) -> None:
    """Break an installation off while it sends."""
    works.clear()
    running = asyncio.create_task(install())
    while not (running.done() or any("Sending" in w.detail for w in works)):
        await asyncio.wait([running], timeout=0.001)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_an_empty_home_gets_engine_and_relay(
    install: Provision, home: Path, works: list[PeerWork], engine: EngineInfo
) -> None:
    done = await install()
    assert (done.engine_method, done.relay_method) == (
        InstallMethod.COPIED,
        InstallMethod.COPIED,
    )
    assert done.engine.directory == f"{root(home)}/engines/7.0.0-test"
    assert is_copy(done.engine.server_path, engine.server_path)
    assert os.access(done.relay_path, os.X_OK)
    assert any(work.progress == 1.0 for work in works)
    assert not list((root(home) / "provision").iterdir())


async def test_what_is_there_is_not_sent_again(install: Provision) -> None:
    await install()
    again = await install()
    assert (again.engine_method, again.relay_method) == (
        InstallMethod.PRESENT,
        InstallMethod.PRESENT,
    )
    assert again.engine.version == "1 (abc)"


async def test_a_changed_relay_of_the_same_version_replaces_the_old(
    install: Provision, relay: Path
) -> None:
    await install()
    write_program(relay, "dllm-relay 9.9.9", padding=10)
    again = await install()
    assert again.relay_method is InstallMethod.COPIED
    assert is_copy(again.relay_path, relay)


async def test_a_program_that_does_not_run_there_is_not_installed(
    install: Provision, engine: EngineInfo, home: Path
) -> None:
    write_program(Path(engine.worker_path), "no such library", code=127)
    with pytest.raises(DoesNotRun, match="ggml-rpc-server does not run there: no such"):
        await install(ProvisionMode.COPY)
    assert not (root(home) / "engines").exists()


async def test_a_peer_without_compiler_says_what_is_missing(
    install: Provision, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_peer(monkeypatch, arch="riscv64", tools={})
    with pytest.raises(CannotBuild, match=r"it is riscv64.*has no C\+\+ compiler"):
        await install()


async def test_a_cpu_that_lacks_instructions_is_not_given_the_engine(
    install: Provision, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_peer(monkeypatch, cpu_flags=frozenset(), tools={})
    with pytest.raises(CannotBuild, match="its CPU lacks"):
        await install()


async def test_a_full_disk_is_told_before_anything_is_sent(
    install: Provision, shell: LocalShell, home: Path
) -> None:
    write_program(home / "bin" / "df", "Filesystem\nx 100 90 10 90% /")
    shell.env["PATH"] = f"{home}/bin:{os.environ['PATH']}"
    with pytest.raises(PeerFull, match=r"Only 10\.0 KiB are free on the disk of mini"):
        await install()


async def test_two_consoles_do_not_install_at_once(
    install: Provision, shell: LocalShell
) -> None:
    async with lock(shell, "install", "An installation"):
        with pytest.raises(PeerBusy, match="An installation is under way on mini"):
            await install()
    assert (await install()).engine_method is InstallMethod.COPIED


async def test_the_lock_of_a_dead_console_is_taken_over(
    install: Provision, home: Path
) -> None:
    left = root(home) / "provision" / "install.lock"
    left.parent.mkdir(parents=True)
    left.write_text("1 some-other-boot:1\n")
    assert (await install()).engine_method is InstallMethod.COPIED


async def test_an_installation_broken_off_goes_on(
    install: Provision, home: Path, works: list[PeerWork], engine: EngineInfo
) -> None:
    await begin(install, works)
    assert not (root(home) / "engines").exists()
    assert half_sent(home).is_file()
    done = await install()
    assert done.engine_method is InstallMethod.COPIED
    assert is_copy(done.engine.server_path, engine.server_path)


async def test_what_lies_there_half_and_wrong_is_sent_anew(
    install: Provision, home: Path, works: list[PeerWork], engine: EngineInfo
) -> None:
    await begin(install, works)
    half_sent(home).write_bytes(b"x" * 3_000_000)
    done = await install()
    assert is_copy(done.engine.server_path, engine.server_path)


async def test_what_was_installed_can_be_taken_away(
    install: Provision, shell: LocalShell, home: Path
) -> None:
    await install()
    assert await clean(shell) > 3_000_000
    assert not root(home).exists()


async def test_a_home_that_cannot_be_written_says_what_to_do(
    install: Provision, home: Path
) -> None:
    (home / ".cache").touch()
    with pytest.raises(ProvisionError, match=r"Cannot create .*/provision") as caught:
        await install()
    assert "Let your account on mini write there" in caught.value.hint
