"""A model for a peer: the files it is to have, and every way that may lead there."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

import asyncssh

from backends.controller.memory_usage import files_here
from backends.errors import DllmError, ModelError
from backends.machine_names import at_peer
from backends.machines.peer_downloads import (
    Addresses,
    ByItself,
    FromHere,
    FromHub,
    FromPeer,
    Wanted,
    Way,
    whole_files,
)
from backends.machines.ssh.files import read_at
from backends.models.download import hub_environment, remote_addresses
from backends.models.header import read_header
from backends.models.identity import files_of, full_sha256
from backends.models.layer_file import Run, layer_files
from backends.models.parts import part_paths
from backends.state import ModelCatalogue, ModelFile
from backends.state.models import Delivered, RemoteModel

if TYPE_CHECKING:
    from backends.machines.peer import SshPeer
    from backends.machines.peers import Peers

CHUNK_BYTES = 1 << 20
LOOK_S = 20.0
"""Longest wait for a peer to show the header of a model that may be the same."""


class CopySource(NamedTuple):
    headers: tuple[Path, ...]
    """Files here that have at least its headers, and its sizes."""
    names: tuple[str, ...]
    sha256s: tuple[str, ...]
    """Of the whole files, where that is announced."""
    ways: tuple[Way, ...]
    origin: str
    """Another for each version of it."""
    renew: Callable[[], Awaitable[None]] | None = None


@dataclass(frozen=True, eq=False)
class ModelCopies:
    """Has peers get models; ``catalogue`` gives those that were found here.

    Headers are kept below ``cache``.
    """

    _peers: Peers
    _catalogue: Callable[[], ModelCatalogue]
    _cache: Path

    async def deliver(
        self, peer: SshPeer, source: str, layers: str, settings: Mapping[str, str]
    ) -> Delivered:
        await self._peers.reached([peer.name])
        found = _of_known_origin(await self._found(peer, source, settings))
        if layers:
            found = await asyncio.to_thread(_checked, found)
        wanted = await asyncio.to_thread(_wanted, found, layers)
        return await peer.deliver(wanted, found.ways, found.renew)

    async def _found(
        self, peer: SshPeer, source: str, settings: Mapping[str, str]
    ) -> CopySource:
        if there := at_peer(source):
            return await self._at_peer(*there)
        if os.path.isabs(source):
            files = tuple(await asyncio.to_thread(files_of, Path(source)))
            names = tuple(file.name for file in files)
            ways = (FromHere(files),)
            return CopySource(files, names, ("",) * len(files), ways, source)
        env, headers = hub_environment(settings), self._cache / "remote"

        async def ask() -> RemoteModel:
            return await remote_addresses(source, headers, env)

        model = await ask()
        if model.problem:
            raise ModelError(model.problem)
        addresses = Addresses(model, ask)
        copies = tuple(part_paths(Path(model.header)))
        here = await self._here(copies)
        elsewhere = await self._elsewhere(peer, copies)
        return CopySource(
            headers=copies,
            names=tuple(PurePosixPath(file.name).name for file in model.files),
            sha256s=tuple(file.sha256 for file in model.files),
            ways=(*here, ByItself(addresses), *elsewhere, FromHub(addresses)),
            # The folder of a header is called by its address, ETag and last change.
            origin=copies[0].parent.name,
            renew=addresses.renew,
        )

    async def _at_peer(self, name: str, path: str) -> CopySource:
        other = self._peers.ssh(name)
        await self._peers.reached([name])
        info = await other.model(path)
        copies = files_here(info, self._cache / "headers")
        parts = [str(part) for part in part_paths(PurePosixPath(path))]
        return CopySource(
            headers=tuple(map(Path, copies)),
            names=tuple(PurePosixPath(part).name for part in parts),
            sha256s=("",) * len(parts),
            ways=(FromPeer(other.connection, parts),),
            origin=f"{name}:{path}",
        )

    async def _here(self, copies: Sequence[Path]) -> list[FromHere]:
        for model in self._catalogue().models:
            if _is_alike(model, copies) and not model.problem:
                files = await asyncio.to_thread(files_of, Path(model.path))
                if await asyncio.to_thread(_same_header, files[0], copies[0]):
                    return [FromHere(files)]
        return []

    async def _elsewhere(self, peer: SshPeer, copies: Sequence[Path]) -> list[FromPeer]:
        """Files of other peers with the same header."""
        ways = []
        for other in self._peers.values():
            if other.name == peer.name or other.facts is None:
                continue
            for model in other.facts.models:
                if not _is_alike(model, copies):
                    continue
                try:
                    shell = self._peers.ssh(other.name).connection
                    async with asyncio.timeout(LOOK_S), shell.files() as sftp:
                        theirs = await _beginning(sftp, model.path, copies[0])
                except (DllmError, asyncssh.Error, OSError):
                    continue
                if theirs:
                    parts = part_paths(PurePosixPath(model.path))
                    ways.append(FromPeer(shell, [str(part) for part in parts]))
                break
        return ways


def _is_alike(model: ModelFile, copies: Sequence[Path]) -> bool:
    if PurePath(model.path).name != copies[0].name:
        return False
    return model.size_bytes == sum(copy.stat().st_size for copy in copies)


async def _beginning(sftp: asyncssh.SFTPClient, path: str, copy: Path) -> bool:
    length = read_header(copy).data_offset
    async with sftp.open(path, "rb") as file:
        at = 0
        with copy.open("rb") as ours:
            while at < length:
                theirs = await read_at(file, min(CHUNK_BYTES, length - at), at)
                if not theirs or ours.read(len(theirs)) != theirs:
                    return False
                at += len(theirs)
    return True


def _same_header(file: Path, copy: Path) -> bool:
    try:
        length = read_header(copy).data_offset
        with file.open("rb") as ours, copy.open("rb") as theirs:
            return ours.read(length) == theirs.read(length)
    except OSError:
        return False


def _of_known_origin(found: CopySource) -> CopySource:
    # No hash tells a copy from another model of the same header.
    if found.renew is None or all(found.sha256s):
        return found
    ways = (way for way in found.ways if not isinstance(way, FromHere | FromPeer))
    return found._replace(ways=tuple(ways))


def _checked(found: CopySource) -> CopySource:
    ways = (
        way
        for way in found.ways
        if not isinstance(way, FromHere)
        or not all(found.sha256s)
        or tuple(map(full_sha256, way.files)) == found.sha256s
    )
    return found._replace(ways=tuple(ways))


def _wanted(found: CopySource, layers: str) -> list[Wanted]:
    here = next((way for way in found.ways if isinstance(way, FromHere)), None)
    if here and not layers and not all(found.sha256s):
        return whole_files(here.files)
    if not layers:
        sizes = [copy.stat().st_size for copy in found.headers]
        return [
            Wanted(name, b"", (Run(0, size, 0),), sha256, origin=found.origin)
            for name, size, sha256 in zip(
                found.names, sizes, found.sha256s, strict=True
            )
        ]
    # Of an unchecked copy the hash would say nothing.
    sources = here.files if here and (all(found.sha256s) or not found.renew) else ()
    return [
        Wanted(
            file.name,
            file.header,
            file.runs,
            _sha256(sources[index], file.header, file.runs) if sources else "",
            origin=found.origin,
        )
        for index, file in enumerate(layer_files(found.headers[0], layers))
    ]


def _sha256(source: Path, header: bytes, runs: Sequence[Run]) -> str:
    digest = hashlib.sha256(header)
    with source.open("rb") as file:
        for run in runs:
            file.seek(run.source_at)
            left = run.length
            while left and (chunk := file.read(min(CHUNK_BYTES, left))):
                digest.update(chunk)
                left -= len(chunk)
    return digest.hexdigest()
