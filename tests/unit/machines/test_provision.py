"""Installing on a peer by copying: complete, resumable, atomic, idempotent."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import shutil
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from backends.engine.versions import SOURCES
from backends.machines import artifacts, provisioning
from backends.machines.agent import ProcessSpec
from backends.machines.facts import MachineInfo, MemoryInfo, MemoryLimit, System
from backends.machines.local import local_agent, local_agent_for_now
from backends.machines.provisioning import (
    Build,
    InstallMethod,
    Tool,
    build,
    clean,
    tools_of,
)
from backends.machines.shell import (
    CannotBuild,
    DoesNotRun,
    Greeting,
    PeerBusy,
    PeerFull,
    ProvisionError,
    greet,
    greeting_of,
    lock,
)
from backends.paths import Paths, relay_binary
from backends.state import EngineInfo, ProcessRole, ProvisionMode
from tests.kit.local_peer import Installer, LocalPeer, LocalShell, write_program

if TYPE_CHECKING:
    from collections.abc import Sequence

SHELLS = [("sh",), ("bash", "--posix"), ("busybox", "sh")]
every_shell = pytest.mark.parametrize(
    "shell",
    [SHELLS[0], pytest.param(SHELLS[1], marks=pytest.mark.trial), SHELLS[2]],
    indirect=True,
    ids=["sh", "bash", "busybox"],
)


@pytest.fixture
def shell(request: pytest.FixtureRequest, home: Path) -> LocalShell:
    sh = getattr(request, "param", SHELLS[0])
    if shutil.which(sh[0]) is None:
        pytest.skip(f"no {sh[0]} here")
    return LocalShell(home, sh=sh)


class Install(Installer[LocalPeer]):
    async def begin(self) -> None:
        """Break an installation off while it sends the engine."""
        running = await self.until("Sending l")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


@pytest.fixture
def install(
    peer: LocalPeer, engine: EngineInfo, paths: Paths, tmp_path: Path
) -> Install:
    helper = Path(shutil.copy(relay_binary(), tmp_path / "dllm-relay"))
    return Install(peer, engine, paths, helper)


def root(home: Path) -> Path:
    return home / ".cache" / "dllm-tui"


def is_copy(there: str, here: str | Path) -> bool:
    return Path(there).read_bytes() == Path(here).read_bytes()


def half_sent(home: Path) -> Path:
    (found,) = (root(home) / "provision").glob("engines_*")
    return found / "llama-server"


@every_shell
async def test_it_is_installed_found_again_and_taken_away(
    install: Install, home: Path, engine: EngineInfo, shell: LocalShell
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
    # The lock, room for the helper, its place; the lock is left. Else the agent.
    assert len(shell.scripts) == 4
    shell.scripts.clear()
    again = await install()
    assert (again.engine_method, again.helper_method) == (
        InstallMethod.PRESENT,
        InstallMethod.PRESENT,
    )
    assert again.engine.version == "1 (abc)"
    assert len(shell.scripts) == 2
    assert await clean(shell) > 3_000_000
    assert not root(home).exists()


async def test_a_helper_that_differs_or_does_not_run_is_replaced(
    install: Install,
) -> None:
    await install()
    with install.helper.open("ab") as program:
        program.write(b"more")
    again = await install()
    assert again.helper_method is InstallMethod.COPIED
    assert is_copy(again.helper, install.helper)
    await install.peer.end_agent()
    write_program(Path(again.helper), "no", code=1)
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


async def test_a_full_disk_is_told_before_anything_is_sent(
    install: Install, shell: LocalShell
) -> None:
    shell.program("df", "Filesystem\nx 100 90 10 90% /")
    with pytest.raises(PeerFull, match=r"Only 10\.0 KiB are free on the disk of mini"):
        await install()


async def test_one_installs_at_a_time(install: Install, shell: LocalShell) -> None:
    async with lock(shell, "install", "An installation"):
        with pytest.raises(PeerBusy, match="An installation is under way on mini"):
            await install()


@every_shell
async def test_lock_of_dead_console_is_taken_over(
    shell: LocalShell, home: Path
) -> None:
    left = root(home) / "provision" / "install.lock"
    left.parent.mkdir(parents=True)
    left.write_text("1 some-other-boot:1\n")
    async with lock(shell, "install", "An installation"):
        assert "some-other-boot" not in left.read_text()
    assert not left.exists()


@pytest.mark.parametrize("half", [b"", b"x" * 3_000_000])
async def test_an_installation_broken_off_goes_on(
    install: Install, home: Path, engine: EngineInfo, half: bytes
) -> None:
    """What lies there half and wrong is sent anew."""
    await install.begin()
    assert not (root(home) / "engines").exists()
    assert half_sent(home).is_file()
    if half:
        half_sent(home).write_bytes(half)
    done = await install()
    assert done.engine_method is InstallMethod.COPIED
    assert is_copy(done.engine.server_path, engine.server_path)


async def test_an_unwritable_home_says_what_to_do(install: Install, home: Path) -> None:
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

    monkeypatch.setattr("backends.engine.source_download.fetch", fetch)
    monkeypatch.setattr("backends.engine.source_download.unpack", unpack)

    def tell(text: str, fraction: float | None) -> None:
        pass

    one, other = await asyncio.gather(
        *(artifacts.engine_source(SOURCES[0], paths, tell) for _ in range(2))
    )
    assert one == other
    assert fetched == 1
    with tarfile.open(one) as tar:
        assert tar.getnames() == ["CMakeLists.txt"]
    assert list(one.parent.iterdir()) == [one]


# --- Building on a peer: a small project of CMake, for real; ended and gone on with ---

needs_cmake = pytest.mark.skipif(
    not (shutil.which("cmake") and shutil.which("cc")), reason="needs cmake and cc"
)
CMAKE = """\
cmake_minimum_required(VERSION 3.14)
set(CMAKE_C_COMPILER_WORKS 1)
set(CMAKE_C_ABI_COMPILED 1)
project(hello C)
add_custom_target(slow COMMAND sleep ${SLOW})
add_executable(hello hello.c)
add_dependencies(hello slow)
"""
HELLO = '#include <stdio.h>\nint main(void) { return puts("hello") < 0; }\n'


class Project:
    """A project that builds, on the peer, after a while."""

    def __init__(self, folder: Path, shell: LocalShell) -> None:
        self.folder = folder
        self.shell = shell
        self.code = HELLO
        self.slow_s = 0
        self.told: list[tuple[str, float | None, Sequence[str]]] = []

    @property
    def root(self) -> Path:
        return self.shell.home / ".cache" / "dllm-tui"

    @property
    def job(self) -> Build:
        archive = self.folder / "hello.tar.gz"
        for name, text in (("CMakeLists.txt", CMAKE), ("hello.c", self.code)):
            (self.folder / name).write_text(text)
        with tarfile.open(archive, "w:gz") as tar:
            for name in ("CMakeLists.txt", "hello.c"):
                tar.add(self.folder / name, name)
        note = self.folder / "provisioned"
        note.touch()
        return Build(
            name="hello",
            title="hello",
            archive=archive,
            programs=("hello",),
            trials=("--version",),
            notes=(note,),
            options=(f"-DSLOW={self.slow_s}",),
            need_bytes=1_000_000,
        )

    async def make(self) -> None:
        tools = await tools_of(self.shell)
        toolchain = provisioning.toolchain_of(tools, System(), "x", 2)
        await build(
            self.shell,
            self.job,
            toolchain,
            str(self.root),
            str(self.root / "engines" / "hello"),
            lambda *told: self.told.append(told),
        )


@pytest.fixture
def project(tmp_path: Path, shell: LocalShell) -> Project:
    folder = tmp_path / "project"
    folder.mkdir()
    return Project(folder, shell)


def below(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@needs_cmake
async def test_it_is_built_tried_and_put_in_place(project: Project) -> None:
    await project.make()
    assert below(project.root / "engines" / "hello") == ["hello", "provisioned"]
    assert below(project.root / "provision") == []
    texts = [text for text, _, _ in project.told]
    assert any("Sending it" in text for text in texts)
    assert "Configuring" in texts
    assert project.told[-1][1] == 1.0


@needs_cmake
@pytest.mark.parametrize("shell", [SHELLS[2]], indirect=True, ids=["busybox"])
async def test_a_compile_error_is_the_sentence(project: Project) -> None:
    project.code = "int main(void) { return nothing; }\n"
    with pytest.raises(CannotBuild, match=r"hello could not be built on mini: .*error"):
        await project.make()
    assert not (project.root / "engines").exists()


@needs_cmake
async def test_ended_it_leaves_no_process_and_goes_on(project: Project) -> None:
    project.slow_s = 61
    running = asyncio.create_task(project.make())
    while not (running.done() or _runs("61")):
        await asyncio.wait([running], timeout=0.1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not _runs("61")
    assert (project.root / "provision" / "build-hello.0" / "source").is_dir()
    project.slow_s = 0
    project.told.clear()
    await project.make()
    assert not any("Sending" in text for text, _, _ in project.told)


def _runs(argument: str) -> bool:
    return any(
        process.info["cmdline"] == ["sleep", argument]
        for process in psutil.process_iter(["cmdline"])
    )


def tools(**versions: str) -> dict[str, Tool]:
    return {name: Tool(path=f"/bin/{name}", text=v) for name, v in versions.items()}


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        ({}, r"has no C\+\+ compiler\. Install one there"),
        ({"cc": "1.0", "cxx": "1.0"}, "has no CMake of version 3.14 or newer"),
        ({"cc": "1.0", "cxx": "1.0", "cmake": "3.5.1"}, r"newer \(only 3\.5\.1\)"),
        ({"cc": "1.0", "cxx": "1.0", "cmake": "3.25.1"}, "neither ninja nor make"),
    ],
)
def test_what_is_missing_is_named(found: dict[str, str], sentence: str) -> None:
    with pytest.raises(CannotBuild, match=sentence):
        provisioning.toolchain_of(tools(**found), System(os="Linux"), "pi", 1)


def test_jobs_fit_the_memory() -> None:
    free = MemoryLimit(limit_bytes=1 << 40, available_bytes=3_500_000_000)
    memory = MemoryInfo(total_bytes=1 << 40, available_bytes=1 << 39, limits=(free,))
    assert provisioning.jobs_of(MachineInfo(memory=memory, usable=16)) == 3
    found = tools(cc="1.0", cxx="1.0", cmake="3.25.1", make="4.3")
    toolchain = provisioning.toolchain_of(found, System(), "pi", 3)
    assert toolchain.options[:2] == ("-G", "Unix Makefiles")


def test_the_version_of_a_tool_is_the_last_number_with_dots() -> None:
    cuda = "Cuda compilation tools, release 12.4, V12.4.131"
    assert Tool(path="", text=cuda).version == "12.4.131"
    assert Tool(path="", text="Built on 2024").version == ""


def test_what_may_be_copied() -> None:
    misfit = provisioning.misfit
    head = System(os="Linux", arch="x86_64", libc="glibc 2.36")
    assert misfit(head, System(os="Linux", arch="amd64", libc="glibc 2.31")) == ""
    musl = System(os="Linux", arch="x86_64", libc="musl 1.2.5")
    assert "they need glibc 2.36" in misfit(head, musl)
    assert "it runs Darwin" in misfit(head, System(os="Darwin"))
    assert "it is arm64" in misfit(head, System(os="Linux", arch="arm64"))
    lacking = provisioning.lacking
    assert lacking("avx2 avx512f nopl", "AVX2") == "its CPU lacks avx512f"
    assert lacking("avx2 nopl", "avx2 avx512f") == ""


# --- Taking away: what we put there, all of it, and nothing else ---


@pytest.fixture
def cache(home: Path) -> Path:
    """Our cache on the peer with one engine of ours and one of its user's."""
    cache = home / ".cache" / "dllm-tui"
    for name in ("ours", "theirs"):
        write_program(cache / "engines" / name / "llama-server", name, padding=50_000)
    (cache / "engines" / "ours" / "provisioned").touch()
    write_program(cache / "relay" / "1.0" / "dllm-relay", "dllm-relay 1.0")
    (cache / "provision" / "half").mkdir(parents=True)
    return cache


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def write_process(home: Path, name: str, pid: int, started: str) -> Path:
    folder = home / ".local" / "state" / "dllm-tui" / "run" / name
    folder.mkdir(parents=True)
    told = {"pid": pid, "start_id": started, "argv": ['a"pid": 1']}
    (folder / "process.json").write_text(json.dumps(told))
    return folder


