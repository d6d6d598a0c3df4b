"""Building on a peer: a small project of CMake, for real; ended and gone on with."""

from __future__ import annotations

import asyncio
import shutil
import tarfile
from typing import TYPE_CHECKING

import psutil
import pytest

from backends.machines import provisioning
from backends.machines.probing import Probed, Tool, survey
from backends.machines.provisioning import Build, build
from backends.machines.shell import CannotBuild

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from pathlib import Path
    from typing import Any

    from backends.machines.ssh.files import Files
    from tests.unit.machines.local_shell import LocalShell

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

    def __init__(self, folder: Path, shell: LocalShell, files: Files) -> None:
        self.folder = folder
        self.shell = shell
        self.files = files
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
        """Build it there."""
        toolchain = provisioning.toolchain_of(
            await survey(self.shell, "tools", "system"), "x"
        )
        await build(
            self.shell,
            self.files,
            self.job,
            toolchain,
            str(self.root),
            str(self.root / "engines" / "hello"),
            lambda *told: self.told.append(told),
        )


@pytest.fixture
def project(tmp_path: Path, shell: LocalShell, files: Files) -> Project:
    """The project."""
    folder = tmp_path / "project"
    folder.mkdir()
    return Project(folder, shell, files)


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
        provisioning.toolchain_of(Probed(os="Linux", tools=tools(**found)), "pi")


def test_jobs_fit_the_memory() -> None:
    found = tools(cc="1.0", cxx="1.0", cmake="3.25.1", make="4.3")
    peer = Probed(tools=found, cores=16, memory_free_bytes=3_500_000_000)
    toolchain = provisioning.toolchain_of(peer, "pi")
    assert toolchain.jobs == 3
    assert toolchain.options[:2] == ("-G", "Unix Makefiles")


def test_what_may_be_copied() -> None:
    native = ("-DGGML_NATIVE=ON",)
    flags = frozenset({"avx2", "avx512f", "nopl"})
    head = Probed(os="Linux", arch="x86_64", libc="glibc 2.36", cpu_flags=flags)
    older = Probed(os="Linux", arch="x86_64", libc="glibc 2.31", cpu_flags=flags)
    assert provisioning.misfit(head, older, native) == ""
    less = Probed(os="Linux", arch="x86_64", libc="glibc 2.36")
    assert provisioning.misfit(head, less, native) == "its CPU lacks avx2, avx512f"
    assert provisioning.misfit(head, less, ()) == ""
    musl = Probed(os="Linux", arch="x86_64", libc="musl 1.2.5")
    assert "they need glibc 2.36" in provisioning.misfit(head, musl, ())
    assert "it runs Darwin" in provisioning.misfit(head, Probed(os="Darwin"), ())
    arm = Probed(os="Linux", arch="arm64", libc="glibc 2.36")
    assert "it is arm64" in provisioning.misfit(head, arm, ())
