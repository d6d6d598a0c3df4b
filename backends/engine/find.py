"""Find llama.cpp here: configured, $DLLM_ENGINE_DIR, our cache, PATH."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from shutil import which

from backends.engine.install import FIT, SERVER, WORKER, installed, read_manifest
from backends.engine.versions import DEFAULT
from backends.errors import EngineError
from backends.paths import ENGINE_DIR_VARIABLE, Paths
from backends.state import EngineInfo, EngineSource

WORKER_NAMES = (WORKER, "rpc-server")
"""The worker's name today, and before 2026."""


def find_engine(configured: str | None, paths: Paths) -> EngineInfo:
    """The engine to use: configured, then ``$DLLM_ENGINE_DIR``, our cache, ``PATH``."""
    for named in _named(configured):
        return engine_at(*named)
    for location in (*_cached(paths), *_on_path()):
        return location
    raise EngineError(
        "No llama.cpp with RPC is on this machine (llama-server and ggml-rpc-server)",
        "Get one with: dllm-tui engine get — or name yours with: "
        "dllm-tui engine use PATH.",
    )


def all_engines(configured: str | None, paths: Paths) -> list[EngineInfo]:
    """Every engine in the order ``find_engine`` prefers them; broken ones left out."""
    named = [_look_in(Path(at).expanduser(), by) for at, by, _ in _named(configured)]
    unique: dict[str, EngineInfo] = {}
    for location in filter(None, (*named, *_cached(paths), *_on_path())):
        unique.setdefault(location.server_path, location)
    return list(unique.values())


def _named(configured: str | None) -> Iterator[tuple[str, EngineSource, str]]:
    if configured:
        yield configured, EngineSource.CONFIG, "the setting engine"
    if named := os.environ.get(ENGINE_DIR_VARIABLE):
        yield named, EngineSource.ENV, f"${ENGINE_DIR_VARIABLE}"


def engine_at(folder: str, source: EngineSource, named_by: str) -> EngineInfo:
    path = Path(folder).expanduser().absolute()
    if location := _look_in(path, source):
        return location
    if not os.path.isdir(path):
        problem = "is not a directory"
    elif _program(path, (SERVER,)) or _program(path / "bin", (SERVER,)):
        problem = "has llama-server but no ggml-rpc-server (build it with GGML_RPC=ON)"
    else:
        problem = "holds no llama-server"
    raise EngineError(
        f"{path}, named by {named_by}, {problem}",
        "Name the directory of a llama.cpp built with RPC, or get one with: "
        "dllm-tui engine get.",
    )


def _look_in(folder: Path, source: EngineSource) -> EngineInfo | None:
    for candidate in (folder, folder / "bin"):
        server = _program(candidate, (SERVER,))
        worker = _program(candidate, WORKER_NAMES)
        if server and worker:
            manifest = read_manifest(candidate)
            return EngineInfo(
                directory=str(candidate),
                server_path=server,
                worker_path=worker,
                source=source,
                fit_path=_program(candidate, (FIT,)),
                rpc_protocol=manifest.rpc_protocol if manifest else "",
                backends=manifest.backends if manifest else (),
            )
    return None


def _program(folder: Path, names: tuple[str, ...]) -> str:
    for name in names:
        path = folder / name
        # Of a folder that one may not enter, pathlib raises.
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return str(path)
    return ""


def _cached(paths: Paths) -> Iterator[EngineInfo]:
    engines = installed(paths)
    engines.sort(key=lambda pair: pair[1].rpc_protocol != DEFAULT.rpc_protocol)
    for folder, _ in engines:
        if location := _look_in(folder, EngineSource.CACHE):
            yield location


def _on_path() -> Iterator[EngineInfo]:
    server = which(SERVER)
    if server and (location := _look_in(Path(server).parent, EngineSource.PATH)):
        yield location
    elif server and (worker := next(filter(None, map(which, WORKER_NAMES)), None)):
        yield EngineInfo(
            directory=str(Path(server).parent),
            server_path=server,
            worker_path=worker,
            source=EngineSource.PATH,
            fit_path=which(FIT) or "",
        )