@every_shell
async def test_only_ours_is_removed(shell: LocalShell, cache: Path, home: Path) -> None:
    model = home / ".models" / "a.gguf"
    model.parent.mkdir()
    model.touch()
    assert await clean(shell) > 50_000
    assert names_in(cache) == ["engines"]
    assert names_in(cache / "engines") == ["theirs"]
    assert model.exists()
    assert await clean(shell) == 0


async def test_dead_directories_go(shell: LocalShell, home: Path, cache: Path) -> None:
    run_dir = home / ".local/state/dllm-tui/run/head"
    async with local_agent_for_now(run_dir) as agent:
        spec = ProcessSpec(
            name="default/w", role=ProcessRole.WORKER, argv=("sleep", "600")
        )
        started = await agent.start(spec)
        with pytest.raises(PeerBusy, match=rf"default/w \(pid {started.pid}\)"):
            await clean(shell, agent)
        assert (cache / "relay").exists()
        await agent.stop("default/w")
        assert await clean(shell, agent) > 0
    assert not run_dir.parent.exists()


async def test_an_agent_that_only_looks_is_not_in_the_way(
    shell: LocalShell, home: Path, cache: Path
) -> None:
    program = cache / "relay/1.0/dllm-relay"
    shutil.copy(relay_binary(), program)
    agent = local_agent(home / "run", relay=program)
    try:
        await agent.connect()
        assert await clean(shell, agent) > 0
        assert not program.exists()
        assert await agent.records() == []
    finally:
        await agent.close()


