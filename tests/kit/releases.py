"""Release archives like llama.cpp's own, made of a real engine."""

from __future__ import annotations

import gzip
import hashlib
import platform
import tarfile
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path

from backends.engine.install import PROGRAMS
from backends.engine.releases import Archive, Release
from backends.state import EngineInfo

TAG = "b4242"
ARCHES = {"x86_64": "x64", "aarch64": "arm64"}
HERE = f"ubuntu-{ARCHES.get(platform.machine(), platform.machine())}"
LINKS = {"libggml.so": "libggml.so.0", "libggml.so.0": "libggml.so.0.9.4"}


@cache
def read(path: str) -> bytes:
    return Path(path).read_bytes()


def contents_of(engine: EngineInfo) -> dict[str, bytes | str]:
    """Programs and libraries of an archive; a ``str`` is the target of a link."""
    programs = {n: read(f"{engine.directory}/{n}") for n in PROGRAMS}
    library = {"libggml.so.0.9.4": b"\x7fELF", "LICENSE": b"MIT", "llama-cli": b"x"}
    return {**programs, **library, **LINKS}


def tar_of(contents: Mapping[str, bytes | str], top: str = f"llama-{TAG}/") -> bytes:
    files = [_compressed(f"{top}{name}", content) for name, content in contents.items()]
    return b"".join(files) + gzip.compress(bytes(1024))


@lru_cache(maxsize=16)
def _compressed(name: str, content: bytes | str) -> bytes:
    """One file of an archive: parts compressed alone are one archive together."""
    info = tarfile.TarInfo(name)
    info.mode = 0o755
    body = b""
    if isinstance(content, str):
        info.type, info.linkname = tarfile.SYMTYPE, content
    else:
        info.size, body = len(content), content + bytes(-len(content) % 512)
    return gzip.compress(info.tobuf() + body, 1)


def archive_of(content: bytes, platform_name: str = HERE) -> Archive:
    return Archive(
        name=f"llama-{TAG}-bin-{platform_name}.tar.gz",
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )


def release_of(*archives: Archive) -> Release:
    return Release(tag=TAG, commit="c" * 40, archives=archives)
