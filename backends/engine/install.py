"""Engines on this machine: found where they may be, and installed in one step."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from shutil import which

import msgspec

from backends.engine.versions import DEFAULT, Source
from backends.errors import EngineError
from backends.paths import ENGINE_DIR_VARIABLE, Paths
from backends.state import NOT_JSON, EngineInfo, EngineSource, Value

MANIFEST = "engine.json"
SERVER = "llama-server"
WORKER = "ggml-rpc-server"
FIT = "llama-fit-params"
BINARIES = (SERVER, WORKER)
"""The programs of a cluster."""
PROGRAMS = (*BINARIES, FIT)
"""The programs of a build; the last one tells the memory of a plan."""


class Manifest(Value, frozen=True, kw_only=True):
    """Facts of an engine we built; ``engine.json`` beside its binaries."""

    key: str
    version: str
    package: str
    sha256: str
    rpc_protocol: str
    accelerator: str
    backends: tuple[str, ...]
    flags: tuple[str, ...]
    host_cpu: str
    """The CPU it was compiled for; another one may lack its instructions."""
    built_at: float
    """Unix seconds."""


def host_cpu() -> str:
    """The machine type and CPU model, for which ``GGML_NATIVE`` compiles."""
    model = ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return f"{platform.system()} {platform.machine()} {model}".strip()


def engine_key(source: Source, flags: Sequence[str]) -> str:
    """Directory name of an engine: its version and a hash of all that shapes it."""
    parts = (source.requirement, source.sha256, host_cpu(), *flags)
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return f"{source.key}-{digest[:10]}"


def options_of(source: Source) -> tuple[str, ...]:
    """CMake's options besides the flags; they make no other engine.

    llama.cpp would compile through ccache where there is one, which takes longer and
    keeps what is not compiled again: a build that is gone on with has its own objects.
    """
    return (
        f"-DLLAMA_BUILD_NUMBER={source.build_number}",
        f"-DLLAMA_BUILD_COMMIT={source.commit}",
        "-DGGML_CCACHE=OFF",
    )


def read_manifest(directory: Path) -> Manifest | None:
    """The manifest of a complete engine; None when anything is missing."""
    try:
        raw = (directory / MANIFEST).read_bytes()
        manifest = msgspec.json.decode(raw, type=Manifest)
    except (OSError, *NOT_JSON):
        return None
    whole = all(os.access(directory / name, os.X_OK) for name in BINARIES)
    return manifest if whole else None


def missing(directory: Path) -> tuple[str, ...]:
    """The programs a build has still to make for an engine; empty when it has all."""
    if read_manifest(directory) is None:
        return PROGRAMS
    return tuple(n for n in PROGRAMS if not os.access(directory / n, os.X_OK))


def installed(paths: Paths) -> list[tuple[Path, Manifest]]:
    try:
        folders = [d for d in paths.engines_dir.iterdir() if d.name[:1] != "."]
    except OSError:
        return []
    pairs = [(d, m) for d in folders if (m := read_manifest(d)) is not None]
    here = host_cpu()
    return sorted(pairs, key=lambda p: (p[1].host_cpu != here, -p[1].built_at))


def accelerators(source: Source, paths: Paths) -> set[str]:
    here = host_cpu()
    return {
        manifest.accelerator
        for _, manifest in installed(paths)
        if (manifest.sha256, manifest.host_cpu) == (source.sha256, here)
    }


def install(built: Path, target: Path, manifest: Manifest) -> None:
    """Copy binaries and manifest to ``target``, which appears whole or not at all."""
    partial = target.parent / f".{target.name}.{os.getpid()}"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        for name in PROGRAMS:
            shutil.copy2(built / name, partial / name)
        finish(partial, target, manifest)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def finish(folder: Path, target: Path, manifest: Manifest) -> None:
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
    (folder / MANIFEST).write_bytes(text + b"\n")
    for path in folder.iterdir():
        if not path.is_symlink():
            _sync(path)
    _sync(folder)
    if target.exists():
        old = target.parent / f".{target.name}.old.{time.time_ns()}"
        target.rename(old)
        shutil.rmtree(old, ignore_errors=True)
    folder.rename(target)
    _sync(target.parent)


def complete(built: Path, target: Path, names: Sequence[str]) -> None:
    """Add programs to an engine that may run; each appears whole or not at all."""
    for name in names:
        partial = target / f".{name}.{os.getpid()}"
        try:
            shutil.copy2(built / name, partial)
            _sync(partial)
            partial.replace(target / name)
        finally:
            partial.unlink(missing_ok=True)
    _sync(target)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