async def test_nothing_of_a_head_that_looked_and_left_stays(
    shell: LocalShell, home: Path, cache: Path
) -> None:
    run = home / ".local" / "state" / "dllm-tui" / "run"
    write_process(home, "0f-head/default/worker", os.getpid(), "another:1")
    (run / "1e-other-head").mkdir()
    assert await clean(shell) > 0
    assert names_in(home / ".local" / "state") == []
    # Without anything there at all.
    assert await clean(shell) == 0


@every_shell
async def test_nothing_goes_while_ours_runs(shell: LocalShell, cache: Path) -> None:
    program = cache / "engines" / "ours" / "ggml-rpc-server"
    shutil.copy(shutil.which("sleep") or "", program)
    child = await asyncio.create_subprocess_exec(program, "60")
    try:
        with pytest.raises(PeerBusy, match=rf"ggml-rpc-server \(pid {child.pid}\)"):
            await clean(shell)
    finally:
        child.kill()
        await child.wait()
    assert program.exists()
    assert await clean(shell) > 0


async def test_nothing_goes_during_an_install(shell: LocalShell, cache: Path) -> None:
    async with lock(shell, "install", "An installation"):
        with pytest.raises(PeerBusy, match="an installation"):
            await clean(shell)
    assert (cache / "provision" / "half").exists()


