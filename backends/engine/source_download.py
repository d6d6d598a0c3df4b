"""Getting llama.cpp's source: a pinned sdist by pip, checked, and the part we need."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import sys
import tarfile
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from backends.engine import build_errors, children
from backends.engine.versions import Source
from backends.errors import EngineError
from backends.http_download import sha256_of

_UNUSED = frozenset(
    (".devops", ".github", "benches", "conversion", "docs", "examples", "gguf-py")
) | frozenset(("media", "models", "pocs", "skills", "tests"))
# The last one is of a link to a file that the archive lacks.
_DAMAGED = (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, KeyError)
_RAW_PROGRESS = re.compile(r"^Progress (\d+) of (\d+)$")


async def fetch(
    source: Source,
    folder: Path,
    *,
    env: Mapping[str, str],
    log: BinaryIO,
    on_fraction: Callable[[float], None] = lambda _: None,
    keep_fd: int | None = None,
) -> Path:
    """Let pip bring the sdist into ``folder``, with the user's own settings."""
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
        raise build_errors.explain_fetch(source.requirement, said, folder)
    fetched = await children.in_thread(lambda _: _checked(source, folder))
    if fetched is None:
        raise build_errors.wrong_source(source.requirement)
    return fetched


def _pip_download(source: Source, folder: Path) -> list[str]:
    wanted = folder / "requirement.txt"
    wanted.write_text(f"{source.requirement} --hash=sha256:{source.sha256}\n")
    argv = [sys.executable, "-m", "pip", "download", "--no-input", "--no-deps"]
    argv += ["--no-binary", source.package, "--progress-bar", "raw"]
    return [*argv, "--dest", str(folder), "--requirement", str(wanted)]


def _checked(source: Source, folder: Path) -> Path | None:
    folder.mkdir(parents=True, exist_ok=True)
    for candidate in folder.glob("*.tar.gz"):
        if sha256_of(candidate) == source.sha256:
            return candidate
        candidate.unlink()
    return None


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
    extract(archive, target, partial(_wanted, source), stopped, on_fraction)
    if not (target / "CMakeLists.txt").is_file():
        raise EngineError(
            f"{source.requirement} holds no llama.cpp in {source.subdirectory}",
            "Please report this.",
        )


def _wanted(source: Source, member: tarfile.TarInfo) -> str:
    prefix = PurePosixPath(source.subdirectory).parts
    parts = PurePosixPath(member.name).parts[1:]
    inner = parts[len(prefix) :]
    if parts[: len(prefix)] != prefix or not inner or ".." in inner:
        return ""
    return "/".join(inner) if member.isreg() and inner[0] not in _UNUSED else ""


def extract(
    archive: Path,
    target: Path,
    wanted: Callable[[tarfile.TarInfo], str],
    stopped: Callable[[], bool],
    on_fraction: Callable[[float], None] = lambda _: None,
) -> None:
    """Unpack files, and links beside them, under the names that are ``wanted``."""
    target.mkdir(parents=True, exist_ok=True)
    size_bytes = max(archive.stat().st_size, 1)
    try:
        with archive.open("rb") as raw, tarfile.open(fileobj=raw, mode="r:gz") as tar:
            for member in tar:
                if stopped():
                    return
                if name := wanted(member):
                    _extract(tar, member, target / name)
                    on_fraction(raw.tell() / size_bytes)
    except _DAMAGED as error:
        raise EngineError(f"{archive.name} is damaged ({error})") from error


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    if member.issym():
        if member.linkname in ("..", file.name) or "/" in member.linkname:
            raise tarfile.TarError(f"its link {file.name} leads elsewhere")
        file.symlink_to(member.linkname)
    elif content := tar.extractfile(member):
        with content, file.open("xb") as written:
            shutil.copyfileobj(content, written)
            os.fchmod(written.fileno(), 0o755 if member.mode & 0o100 else 0o644)
