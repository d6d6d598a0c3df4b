"""Models at a peer: copied there, and their headers read from there."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import threading
import time
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO

import asyncssh
import msgspec

from backends.errors import ModelError, UsageError
from backends.machines.provisioning import SPARE_BYTES
from backends.machines.shell import (
    ProvisionError,
    WrongFile,
    lock,
    peer_full,
    refusal,
    rows,
    script,
    transfer_error,
    why_ended,
)
from backends.machines.ssh.files import Meter, upload
from backends.models.header import has_whole_header
from backends.models.identity import (
    files_of,
    full_sha256,
    identity_from,
    identity_of,
    sampled,
    size_in,
)
from backends.models.layers import read_model
from backends.models.parts import part_paths
from backends.models.search import DEFAULT_FOLDER
from backends.state import PeerWork, Value
from backends.writing import set_aside

if TYPE_CHECKING:
    from collections.abc import Callable

    from backends.machines.shell import Shell, ShellResult
    from backends.state import ModelInfo


HASH_S = 3600.0
"""Longest wait for the full hash of a file: a slow disk reads 100 GB in less."""
_DIFFERS = 65
_TAKEN = 73


class _There(Value, frozen=True, kw_only=True):
    """The part of a model that the folder on the peer has."""

    folder: str
    """Absolute."""
    free_bytes: int
    whole: frozenset[str]
    half: dict[str, tuple[str, int]]
    """Of each half copy by name: the identity it belongs to, and its bytes."""


async def copy_model(
    shell: Shell,
    source: Path,
    *,
    report: Callable[[PeerWork], None],
    folder: str = DEFAULT_FOLDER,
) -> tuple[str, ...]:
    """Copy a model, all parts of a split one; instant where the same bytes are there.

    A copy is called ``….part`` until its full SHA-256 is right. Cancelling it, or a
    broken connection, keeps it: the next call goes on, if it is of the same file.

    Args:
        shell: the peer.
        source: the file here, or any part of a split model.
        report: gets the state of the work as it changes.
        folder: where to put it; ``~/`` and relative ones are below the peer's home.

    Returns:
        The paths of the files there.
    """
    job = _Copy(shell, source, report, folder)
    word = hashlib.sha256(f"{folder}/{source.name}".encode()).hexdigest()[:12]
    async with lock(shell, f"copy-{word}", f"Copying {source.name}"):
        return await job.run()


class _Copy:
    """One copy: what, where to, and whom to tell."""

    def __init__(
        self,
        shell: Shell,
        source: Path,
        report: Callable[[PeerWork], None],
        folder: str,
    ) -> None:
        self.shell = shell
        self.parts = files_of(source)
        self.folder = folder
        self.title = f"Copying {source.name} to {shell.name}"
        self._report = report
        if any(bad in part.name for part in self.parts for bad in "\t\n"):
            raise UsageError("A file with a tab or line end in its name is not copied")

    def say(self, detail: str, progress: float | None = None) -> None:
        self._report(PeerWork(title=self.title, detail=detail, progress=progress))

    async def run(self) -> tuple[str, ...]:
        self.say("Looking at what is there")
        ours = await asyncio.to_thread(
            lambda: {part: identity_of(part) for part in self.parts}
        )
        there = await self._look()
        missing = await self._missing(ours, there)
        self._check_room(missing, ours, there)
        total = sum(size_in(ours[part]) for part in missing)
        meter = Meter(total, self.say)
        for part in missing:
            await self._copy(part, ours[part], there, meter)
        return tuple(f"{there.folder}/{part.name}" for part in self.parts)

    async def _look(self) -> _There:
        names = [part.name for part in self.parts]
        told = await self._script("look", *names)
        lines = rows(told.stdout)
        one = {row[0]: row[1] for row in lines}
        return _There(
            folder=one.get("folder", ""),
            free_bytes=_kib(one.get("free", "")),
            whole=frozenset(row[1] for row in lines if row[0] == "whole"),
            half={row[3]: (row[1], _kib(row[2])) for row in lines if row[0] == "half"},
        )

    async def _missing(self, ours: dict[Path, str], there: _There) -> list[Path]:
        for part in self.parts:
            path = f"{there.folder}/{part.name}"
            if part.name in there.whole and await self._identity(path) != ours[part]:
                raise WrongFile(
                    f"Another file is called {path} on {self.shell.name}",
                    "Move it away, or copy to another folder.",
                )
        return [part for part in self.parts if part.name not in there.whole]

    async def _identity(self, path: str) -> str:
        """Of a file there; the helper that could tell need not be installed yet."""
        try:
            async with self.shell.files() as sftp:
                size_bytes = (await sftp.stat(path)).size or 0
                async with sftp.open(path, "rb") as file:
                    pieces = [
                        await _piece(file, offset, length)
                        for offset, length in sampled(size_bytes)
                    ]
        except (asyncssh.Error, OSError) as error:
            raise transfer_error(self.shell.name, error) from error
        return identity_from(size_bytes, pieces)

    def _check_room(
        self, missing: list[Path], ours: dict[Path, str], there: _There
    ) -> None:
        need = sum(size_in(ours[part]) for part in missing)
        taken = [
            there.half[part.name][1]
            for part in missing
            if there.half.get(part.name, ("", 0))[0] == ours[part]
        ]
        free = there.free_bytes + sum(taken)
        if need + SPARE_BYTES > free:
            raise peer_full(self.shell.name, there.folder, need + SPARE_BYTES, free)

    async def _copy(
        self, part: Path, identity: str, there: _There, meter: Meter
    ) -> None:
        """Send one file, and anew if what an earlier try left proves to be wrong."""
        if part.name in there.half and there.half[part.name][0] != identity:
            await self._script("drop", part.name)
        hashing = asyncio.create_task(_sha256(part))
        try:
            resumed = await self._send(part, identity, there, meter)
            result = await self._finish(part, hashing)
            if result.code == _DIFFERS and resumed:
                await self._script("drop", part.name)
                again = Meter(size_in(identity), self.say)
                await self._send(part, identity, there, again)
                result = await self._finish(part, hashing)
        finally:
            hashing.cancel()
        if result.code != 0:
            raise self._failure(part, result)

    async def _send(
        self, part: Path, identity: str, there: _There, meter: Meter
    ) -> bool:
        target = f"{there.folder}/{part.name}.part"
        try:
            async with self.shell.files() as sftp:
                async with sftp.open(f"{target}.identity", "wb") as note:
                    await note.write(identity.encode())
                return await upload(sftp, part, target, meter)
        except asyncssh.SFTPFailure as error:
            now = await self._look()
            if now.free_bytes < SPARE_BYTES:
                need = size_in(identity)
                raise peer_full(self.shell.name, there.folder, need) from error
            raise transfer_error(self.shell.name, error) from error
        except (asyncssh.Error, OSError) as error:
            raise transfer_error(self.shell.name, error) from error

    async def _finish(self, part: Path, hashing: asyncio.Task[str]) -> ShellResult:
        self.say(f"Verifying {part.name}", 1.0)
        digest = await asyncio.shield(hashing)
        return await self._script("finish", part.name, digest, check=False)

    def _failure(self, part: Path, result: ShellResult) -> ProvisionError:
        if result.code == _DIFFERS:
            return WrongFile(
                f"{part.name} arrived changed on {self.shell.name}",
                "Did the original change meanwhile? Else look at its disk.",
            )
        if result.code == _TAKEN:
            return WrongFile(f"{self.shell.name}: {why_ended(result)}")
        return refusal(self.shell.name, result)

    async def _script(self, action: str, *args: str, check: bool = True) -> ShellResult:
        result = await self.shell.run(
            script("model"),
            *(action, self.folder, *args),
            timeout_s=HASH_S,
            check=False,
        )
        if check and result.code != 0:
            raise refusal(self.shell.name, result)
        return result


async def _piece(file: Any, offset: int, length: int) -> bytes:
    """Some bytes of a file there; a server may give fewer at a time."""
    data = b""
    while len(data) < length:
        more = await file.read(length - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


async def _sha256(path: Path) -> str:
    stop = threading.Event()
    try:
        return await asyncio.to_thread(full_sha256, path, stopped=stop.is_set)
    finally:
        stop.set()


def _kib(text: str) -> int:
    return int(text) * 1024 if text.isdigit() else 0


FIRST_BYTES = 4 << 20
HEADER_BYTES_MAX = 512 << 20
"""No header is this long: the largest vocabularies take some tens of MB."""
CHUNK_BYTES = 1 << 20
UNUSED_S = 30 * 86400.0
"""A header that nobody reads for so long is forgotten."""


async def read_there(shell: Shell, path: str, cache: Path) -> ModelInfo:
    """The header of a model on a peer; paths in the result are as ``peer:path``.

    ``cache`` keeps what has come, by peer, path, size and time of change.
    """
    parts, peer = _parts(path), shell.name
    try:
        async with shell.files() as sftp:
            sizes = [
                (found.size or 0, found.mtime)
                for found in [await sftp.stat(part) for part in parts]
            ]
            # The walk looks for the parts of a model beside each other.
            folder = cache / peer / _key(path, sizes)
            copies = [folder / PurePosixPath(part).name for part in parts]
            for part, copy, (size, _) in zip(parts, copies, sizes, strict=True):
                await _bring(sftp, part, copy, size)
        await asyncio.to_thread(_forget_unused, cache)
    except (OSError, asyncssh.Error) as error:
        raise _cannot(peer, path, error) from error
    info = await asyncio.to_thread(read_model, copies[0])
    return _as_there(info, peer, path)


def _parts(path: str) -> list[str]:
    return list(map(str, part_paths(PurePosixPath(path))))


def _key(path: str, sizes: list[tuple[int, int | None]]) -> str:
    return hashlib.sha256(f"{path}\n{sizes}".encode()).hexdigest()[:16]


async def _bring(sftp: asyncssh.SFTPClient, path: str, copy: Path, size: int) -> None:
    """Make a sparse copy that has at least the header, unless there is one."""
    if await asyncio.to_thread(_is_kept, copy):
        return
    await asyncio.to_thread(copy.parent.mkdir, parents=True, exist_ok=True)
    # Two may read the same model for the first time at once.
    with set_aside(copy.parent) as (aside, target):
        await _fetch(sftp, path, aside, target, size)
        aside.replace(copy)


def _is_kept(copy: Path) -> bool:
    try:
        os.utime(copy)
    except OSError:
        return False
    return True


def _forget_unused(cache: Path) -> None:
    """Remove what no reader has used for long, of removed peers too."""
    oldest = time.time() - UNUSED_S
    for folder in cache.glob("*/*"):
        with contextlib.suppress(OSError):
            files = list(folder.iterdir()) or [folder]
            if max(file.stat().st_mtime for file in files) < oldest:
                shutil.rmtree(folder)


async def _fetch(
    sftp: asyncssh.SFTPClient, path: str, copy: Path, target: BinaryIO, size: int
) -> None:
    """Bring ever more of the beginning, until the header is all there."""
    have, want = 0, min(size, FIRST_BYTES)
    target.truncate(size)
    async with sftp.open(path, "rb") as source:
        while True:
            while have < want:
                # Typed as text, whatever the mode.
                data: Any = await source.read(min(CHUNK_BYTES, want - have), have)
                if not data:
                    break
                target.seek(have)
                target.write(data)
                have += len(data)
            target.flush()
            if await asyncio.to_thread(has_whole_header, copy, have):
                return
            if have < want or want in (size, HEADER_BYTES_MAX):
                # All there is to have: the walk says what is wrong with it.
                return
            want = min(size, HEADER_BYTES_MAX, want * 2)


def _as_there(info: ModelInfo, peer: str, path: str) -> ModelInfo:
    parts = [f"{peer}:{part}" for part in _parts(path)]
    return msgspec.structs.replace(info, path=parts[0], files=tuple(parts))


def _cannot(peer: str, path: str, error: Exception) -> ModelError | Exception:
    if isinstance(error, asyncssh.SFTPNoSuchFile):
        return ModelError(f"There is no {path} on {peer}", "Check the path.")
    if isinstance(error, asyncssh.SFTPPermissionDenied):
        return ModelError(f"{path} on {peer} may not be read", "Check its permissions.")
    return transfer_error(peer, error)