# --- The one script for a machine without our helper, under every sh there is ---


@every_shell
async def test_this_machine_and_its_helpers(shell: LocalShell) -> None:
    cache = shell.home / "elsewhere" / "dllm-tui"
    told = await greet(shell)
    assert (told.os, told.arch) == (platform.system(), platform.machine())
    assert told.libc == " ".join(platform.libc_ver())
    assert told.cores >= 1
    assert told.cache == str(shell.home / ".cache" / "dllm-tui")
    assert (told.helpers, told.newest) == ({}, "")
    assert list(shell.home.rglob("*")) == []
    shell.env["XDG_CACHE_HOME"] = str(cache.parent)
    older, newer = (
        str(write_program(cache / "relay" / version / "dllm-relay", ""))
        for version in ("0.9.0", "0.10.0")
    )
    (cache / "relay" / "0.10.0" / "made-from").write_text("abc")
    told = await greet(shell)
    assert told.helpers == {older: "", newer: "abc"}
    assert told.newest == newer


@every_shell
async def test_tools(shell: LocalShell) -> None:
    shell.env["DLLM_TOOL_PLACES"] = str(shell.home)
    shell.program("cmake", "cmake version 3.99.1")
    shell.program("g++", "none")
    shell.program("c++", "c++ (Debian) 12.2.0")
    tools = await tools_of(shell)
    assert tools["cmake"].version == "3.99.1"
    assert tools["cxx"].path == str(shell.home / "bin" / "c++")
    assert tools["cxx"].text == "c++ (Debian) 12.2.0"


@pytest.mark.parametrize("text", ["", "Welcome\n", "uname\ncores\tmany\nrelay\tx"])
def test_what_is_no_greeting_tells_nothing(text: str) -> None:
    assert greeting_of(text) == Greeting()
