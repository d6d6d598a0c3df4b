"""Getting llama.cpp: its own release archive where one runs here, else a build."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path, PurePosixPath
from tarfile import TarInfo

from backends.download_process import downloaded
from backends.engine import ask, children, install
from backends.engine.accelerators import SEEN, Accelerator, look
from backends.engine.build import build_engine, locked
from backends.engine.build_errors import ROOM, disk_errors
from backends.engine.compiling import Here
from backends.engine.install import WORKER_NAMES, engine_at
from backends.engine.logs import end_reason
from backends.engine.releases import (
    PACKAGE,
    Archive,
    Release,
    archives_for,
    find_release,
    url_of,
)
from backends.engine.source_download import extract
from backends.errors import DllmError, EngineError, MachineError, UsageError
from backends.machine_queries import MachineQueries
from backends.paths import Paths
from backends.printable import last_line, printable
from backends.state import EngineInfo, EngineProgress, EngineSource, EngineStage

Tell = Callable[[EngineProgress], None]

DOWNLOAD = "backends.http_download"
_HELD = re.compile(r".*\.(so(\.[\w.]+)?|dylib|metal)|LICENSE.*")
"""Libraries, which go beside the programs, and licences."""


async def get_engine(
    version: str | None,
    paths: Paths,
    host: MachineQueries,
    *,
    progress: Tell = lambda _: None,
    accelerator: str = "auto",
    jobs: int | None = None,
) -> EngineInfo:
    """Get a release of llama.cpp; build it where none can be had or used.

    If ``version`` names a release, nothing else will do.
    Cancelling it keeps what has arrived; calling it again goes on from there.
    """
    release = find_release(version)
    try:
        return await get_release(
            release, paths, host, progress=progress, accelerator=accelerator
        )
    except DllmError as error:
        if version is not None or isinstance(error, UsageError | MachineError):
            raise
        why = f"{error.what}: building llama.cpp from source instead."
        progress(EngineProgress(stage=EngineStage.WAIT, text=why))
    return await build_engine(
        None, paths, progress=progress, jobs=jobs, accelerator=accelerator
    )


async def get_release(
    release: Release,
    paths: Paths,
    host: MachineQueries,
    *,
    progress: Tell = lambda _: None,
    accelerator: str = "auto",
) -> EngineInfo:
    """Get the archive that suits this machine, and try its programs."""
    sight = await look(Here(os.environ), SEEN)
    machine = platform.system(), platform.machine()
    archives = archives_for(release, *machine, sight, accelerator)
    for archive in archives:
        engine = await _install(release, archive, paths, host, progress)
        on_gpu = archive.accelerator not in (Accelerator.NONE, Accelerator.METAL)
        if not on_gpu or await ask.list_devices(host, engine):
            break
        text = f"{archive.name} finds no GPU that it can use"
        progress(EngineProgress(stage=EngineStage.WAIT, text=text))
    progress(EngineProgress(stage=EngineStage.DONE, fraction=1.0))
    return engine


async def _install(
    release: Release,
    archive: Archive,
    paths: Paths,
    host: MachineQueries,
    progress: Tell,
) -> EngineInfo:
    target = paths.engines_dir / archive.key
    async with _making(target, archive, paths, progress) as fresh:
        if install.read_manifest(target) is None:
            await unpack_release(release, archive, fresh, paths, progress)
            text = "Trying its programs"
            progress(EngineProgress(stage=EngineStage.TRY, text=text))
            protocol = await _try(host, release, fresh)
            manifest = release_manifest(release, archive, protocol)
            await asyncio.to_thread(install.finish, fresh, target, manifest)
    return engine_at(str(target), EngineSource.CACHE, "the release")


async def release_for_others(
    release: Release, archive: Archive, paths: Paths, progress: Tell
) -> Path:
    target = paths.cache_dir / "releases" / archive.key
    async with _making(target, archive, paths, progress) as fresh:
        if not target.is_dir():
            await unpack_release(release, archive, fresh, paths, progress)
            await asyncio.to_thread(fresh.rename, target)
    return target


@asynccontextmanager
async def _making(
    target: Path, archive: Archive, paths: Paths, progress: Tell
) -> AsyncIterator[Path]:
    """A folder to make ``target`` in, for one process at a time; lost afterwards."""
    fresh = target.with_name(f".{archive.key}.new")
    lock = paths.cache_dir / "releases" / f"{archive.key}.lock"
    with disk_errors(fresh.parent, lambda: f"unpacking {archive.name}"):
        async with locked(lock, progress):
            try:
                yield fresh
            finally:
                await asyncio.to_thread(shutil.rmtree, fresh, ignore_errors=True)


def release_manifest(
    release: Release, archive: Archive, protocol: str
) -> install.Manifest:
    accelerator = archive.accelerator
    extra = () if accelerator is Accelerator.NONE else (accelerator.value,)
    return install.Manifest(
        key=archive.key,
        version=release.tag,
        package=PACKAGE,
        sha256=archive.sha256,
        rpc_protocol=protocol,
        accelerator=accelerator.value,
        backends=("cpu", *extra, "rpc"),
        flags=(),
        host_cpu=install.host_cpu(),
        built_at=time.time(),
    )


# --- the archive ---------------------------------------------------------------------


async def unpack_release(
    release: Release, archive: Archive, target: Path, paths: Paths, progress: Tell
) -> None:
    """Download an archive and what goes with it, and unpack both into a folder."""
    runtime = release.runtime_of(archive)
    wanted = [one for one in (archive, runtime) if one is not None]
    files = [await _download(release, one, paths, progress) for one in wanted]
    progress(EngineProgress(stage=EngineStage.UNPACK, text="Unpacking llama.cpp"))
    await children.in_thread(lambda stopped: _unpack(files, target, stopped))
    for file in files:
        file.unlink()


async def _download(
    release: Release, archive: Archive, paths: Paths, progress: Tell
) -> Path:
    file = paths.cache_dir / "releases" / archive.name
    url, size_bytes = url_of(release, archive), archive.size_bytes
    args = (url, str(file), archive.sha256, str(size_bytes))
    try:
        work = downloaded(DOWNLOAD, args, archive.name)
        async with aclosing(work) as told:
            async for one in told:
                progress(
                    EngineProgress(
                        stage=EngineStage.DOWNLOAD,
                        fraction=one.done_bytes / size_bytes,
                        text=one.file,
                        done_bytes=one.done_bytes,
                        size_bytes=size_bytes,
                    )
                )
    except MachineError as error:
        raise MachineError(error.what, ROOM) from error
    except DllmError as error:
        hint = "Check the network, HTTPS_PROXY and DLLM_ENGINE_URL, then repeat it."
        raise EngineError(error.what, hint) from error
    return file


def _unpack(files: list[Path], target: Path, stopped: Callable[[], bool]) -> None:
    """Put programs and libraries of archives side by side, whatever their folders."""
    shutil.rmtree(target, ignore_errors=True)
    for file in files:
        extract(file, target, _wanted, stopped)
    held = {path.name for path in target.iterdir()}
    for name in install.BINARIES:
        if name not in held and not stopped():
            raise EngineError(
                f"{files[0].name} holds no {name}, so no llama.cpp with RPC"
            )


def _wanted(member: TarInfo) -> str:
    name = PurePosixPath(member.name).name
    # The worker had another name once.
    name = install.WORKER if name in WORKER_NAMES else name
    is_held = name in install.PROGRAMS or _HELD.fullmatch(name)
    return name if is_held and name.isprintable() else ""


# --- whether it runs here ------------------------------------------------------------


async def _try(host: MachineQueries, release: Release, folder: Path) -> str:
    """Run the programs, and return the RPC protocol that they speak."""

    def cannot(why: str) -> EngineError:
        return EngineError(
            f"llama.cpp's release {release.tag} does not run here: {why}"
        )

    for option, must in (("--version", ""), ("--help", "--rpc")):
        argv = (str(folder / install.SERVER), option)
        try:
            done = await host.run(argv, env=ask.NO_GPU, timeout_s=ask.ANSWER_S)
        except MachineError as error:
            if "No such file" in error.what:
                raise cannot("it is for another C library") from error
            raise cannot(error.what) from error
        if done.code != 0:
            lines = done.text.splitlines()
            why = end_reason(lines, done.code, done.signal)
            raise cannot(why or printable(last_line(done.text)))
        if must and must not in ask.parse_flags(done.text):
            raise cannot(f"{install.SERVER} was built without RPC")
    try:
        protocol = await ask.rpc_protocol(host, str(folder / install.WORKER))
    except EngineError as error:
        raise cannot(error.what.replace(f"{folder}/", "")) from error
    if not protocol:
        raise cannot("its worker does not tell which RPC protocol it speaks")
    return protocol
