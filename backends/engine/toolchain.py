"""The tools of a build: compilers, CMake and Ninja, found or fetched by pip."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING

from backends.engine import build_errors, children
from backends.engine.compiling import Toolchain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import BinaryIO

CMAKE_MIN = (3, 14)
"""The least version for llama.cpp's CMakeLists.txt."""
_PROBE_S = 20.0


async def find_tools(
    fetched: Path,
    *,
    jobs: int,
    env: Mapping[str, str],
    log: BinaryIO,
    need_bytes: int,
    notify: Callable[[str], None] = lambda _: None,
) -> Toolchain:
    """Find everything on this machine; pip may bring CMake and Ninja into ``fetched``.

    Raises:
        NoCompiler: no C or C++ compiler that runs.
        BuildError: CMake or Ninja are missing and pip cannot bring them.
    """
    cc, cxx = await asyncio.to_thread(_compilers)
    cmake, ninja = await asyncio.to_thread(_build_tools, fetched)
    if not (cmake and ninja):
        notify("Fetching CMake and Ninja with pip")
        await _pip_install(fetched, env=env, log=log, need_bytes=need_bytes)
        cmake, ninja = await asyncio.to_thread(_build_tools, fetched)
    if not (cmake and ninja):
        raise build_errors.FetchFailed(
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


async def _pip_install(
    target: Path, *, env: Mapping[str, str], log: BinaryIO, need_bytes: int
) -> None:
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    argv = [sys.executable, "-m", "pip", "install", "--no-input", "--quiet"]
    argv += ["--target", str(partial), "cmake>=3.20", "ninja"]
    code, lines = await children.run(argv, env=env, log=log)
    if code != 0:
        raise build_errors.explain_fetch("cmake and ninja", lines, target, need_bytes)
    shutil.rmtree(target, ignore_errors=True)
    partial.replace(target)
