"""Where llama.cpp is here: configured, $DLLM_ENGINE_DIR, our cache, PATH."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING

from backends.engine.install import SERVER, WORKER, installed
from backends.engine.versions import DEFAULT
from backends.errors import EngineError
from backends.state import Value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backends.paths import Paths

ENGINE_DIR_VARIABLE = "DLLM_ENGINE_DIR"
WORKER_NAMES = (WORKER, "rpc-server")
"""The worker's name today, and before 2026."""


class EngineSource(StrEnum):
    """How an engine was found."""

    CONFIG = "config"
    ENV = "env"
    CACHE = "cache"
    PATH = "path"


class EngineLocation(Value, frozen=True, kw_only=True):
    """The two programs of one llama.cpp."""

    directory: str
    server_path: str
    worker_path: str
    source: EngineSource


def find_engine(configured: str | None, paths: Paths) -> EngineLocation:
    """The engine to use: configured, then ``$DLLM_ENGINE_DIR``, our cache, ``PATH``.

    Raises:
        EngineError: none is found, or the one named explicitly is not one.
    """
    if configured:
        return engine_at(configured, EngineSource.CONFIG, "the setting engine")
    if named := os.environ.get(ENGINE_DIR_VARIABLE):
        return engine_at(named, EngineSource.ENV, f"${ENGINE_DIR_VARIABLE}")
    for location in (*_cached(paths), *_on_path()):
        return location
    raise EngineError(
        "No llama.cpp with RPC is on this machine (llama-server and ggml-rpc-server)",
        "Build one with: dllm-tui engine build — or name yours with: "
        "dllm-tui engine use PATH.",
    )


def all_engines(configured: str | None, paths: Paths) -> list[EngineLocation]:
    """Every engine in the order ``find_engine`` prefers them; broken ones left out."""
    found: list[EngineLocation] = []
    named = ((configured, EngineSource.CONFIG),)
    for folder, source in (
        *named,
        (os.environ.get(ENGINE_DIR_VARIABLE), EngineSource.ENV),
    ):
        if folder and (location := _look_in(Path(folder).expanduser(), source)):
            found.append(location)
    unique: dict[str, EngineLocation] = {}
    for location in (*found, *_cached(paths), *_on_path()):
        unique.setdefault(location.server_path, location)
    return list(unique.values())


def engine_at(folder: str, source: EngineSource, named_by: str) -> EngineLocation:
    """The engine in a folder, or in its ``bin``.

    Raises:
        EngineError: a program is missing there, naming which.
    """
    path = Path(folder).expanduser().absolute()
    if location := _look_in(path, source):
        return location
    if not path.is_dir():
        problem = "is not a directory"
    elif _program(path, (SERVER,)) or _program(path / "bin", (SERVER,)):
        problem = "has llama-server but no ggml-rpc-server (build it with GGML_RPC=ON)"
    else:
        problem = "holds no llama-server"
    raise EngineError(
        f"{path}, named by {named_by}, {problem}",
        "Name the directory of a llama.cpp built with RPC, or build one with: "
        "dllm-tui engine build.",
    )


def _look_in(folder: Path, source: EngineSource) -> EngineLocation | None:
    for candidate in (folder, folder / "bin"):
        server = _program(candidate, (SERVER,))
        worker = _program(candidate, WORKER_NAMES)
        if server and worker:
            return EngineLocation(
                directory=str(candidate),
                server_path=server,
                worker_path=worker,
                source=source,
            )
    return None


def _program(folder: Path, names: tuple[str, ...]) -> str:
    for name in names:
        path = folder / name
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    return ""


def _cached(paths: Paths) -> Iterator[EngineLocation]:
    """Our own engines, the default version first."""
    engines = installed(paths)
    engines.sort(key=lambda pair: pair[1].rpc_protocol != DEFAULT.rpc_protocol)
    for folder, _ in engines:
        if location := _look_in(folder, EngineSource.CACHE):
            yield location


def _on_path() -> Iterator[EngineLocation]:
    server = which(SERVER)
    if server is None:
        return
    if location := _look_in(Path(server).parent, EngineSource.PATH):
        yield location
        return
    for name in WORKER_NAMES:
        if worker := which(name):
            yield EngineLocation(
                directory=str(Path(server).parent),
                server_path=server,
                worker_path=worker,
                source=EngineSource.PATH,
            )
            return
