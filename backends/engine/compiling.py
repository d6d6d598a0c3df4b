"""Compiling llama.cpp: the tools, and the steps of a build on whatever machine.

The steps are one script that reports line by line.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from shutil import which
from typing import BinaryIO, Protocol

from backends.engine import build_errors, children
from backends.errors import EngineError
from backends.state import Value

BEAT = "~"
"""A line a long script prints to learn whether anybody still listens."""
LINES_KEPT = 400
LINES_SHOWN = 15
MEMORY_PER_JOB_BYTES = 1_000_000_000
"""The memory of one compiler; more jobs than fit would be killed or swap."""
_STEP = re.compile(r"^\[\s*(\d+)(?:/(\d+)|%)\]\s*(.*)$")


class Runner(Protocol):
    """A machine on which the scripts of a build run."""

    async def run(
        self, name: str, *args: str, on_line: Callable[[str], None]
    ) -> tuple[int, str]:
        """Run ``scripts/NAME.sh``; its exit status and the last thing it said."""


class Toolchain(Value, frozen=True, kw_only=True):
    cmake: str
    generator: str
    maker: str
    """Ninja or make, as the generator wants it."""
    cc: str
    cxx: str
    jobs: int

    @property
    def options(self) -> tuple[str, ...]:
        return (
            *("-G", self.generator),
            f"-DCMAKE_MAKE_PROGRAM={self.maker}",
            f"-DCMAKE_C_COMPILER={self.cc}",
            f"-DCMAKE_CXX_COMPILER={self.cxx}",
        )


@cache
def script(*names: str, package: str = "backends.engine.scripts") -> str:
    folder = files(package)
    texts = (folder.joinpath(f"{name}.sh").read_text("utf-8") for name in names)
    return "\n".join(texts)


@dataclass(frozen=True, eq=False, repr=False)
class Here:
    _env: Mapping[str, str]
    _log: BinaryIO | None = None
    _keep_fd: int | None = None

    async def run(
        self, name: str, *args: str, on_line: Callable[[str], None]
    ) -> tuple[int, str]:
        def take(line: str) -> None:
            if line != BEAT:
                self._write(line)
                on_line(line)

        argv = ("/bin/sh", "-c", script("common", name), "sh", *args)
        code, lines = await children.run(
            argv, env=self._env, on_line=take, keep_fd=self._keep_fd
        )
        said = [line for line in lines if line != BEAT]
        return code, said[-1] if said else f"exit status {code}"

    def _write(self, line: str) -> None:
        if self._log is not None:
            self._log.write(f"{line}\n".encode(errors="replace"))
            self._log.flush()


class Progress:
    """The output of a build: its last lines, its stage and how far that is."""

    def __init__(
        self,
        tell: Callable[[str, float | None, str], None],
        remember: Path | None = None,
    ) -> None:
        self.lines: list[str] = []
        self.stage = ""
        self._tell = tell
        self._steps = NinjaProgress(remember)

    def feed(self, line: str) -> None:
        if line == BEAT:
            return
        if line.startswith("stage\t"):
            self.stage = line.partition("\t")[2]
            self._tell(self.stage, None, "")
            return
        self.lines = [*self.lines, line][-LINES_KEPT:]
        match = _STEP.match(line)
        if match and self.stage == "compile":
            done, total = int(match[1]), int(match[2] or 100)
            if (fraction := self._steps.fraction(done, total)) is not None:
                self._tell(self.stage, fraction, match[3])

    @property
    def tail(self) -> tuple[str, ...]:
        return tuple(self.lines[-LINES_SHOWN:])


class NinjaProgress:
    """Ninja counts what is left; this remembers how much there was at first."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._all = self._left = 0
        with contextlib.suppress(OSError, ValueError):
            self._all = int(path.read_text()) if path is not None else 0

    def fraction(self, done: int, total: int) -> float | None:
        """The done part of everything, if ``done`` of the ``total`` left is.

        None for a build inside the build, such as that of Vulkan's shader generator.
        """
        if total < self._left:
            return None
        self._left = total
        if total > self._all:
            self._all = total
            if self._path is not None:
                self._path.write_text(str(total))
        return (self._all - total + done) / max(self._all, 1)


