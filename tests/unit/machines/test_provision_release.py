"""Bringing a release of llama.cpp to peers: each gets the archive of its platform."""

from __future__ import annotations

import platform
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from backends.engine import releases
from backends.engine.accelerators import Sight
from backends.engine.download import release_manifest
from backends.engine.install import MANIFEST, SERVER, WORKER
from backends.engine.releases import archives_for, find_release
from backends.machines.provisioning import InstallMethod
from backends.machines.shell import CannotBuild, DoesNotRun
from backends.paths import Paths
from backends.state import EngineInfo, EngineSource, ProvisionMode
from tests.kit.local_peer import Installer, LocalPeer, LocalShell, write_program
from tests.kit.releases import LINKS, TAG, archive_of, release_of, tar_of
from tests.unit.models.hub import Hub

ANSWERS = {SERVER: b"#!/bin/sh\necho 'version: 1 (abc)'\n", WORKER: b"#!/bin/sh\n"}
OTHER = "ubuntu-arm64" if platform.machine() == "x86_64" else "ubuntu-x64"
OTHER_ARCH = "aarch64" if platform.machine() == "x86_64" else "x86_64"

pytestmark = pytest.mark.skipif(
    platform.system() != "Linux" or any(Path("/dev/dri").glob("renderD*")),
    reason="archives of Linux without a GPU",
)


class Bringing(Installer[LocalPeer]):
    """A head with a release, a peer, and a server with the archives of others."""

    def __init__(self, hub: Hub, peer: LocalPeer, paths: Paths) -> None:
        self.hub = hub
        (self.own,) = archives_for(
            find_release(None), "Linux", platform.machine(), Sight(), "none"
        )
        folder = paths.engines_dir / self.own.key
        for name, text in ANSWERS.items():
            write_program(folder / name, text.decode().partition("'")[2][:-2])
        (folder / "libggml.so.0.9.4").write_bytes(b"library" * 1000)
        for name, target in LINKS.items():
            (folder / name).symlink_to(target)
        manifest = release_manifest(find_release(None), self.own, "7.0.0")
        (folder / MANIFEST).write_bytes(msgspec.json.encode(manifest))
        engine = EngineInfo(
            directory=str(folder),
            source=EngineSource.CACHE,
            server_path=str(folder / SERVER),
            worker_path=str(folder / WORKER),
        )
        super().__init__(peer, engine, paths)


@pytest.fixture
async def bring(
    peer: LocalPeer, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Bringing]:
    other = tar_of({**ANSWERS, "libggml.so.0.9.4": b"other", **LINKS})
    archives = archive_of(b""), archive_of(other, OTHER)
    release = release_of(*archives)
    monkeypatch.setattr(releases, "releases", lambda: (release,))
    hub = Hub({f"{TAG}/{archives[1].name}": other})
    async with hub.served():
        monkeypatch.setenv("DLLM_ENGINE_URL", f"{hub.url}/cdn")
        yield Bringing(hub, peer, paths)


async def test_a_peer_like_the_head_gets_the_head_s_files(bring: Bringing) -> None:
    done = await bring()
    folder = Path(done.engine.directory)
    assert done.engine_method is InstallMethod.COPIED
    assert folder.name == bring.own.key
    assert done.engine.rpc_protocol == "7.0.0"
    assert (folder / "libggml.so").readlink() == Path("libggml.so.0")
    assert (folder / "libggml.so").read_bytes() == b"library" * 1000
    assert bring.hub.served_bytes == 0
    again = await bring()
    assert again.engine_method is InstallMethod.PRESENT
    assert again.engine.version == "1 (abc)"


async def test_a_peer_of_another_platform_gets_its_archive(bring: Bringing) -> None:
    bring.peer.differs = {"arch": OTHER_ARCH, "instructions": ""}
    done = await bring()
    assert done.engine_method is InstallMethod.COPIED
    assert Path(done.engine.directory).name == f"{TAG}-{OTHER}"
    assert (Path(done.engine.directory) / "libggml.so").read_bytes() == b"other"
    served = bring.hub.served_bytes
    assert served
    assert any("Downloading" in one.detail for one in bring.works)
    assert (await bring()).engine_method is InstallMethod.PRESENT
    assert bring.hub.served_bytes == served


def without_compiler(shell: LocalShell) -> None:
    for name in ("c++", "g++", "clang++"):
        shell.program(name, "", code=1)


@pytest.mark.parametrize(
    ("differs", "says"),
    [
        ({"libc": "musl"}, "need glibc, it has musl"),
        ({"arch": "riscv64"}, "holds nothing for Linux riscv64"),
    ],
)
async def test_a_peer_without_an_archive_gets_a_build(
    bring: Bringing, shell: LocalShell, differs: dict[str, object], says: str
) -> None:
    without_compiler(shell)
    bring.peer.differs = differs
    with pytest.raises(CannotBuild, match=rf"{says}.*has no C\+\+ compiler"):
        await bring()
    with pytest.raises(DoesNotRun, match=says):
        await bring(ProvisionMode.COPY)


async def test_an_archive_that_cannot_be_got_is_said_and_the_source_built(
    bring: Bringing, shell: LocalShell
) -> None:
    without_compiler(shell)
    bring.peer.differs = {"arch": OTHER_ARCH}
    bring.hub.status = 404
    with pytest.raises(CannotBuild, match=r"does not have it \(HTTP 404\)"):
        await bring()


async def test_programs_that_do_not_run_there_are_built_instead(
    bring: Bringing, shell: LocalShell
) -> None:
    without_compiler(shell)
    write_program(Path(bring.engine.worker_path), "no such library", code=127)
    with pytest.raises(CannotBuild, match="does not run there: no such library"):
        await bring()


async def test_what_was_built_there_earlier_is_not_built_again(
    bring: Bringing, home: Path
) -> None:
    write_program(Path(bring.engine.worker_path), "no such library", code=127)
    there = home / ".cache/dllm-tui/engines" / "7.0.0-0.3.36-built"
    write_program(there / SERVER, "version: 2 (def)")
    done = await bring()
    assert (done.engine.directory, done.engine.version) == (str(there), "2 (def)")
    assert "no such library" in done.note
