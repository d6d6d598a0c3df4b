"""Building on a peer: a small project of CMake, for real; ended and gone on with."""

from __future__ import annotations

import asyncio
import shutil
import tarfile
from typing import TYPE_CHECKING

import psutil
import pytest

from backends.machines import provisioning
from backends.machines.facts import MachineInfo, MemoryInfo, MemoryLimit, System
from backends.machines.provisioning import Build, Tool, build, tools_of
from backends.machines.shell import CannotBuild

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from pathlib import Path
    from typing import Any

    from tests.kit.local_peer import LocalShell

    Make = Callable[[], Coroutine[Any, Any, None]]

pytestmark = pytest.mark.skipif(
    not (shutil.which("cmake") and shutil.which("cc")), reason="needs cmake and cc"
)
CMAKE = """\
cmake_minimum_required(VERSION 3.14)
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


async def test_it_is_built_tried_and_put_in_place(project: Project) -> None:
    await project.make()
    assert below(project.root / "engines" / "hello") == ["hello", "provisioned"]
    assert below(project.root / "provision") == []
    texts = [text for text, _, _ in project.told]
    assert any("Sending it" in text for text in texts)
    assert "Configuring" in texts
    assert project.told[-1][1] == 1.0


async def test_a_compile_error_is_the_sentence(project: Project) -> None:
    project.code = "int main(void) { return nothing; }\n"
    with pytest.raises(CannotBuild, match=r"hello could not be built on mini: .*error"):
        await project.make()
    assert not (project.root / "engines").exists()


async def test_ended_it_leaves_no_process_and_goes_on(project: Project) -> None:
    project.slow_s = 61
    running = asyncio.create_task(project.make())
    while not (running.done() or _runs("61")):
        await asyncio.wait([running], timeout=0.02)
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