async def compile_programs(
    runner: Runner,
    folder: str,
    programs: Sequence[str],
    toolchain: Toolchain,
    options: Sequence[str],
    progress: Progress,
) -> tuple[int, str]:
    """Unpack, configure and compile in ``folder``; programs come into ``programs/``.

    Each step that is done already is not done again. Returns the exit status of
    ``build.sh`` and the last thing it said; ``progress`` has its lines.
    """
    places = (folder, f"{folder}/programs")
    tools = (toolchain.cmake, str(toolchain.jobs), " ".join(programs))
    flags = (*toolchain.options, *options)
    return await runner.run("build", *places, *tools, *flags, on_line=progress.feed)


CMAKE_MIN = (3, 14)
"""The least version for llama.cpp's CMakeLists.txt."""
_PROBE_S = 20.0


async def find_tools(
    fetched: Path,
    *,
    jobs: int,
    env: Mapping[str, str],
    log: BinaryIO,
    notify: Callable[[str], None] = lambda _: None,
) -> Toolchain:
    """Find all of it here; pip may bring CMake and Ninja into ``fetched``."""
    cc, cxx = await asyncio.to_thread(_compilers)
    cmake, ninja = await asyncio.to_thread(_build_tools, fetched)
    if not (cmake and ninja):
        notify("Fetching CMake and Ninja with pip")
        partial = fetched.with_name(fetched.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        argv = [sys.executable, "-m", "pip", "install", "--no-input", "--quiet"]
        argv += ["--target", str(partial), "cmake>=3.20", "ninja"]
        code, lines = await children.run(argv, env=env, log=log)
        if code != 0:
            raise build_errors.explain_fetch("cmake and ninja", lines, fetched)
        shutil.rmtree(fetched, ignore_errors=True)
        partial.replace(fetched)
        cmake, ninja = await asyncio.to_thread(_build_tools, fetched)
    if not (cmake and ninja):
        raise EngineError(
            f"pip installed CMake and Ninja into {fetched}, but they do not run",
            "Install cmake (3.14 or newer) and ninja yourself.",
        )
    return Toolchain(
        cmake=cmake, generator="Ninja", maker=ninja, cc=cc, cxx=cxx, jobs=jobs
    )


def _compilers() -> tuple[str, str]:
    cc = _first_running(os.environ.get("CC"), "cc", "gcc", "clang")
    if not cc:
        raise build_errors.no_compiler("C")
    cxx = _first_running(os.environ.get("CXX"), "c++", "g++", "clang++")
    if not cxx:
        raise build_errors.no_compiler("C++")
    return cc, cxx


def _first_running(*names: str | None) -> str:
    for name in names:
        path = which(name) if name else None
        if path and _version_text(path):
            return path
    return ""


def _build_tools(fetched: Path) -> tuple[str, str]:
    beside = (Path(sysconfig.get_path("scripts")), Path(sys.executable).parent)
    cmakes = (fetched / "cmake/data/bin", fetched / "bin", *beside)
    ninjas = (fetched / "ninja/data/bin", fetched / "bin", *beside)
    return (
        _first_good("cmake", cmakes, CMAKE_MIN),
        _first_good("ninja", ninjas, (1, 8)),
    )


def _first_good(name: str, folders: tuple[Path, ...], least: tuple[int, int]) -> str:
    for path in (which(name), *(which(name, path=str(f)) for f in folders)):
        if path and _version(path) >= least:
            return path
    return ""


def _version(path: str) -> tuple[int, ...]:
    match = re.search(r"(\d+)\.(\d+)", _version_text(path))
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _version_text(path: str) -> str:
    try:
        found = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_S,
            check=False,
            text=True,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout if found.returncode == 0 else ""
