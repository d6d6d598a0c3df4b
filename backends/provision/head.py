"""What the head has to give: its programs, their hashes, the machine they are for."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from backends.engine import install
from backends.engine.build import CMAKE_FLAGS
from backends.engine.children import run
from backends.engine.fetch import sha256
from backends.errors import DllmError, UsageError
from backends.machines.probe import script
from backends.machines.probe_text import Probed, parse_probe
from backends.state import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from backends.paths import Paths
    from backends.state import EngineInfo

MARKER = "provisioned"
"""A file in everything we put onto a peer; what lacks it is never removed."""
_LIBRARIES = ("*.so", "*.so.*", "*.dylib", "*.metal")


class Sent(Value, frozen=True, kw_only=True):
    """One file of a folder that goes to a peer."""

    name: str
    path: Path
    sha256: str
    trial: str = "-"
    """The option to try it with there; ``-`` for what is no program."""


class Parcel(Value, frozen=True, kw_only=True):
    """A folder that goes to a peer and appears there whole."""

    folder: str
    """Below our cache there: ``engines/7.0.0-f5c0a3e097``."""
    files: tuple[Sent, ...]

    @property
    def digest(self) -> str:
        """Tells it from another parcel for the same folder."""
        text = "\n".join(f"{file.sha256} {file.name}" for file in self.files)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def size_bytes(self) -> int:
        """All files together."""
        return sum(file.path.stat().st_size for file in self.files)


async def this_machine(env: Mapping[str, str]) -> Probed:
    """What this machine is, by the same script that looks at a peer.

    Raises:
        DllmError: ``sh`` does not run here.
    """
    argv = ["sh", "-c", script(), "sh", "system"]
    try:
        _, lines = await run(argv, env=env)
    except OSError as error:
        raise DllmError(f"Cannot run sh here ({error.strerror})") from error
    return parse_probe("".join(f"{line}\n" for line in lines))


async def engine_parcel(engine: EngineInfo, paths: Paths) -> Parcel:
    """The engine's programs and the libraries beside them, with a manifest.

    Raises:
        EngineError: it does not run here.
        OSError: a file of it cannot be read, or the cache cannot be written.
    """
    manifest = await manifest_of(engine)
    return await asyncio.to_thread(_engine_parcel, engine, manifest, paths)


async def manifest_of(engine: EngineInfo) -> install.Manifest:
    """Its own manifest, or for an engine that is not ours what it tells of itself.

    Raises:
        EngineError: it does not run here.
    """
    folder = Path(engine.directory)
    manifest = await asyncio.to_thread(install.read_manifest, folder)
    if manifest is not None:
        return manifest
    digest = await asyncio.to_thread(sha256, Path(engine.worker_path))
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


def _engine_parcel(
    engine: EngineInfo, manifest: install.Manifest, paths: Paths
) -> Parcel:
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
    return Parcel(folder=f"engines/{manifest.key}", files=_hashed(files))


def relay_parcel(relay: Path, version: str, paths: Paths) -> Parcel:
    """Our relay, with the hash of it as a mark of what it was made from.

    Raises:
        OSError: it cannot be read, or the cache cannot be written.
    """
    notes = _notes(paths, f"relay-{version}", {"made-from": sha256(relay).encode()})
    files = [("dllm-relay", relay, "--version")]
    files += [(path.name, path, "-") for path in notes]
    return Parcel(folder=f"relay/{version}", files=_hashed(files))


async def relay_version(relay: Path, env: Mapping[str, str]) -> str:
    """What ``dllm-relay --version`` says.

    Raises:
        UsageError: it is not our relay, or does not run.
    """
    try:
        code, lines = await run([str(relay), "--version"], env=env)
    except OSError as error:
        raise UsageError(f"Cannot run {relay} ({error.strerror})") from error
    words = lines[0].split() if lines else []
    if code != 0 or words[:1] != ["dllm-relay"] or len(words) != 2:
        raise UsageError(f"{relay} is not a dllm-relay")
    return words[1]


def manifest_text(manifest: install.Manifest) -> bytes:
    """``engine.json``."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def write_note(folder: Path, name: str, text: bytes) -> Path:
    """A small file that goes along, written only when it is new: its hash lasts.

    Raises:
        OSError: the cache cannot be written.
    """
    path = folder / name
    if not path.is_file() or path.read_bytes() != text:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    return path


def notes_folder(paths: Paths, name: str) -> Path:
    """Where the small files of one parcel are kept here."""
    return paths.cache_dir / "parcels" / name


def _notes(paths: Paths, parcel: str, texts: dict[str, bytes]) -> list[Path]:
    folder = notes_folder(paths, parcel)
    marked = {**texts, MARKER: b"by dllm-tui\n"}
    return [write_note(folder, name, text) for name, text in marked.items()]


def _hashed(files: Iterable[tuple[str, Path, str]]) -> tuple[Sent, ...]:
    return tuple(
        Sent(name=name, path=path, sha256=sha256(path), trial=trial)
        for name, path, trial in files
    )
