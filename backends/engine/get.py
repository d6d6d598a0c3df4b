"""Getting llama.cpp: its own release archive where one runs here, else a build."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import re
import shutil
import tarfile
import time
from contextlib import aclosing
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from backends.download_process import downloaded
from backends.engine import ask, build_errors, children, install
from backends.engine.accelerators import SEEN, Accelerator, look
from backends.engine.build import build_engine, locked
from backends.engine.compiling import Here
from backends.engine.explain import explain
from backends.engine.fetch import sha256
from backends.engine.find import WORKER_NAMES, engine_at
from backends.engine.releases import PACKAGE, archives_for, find_release, url_of
from backends.errors import DllmError, EngineError, HostError, UsageError
from backends.printable import last_line, printable
from backends.state import EngineInfo, EngineProgress, EngineSource, EngineStage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from backends.engine.releases import Archive, Release
    from backends.paths import Paths
    from backends.questions import Asked

    Tell = Callable[[EngineProgress], None]

_ELSEWHERE = (
    "Check the network, HTTPS_PROXY and DLLM_ENGINE_URL; the same command resumes."
)
UNPACKED = 5
"""About how much larger an archive is with what it holds."""
REACH_S = 10.0
"""Longest wait for the first byte: a build can begin in the meantime."""
LIBRARY = re.compile(r".*\.(so(\.[\w.]+)?|dylib|metal)")
_WORTH = re.compile(r"LICENSE.*")


async def get_engine(
    version: str | None,
    paths: Paths,
    host: Asked,
    *,
    progress: Tell = lambda _: None,
    accelerator: str = "auto",
    jobs: int | None = None,
) -> EngineInfo:
    """Get a release of llama.cpp; build it where none can be had or used.

    Cancelling it keeps what has arrived; calling it again goes on from there.

    Args:
        version: the tag of a release, for which nothing else will do.
        paths: the user's; the engine comes into the cache.
        host: this machine, where the programs are tried.
        progress: gets every step.
        accelerator: as for a build.
        jobs: compilers at once, if it must be built.

    Raises:
        UsageError: no such release is pinned.
        DllmError: the release named cannot be had, or the build failed.
    """
    release = find_release(version)
    try:
        return await get_release(
            release, paths, host, progress=progress, accelerator=accelerator
        )
    except UsageError:
        raise
    except DllmError as error:
        if version is not None:
            raise
        why = f"{error.what}: building llama.cpp from source instead."
        progress(EngineProgress(stage=EngineStage.WAIT, text=why))
    return await build_engine(
        None, paths, progress=progress, jobs=jobs, accelerator=accelerator
    )


async def get_release(
    release: Release,
    paths: Paths,
    host: Asked,
    *,
    progress: Tell = lambda _: None,
    accelerator: str = "auto",
) -> EngineInfo:
    """Get the archive that suits this machine, and try its programs.

    Raises:
        DllmError: there is none, it cannot be got, or it does not run here.
    """
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
    release: Release, archive: Archive, paths: Paths, host: Asked, progress: Tell
) -> EngineInfo:
    target = paths.engines_dir / archive.key
    fresh = target.with_name(f".{archive.key}.new")

    def tell(stage: EngineStage, fraction: None, text: str) -> None:
        progress(EngineProgress(stage=stage, fraction=fraction, text=text))

    lock = paths.cache_dir / "releases" / f"{archive.key}.lock"
    try:
        with _disk_errors(target, archive):
            async with locked(lock, tell):
                if install.read_manifest(target) is None:
                    await unpack_release(release, archive, fresh, paths, progress)
                    tell(EngineStage.TRY, None, "Trying its programs")
                    protocol = await _try(host, release, fresh)
                    manifest = release_manifest(release, archive, protocol)
                    await asyncio.to_thread(install.finish, fresh, target, manifest)
    finally:
        await asyncio.to_thread(shutil.rmtree, fresh, ignore_errors=True)
    return engine_at(str(target), EngineSource.CACHE, "the release")


@contextlib.contextmanager
def _disk_errors(target: Path, archive: Archive) -> Iterator[None]:
    """Errors of the disk as sentences.

    Raises:
        EngineError: an error was one.
    """
    try:
        yield
    except OSError as error:
        if build_errors.is_no_space(error):
            need_bytes = archive.size_bytes * UNPACKED
            raise build_errors.no_space(target.parent, "unpack", need_bytes) from error
        raise EngineError(
            f"Cannot write to {error.filename or target}: {error.strerror or error}",
            "Set XDG_CACHE_HOME to a directory you can write to.",
        ) from error


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


async def release_for_others(
    release: Release, archive: Archive, paths: Paths, progress: Tell
) -> Path:
    """The unpacked archive for other machines; none of it is run here.

    Raises:
        DllmError: it cannot be got, or holds no llama.cpp with RPC.
    """
    target = paths.cache_dir / "releases" / archive.key
    lock = target.with_name(f"{archive.key}.lock")
    fresh = target.with_name(f".{archive.key}.new")
    with _disk_errors(target, archive):
        async with locked(lock, lambda *_: None):
            if not await asyncio.to_thread(target.is_dir):
                await unpack_release(release, archive, fresh, paths, progress)
                await asyncio.to_thread(fresh.rename, target)
    return target


# --- the archive ---------------------------------------------------------------------


async def unpack_release(
    release: Release, archive: Archive, target: Path, paths: Paths, progress: Tell
) -> None:
    """Download an archive and what goes with it, and unpack both into a folder.

    Raises:
        DllmError: it cannot be got, or holds no llama.cpp with RPC.
    """
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
    if file.is_file() and await asyncio.to_thread(sha256, file) == archive.sha256:
        return file
    file.unlink(missing_ok=True)
    url = url_of(release, archive)
    args = (url, str(file), archive.sha256)
    limit = asyncio.timeout(None)
    loop = asyncio.get_running_loop()
    try:
        async with (
            limit,
            aclosing(downloaded("backends.http_download", args, archive.name)) as told,
        ):
            async for one in told:
                if one.size_bytes:
                    limit.reschedule(None)
                elif limit.when() is None:
                    # Its own start may take long on a busy machine.
                    limit.reschedule(loop.time() + REACH_S)
                progress(
                    EngineProgress(
                        stage=EngineStage.DOWNLOAD,
                        fraction=one.done_bytes / archive.size_bytes,
                        text=one.file,
                        done_bytes=one.done_bytes,
                        size_bytes=archive.size_bytes,
                    )
                )
    except TimeoutError as error:
        what = f"{url} gave no answer within {REACH_S:g} s"
        raise EngineError(what, _ELSEWHERE) from error
    except DllmError as error:
        raise EngineError(error.what, _ELSEWHERE) from error
    return file


def _unpack(files: list[Path], target: Path, stopped: Callable[[], bool]) -> None:
    """Put programs and libraries of archives side by side, whatever their folders."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for file in files:
        with tarfile.open(file, "r:gz") as tar:
            for member, name in _wanted(tar):
                if stopped():
                    return
                _extract(tar, member, target / name)
    held = {path.name for path in target.iterdir()}
    for name in (install.SERVER, install.WORKER):
        if name not in held:
            raise EngineError(
                f"{files[0].name} holds no {name}, so no llama.cpp with RPC"
            )


