"""Getting an engine: archives of a real one, from a server that misbehaves."""

from __future__ import annotations

import asyncio
import hashlib
import platform
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from backends.client.http import request
from backends.engine import download, install, releases
from backends.engine.download import get_engine
from backends.engine.releases import PACKAGE
from backends.errors import DllmError, MachineError, UsageError
from backends.machines.local import local_agent_for_now
from backends.paths import Paths
from backends.state import EngineInfo, EngineProgress, EngineSource, EngineStage
from tests.engine.conftest import User
from tests.kit.releases import TAG, archive_of, contents_of, release_of, tar_of
from tests.kit.waiting import until
from tests.unit.models.hub import Hub

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(platform.system() != "Linux", reason="archives of Linux"),
]
ROOT = Path(__file__).parents[2]
MIB = 1 << 20
LOADER = b"/lib64/ld-linux-x86-64.so.2"
MUSL = b"/lib/ld-musl-x86_64.so.1"


class Getting:
    """Gets engines as one user, from one server."""

    def __init__(self, hub: Hub, paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hub = hub
        self.paths = paths
        self.told: list[EngineProgress] = []
        self.built: list[str] = []
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("DLLM_ENGINE_URL", f"{hub.url}/cdn/")
        monkeypatch.delenv("DLLM_ENGINE_DIR", raising=False)
        monkeypatch.setattr(download, "build_engine", self._build)
        # A task's turn for each four KiB of an engine takes longer than to get it.
        monkeypatch.setattr("tests.unit.models.hub.CHUNK_BYTES", 1 << 17)

    def offer(self, content: bytes, sha256: str = "") -> None:
        archive = archive_of(content)
        archive = msgspec.structs.replace(archive, sha256=sha256 or archive.sha256)
        self.hub.files = {f"{TAG}/{archive.name}": content}
        self.pin(release_of(archive))

    def pin(self, release: releases.Release) -> None:
        self._monkeypatch.setattr(releases, "releases", lambda: (release,))

    async def get(self, version: str | None = None) -> EngineInfo:
        async with local_agent_for_now(self.paths.run_dir) as agent:
            return await get_engine(
                version, self.paths, agent, progress=self.told.append
            )

    async def _build(self, version: str | None, *_: object, **__: object) -> EngineInfo:
        self.built.append(str(version))
        return install.engine_at(str(Path(self.source)), EngineSource.CACHE, "test")

    source = ""

    @property
    def said(self) -> str:
        notes = [one.text for one in self.told if one.stage is EngineStage.WAIT]
        return "\n".join(notes)


@pytest_asyncio.fixture
async def getting(
    engine: EngineInfo, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Getting]:
    hub = Hub({})
    async with hub.served():
        one = Getting(hub, paths, monkeypatch)
        one.source = engine.directory
        yield one


async def test_an_archive_becomes_the_engine_that_is_used(
    getting: Getting, engine: EngineInfo
) -> None:
    getting.offer(tar_of(contents_of(engine)))
    got = await getting.get()
    folder = Path(got.directory)
    assert install.find_engine(None, getting.paths) == got
    manifest = install.read_manifest(folder)
    assert manifest is not None
    assert (manifest.package, manifest.version) == (PACKAGE, TAG)
    assert manifest.rpc_protocol == engine.rpc_protocol
    assert (folder / "libggml.so").readlink() == Path("libggml.so.0")
    assert not (folder / "llama-cli").exists()
    stages = list(dict.fromkeys(one.stage for one in getting.told))
    assert stages == ["download", "unpack", "try", "done"]
    assert not getting.built
    served = getting.hub.served_bytes
    assert await getting.get(TAG) == got
    assert getting.hub.served_bytes == served
    left = [path.name for path in (getting.paths.cache_dir / "releases").iterdir()]
    assert left == [f"{folder.name}.lock"]
    assert [path.name for path in getting.paths.engines_dir.iterdir()] == [folder.name]


async def test_what_was_interrupted_goes_on_at_the_byte(
    getting: Getting, engine: EngineInfo
) -> None:
    content = tar_of(contents_of(engine))
    getting.offer(content)
    getting.hub.hold_after = len(content) // 2
    task = asyncio.create_task(getting.get())
    part = getting.paths.cache_dir / "releases"
    await until(
        lambda: any(p.stat().st_size > len(content) // 4 for p in part.glob(".*.part"))
    )
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not getting.paths.engines_dir.exists()
    getting.hub.hold_after = None
    getting.hub.go.set()
    assert (await getting.get()).server_path
    assert len(getting.hub.ranges) == 1


def without(engine: EngineInfo, *names: str) -> dict[str, bytes | str]:
    contents = contents_of(engine)
    return {name: contents[name] for name in contents if name not in names}


def changed(engine: EngineInfo, program: str, old: bytes, new: bytes) -> bytes:
    """An archive in which a program has other bytes at one place."""
    contents = without(engine, install.FIT)
    content = contents[program]
    assert isinstance(content, bytes)
    assert old in content
    contents[program] = content.replace(old, new.ljust(len(old), b"\0"))
    return tar_of(contents)


def unfit(engine: EngineInfo) -> Iterator[tuple[str, bytes, str]]:
    server = install.SERVER
    # Which of these is there is told before any is tried.
    small = dict.fromkeys(contents_of(engine), b"\x7fELF")
    for name in (install.WORKER, server):
        left = {each: small[each] for each in small if each != name}
        yield f"no {name}", tar_of(left), f"holds no {name}"
    yield (
        "no RPC inside",
        changed(engine, server, b"\0--rpc\0", b"\0--rpX\0"),
        "llama-server was built without RPC",
    )
    yield (
        "missing library",
        changed(engine, server, b"libgomp.so.1", b"libgomX.so.1"),
        "the shared library libgomX.so.1 is missing",
    )
    yield (
        "worker's library",
        changed(engine, install.WORKER, b"libgomp.so.1", b"libgomX.so.1"),
        "libgomX.so.1",
    )
    yield (
        "newer C library",
        changed(engine, server, b"\0GLIBC_2.34\0", b"\0GLIBC_9.99\0"),
        "does not run here",
    )
    yield (
        "other C library",
        changed(engine, server, LOADER, MUSL),
        "it is for another C library",
    )
    for target in ("/etc/passwd", "..", "../x", "libx.so"):
        link = {**small, "libx.so": target}
        yield target, tar_of(link), "its link libx.so leads elsewhere"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="bytes of x86_64")
async def test_what_does_not_run_here_is_said_and_built_instead(
    getting: Getting, engine: EngineInfo
) -> None:
    for what, content, says in unfit(engine):
        getting.told.clear()
        getting.built.clear()
        getting.offer(content)
        assert (await getting.get()).server_path == engine.server_path
        assert says in getting.said, what
        assert getting.said.endswith("building llama.cpp from source instead."), what
        assert getting.built == ["None"]
        assert not list(getting.paths.engines_dir.glob("*"))


async def test_a_release_that_was_named_is_not_replaced_by_a_build(
    getting: Getting, engine: EngineInfo
) -> None:
    getting.offer(tar_of(without(engine, install.WORKER)))
    with pytest.raises(DllmError, match="holds no ggml-rpc-server"):
        await getting.get(TAG)
    assert not getting.built


async def test_other_bytes_than_the_pinned_ones_are_not_used(
    getting: Getting, engine: EngineInfo
) -> None:
    getting.offer(tar_of(contents_of(engine)), hashlib.sha256(b"other").hexdigest())
    await getting.get()
    assert "SHA-256 is not the one" in getting.said
    assert getting.built
    assert not list(getting.paths.engines_dir.glob("*"))
    assert not list((getting.paths.cache_dir / "releases").glob("*.tar.gz"))


async def test_a_body_without_end_is_not_taken(
    getting: Getting, engine: EngineInfo
) -> None:
    getting.offer(tar_of(contents_of(engine)))
    getting.hub.endless = True
    assert Path((await getting.get()).directory).parent == getting.paths.engines_dir


async def test_no_name_in_an_archive_leads_out_of_its_folder(
    getting: Getting, engine: EngineInfo
) -> None:
    getting.offer(tar_of(contents_of(engine), top="../../../../"))
    got = await getting.get()
    assert Path(got.directory).parent == getting.paths.engines_dir
    names = {path.name for path in getting.paths.cache_dir.parent.iterdir()}
    assert install.SERVER not in names


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that downloads waits a moment, and fills a disk to the end."""
    monkeypatch.setattr(download, "DOWNLOAD", "tests.unit.models.impatient_http")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.mark.parametrize("silent_after", [0, MIB])
async def test_a_server_that_falls_silent_costs_seconds(
    getting: Getting,
    engine: EngineInfo,
    impatient: None,
    silent_after: int,
) -> None:
    """Its first bytes stay, and the next try resumes behind them."""
    content = tar_of(contents_of(engine))
    getting.offer(content)
    hub = getting.hub
    hub.hold_after = silent_after
    task = asyncio.create_task(getting.get())
    await until(lambda: hub.paths and hub.served_bytes >= silent_after)
    (hub.silent,) = set(hub.paths)
    await task
    agent = hub.url.removeprefix("http://")
    assert f"{agent} sent nothing for 1 s: building llama.cpp" in getting.said
    assert getting.built
    hub.silent, hub.hold_after = "", None
    hub.go.set()
    before_bytes = hub.served_bytes
    assert (await getting.get()).directory.startswith(str(getting.paths.engines_dir))
    assert hub.served_bytes - before_bytes <= len(content) - silent_after


async def test_a_host_without_a_server_is_said(
    getting: Getting, monkeypatch: pytest.MonkeyPatch
) -> None:
    getting.offer(b"x" * 100)
    monkeypatch.setenv("DLLM_ENGINE_URL", "http://127.0.0.1:9")
    await getting.get()
    assert "The connection to 127.0.0.1:9 failed" in getting.said


async def test_a_folder_without_the_archive_is_said(
    getting: Getting, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    getting.offer(b"x" * 100)
    monkeypatch.setenv("DLLM_ENGINE_URL", tmp_path.as_uri())
    await getting.get()
    assert f"{tmp_path.as_uri()}/{TAG}/llama-" in getting.said
    assert "cannot be read (No such file or directory)" in getting.said


@pytest.mark.parametrize(
    ("room_bytes", "says"), [(-MIB, "are still needed"), (MIB, "while unpacking llama")]
)
async def test_a_full_disk_is_said_and_nothing_is_built(
    getting: Getting,
    engine: EngineInfo,
    small_disk: Callable[[int], Path],
    impatient: None,
    room_bytes: int,
    says: str,
) -> None:
    content = tar_of(contents_of(engine))
    getting.offer(content)
    disk = small_disk(len(content) + room_bytes)
    getting.paths = msgspec.structs.replace(getting.paths, cache_dir=disk / "cache")
    with pytest.raises(MachineError, match=says) as caught:
        await getting.get()
    assert "XDG_CACHE_HOME" in caught.value.hint
    assert not getting.built
    assert not list(getting.paths.engines_dir.glob(".*"))


@pytest.mark.parametrize("damage", ["cut", "no archive"])
async def test_a_damaged_archive_is_one_sentence(
    getting: Getting, engine: EngineInfo, damage: str
) -> None:
    content = tar_of(contents_of(engine))
    damaged = content[: len(content) // 2] if damage == "cut" else b"x" * 999
    getting.offer(damaged)
    await getting.get()
    assert " is damaged (" in getting.said
    assert getting.built
    assert not list(getting.paths.engines_dir.glob("*"))


async def test_a_mirror_that_is_no_url_is_refused(
    getting: Getting, monkeypatch: pytest.MonkeyPatch
) -> None:
    getting.offer(b"x")
    for url in ("ftp.example.org", "https://", "https://ada:secret@example.org/x"):
        monkeypatch.setenv("DLLM_ENGINE_URL", url)
        with pytest.raises(UsageError, match="DLLM_ENGINE_URL") as caught:
            await getting.get()
        assert "secret" not in str(caught.value)
    with pytest.raises(UsageError, match="No release b1 of"):
        await getting.get("b1")
    assert not getting.built


async def test_the_controller_gets_one_for_the_console(user: User) -> None:
    """No release can be had here, and the pinned build is there already."""
    user.env["DLLM_ENGINE_URL"] = "http://127.0.0.1:9"
    user.env.pop("DLLM_ENGINE_DIR", None)
    user.run("models", "list")
    socket_path = user.home / "run/dllm-tui/controller.sock"
    async with request(socket_path, "POST", "/v1/engine/get") as response:
        lines = [line async for line in response.lines() if line.strip()]
    told = [msgspec.json.decode(line, type=EngineProgress) for line in lines]
    notes = [one.text for one in told if one.stage is EngineStage.WAIT]
    assert any("The connection to 127.0.0.1:9 failed" in note for note in notes)
    assert told[-1].stage is EngineStage.DONE
    assert told[-1].engine is not None
    assert told[-1].engine.rpc_protocol
    events = user.run("events").stdout
    assert "got llama.cpp" in events
    user.run("down", "--all")