def _wanted(tar: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, str]]:
    for member in tar.getmembers():
        name = PurePosixPath(member.name).name
        # The worker had another name once.
        name = install.WORKER if name in WORKER_NAMES else name
        if member.isdir() or not name.isprintable():
            continue
        if name in install.PROGRAMS or LIBRARY.fullmatch(name) or _WORTH.match(name):
            yield member, name


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    if member.issym():
        inside = PurePosixPath(member.linkname)
        if inside.name != member.linkname:
            raise EngineError(
                f"{Path(str(tar.name)).name} holds a link that leads elsewhere"
            )
        target.unlink(missing_ok=True)
        target.symlink_to(inside)
        return
    try:
        source = tar.extractfile(member)
    except KeyError:
        source = None
    if source is None:
        raise EngineError(f"{_named(tar)} holds something that is no file")
    target.unlink(missing_ok=True)
    with source, target.open("xb") as file:
        shutil.copyfileobj(source, file)
        os.fchmod(file.fileno(), 0o755 if member.mode & 0o100 else 0o644)


def _named(tar: tarfile.TarFile) -> str:
    return Path(str(tar.name)).name


# --- whether it runs here ------------------------------------------------------------


async def _try(host: Asked, release: Release, folder: Path) -> str:
    """Run the programs, and return the RPC protocol that they speak.

    Raises:
        EngineError: one does not run here, or lacks RPC.
    """

    def cannot(why: str) -> EngineError:
        return EngineError(
            f"llama.cpp's release {release.tag} does not run here: {why}"
        )

    for option, must in (("--version", ""), ("--help", "--rpc")):
        argv = (str(folder / install.SERVER), option)
        try:
            done = await host.run(argv, env=ask.NO_GPU, timeout_s=ask.ANSWER_S)
        except HostError as error:
            if "No such file" in error.what:
                raise cannot("it is for another C library") from error
            raise cannot(error.what) from error
        if done.code != 0:
            lines = done.text.splitlines()
            why = explain(lines, done.code, done.signal)
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
