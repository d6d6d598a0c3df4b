"""Headers of models at a peer, read from there."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import asyncssh
import msgspec

from backends.errors import ModelError
from backends.machines.shell import Shell, transfer_error
from backends.machines.ssh.files import read_at
from backends.models.header import has_whole_header
from backends.models.layers import read_model
from backends.models.parts import part_paths
from backends.state import ModelInfo
from backends.writing import forget_unused, is_kept, set_aside

FIRST_BYTES = 4 << 20
HEADER_BYTES_MAX = 512 << 20
"""No header is this long: the largest vocabularies take some tens of MB."""
CHUNK_BYTES = 1 << 20


async def read_there(shell: Shell, path: str, cache: Path) -> ModelInfo:
    """The header of a model on a peer; paths in the result are as ``peer:path``."""
    parts = [str(part) for part in part_paths(PurePosixPath(path))]
    peer = shell.name
    try:
        async with shell.files() as sftp:
            sizes = [
                (found.size or 0, found.mtime)
                for found in [await sftp.stat(part) for part in parts]
            ]
            # The walk looks for the parts of a model beside each other.
            key = hashlib.sha256(f"{path}\n{sizes}".encode()).hexdigest()[:16]
            folder = cache / peer / key
            copies = [folder / PurePosixPath(part).name for part in parts]
            for part, copy, (size, _) in zip(parts, copies, sizes, strict=True):
                await _bring(sftp, part, copy, size)
        await asyncio.to_thread(forget_unused, cache, "*/*")
    except asyncssh.SFTPNoSuchFile as error:
        what = f"There is no {path} on {peer}"
        raise ModelError(what, "Check the path.") from error
    except asyncssh.SFTPPermissionDenied as error:
        what = f"{path} on {peer} may not be read"
        raise ModelError(what, "Check its permissions.") from error
    except (OSError, asyncssh.Error) as error:
        raise transfer_error(peer, error) from error
    info = await asyncio.to_thread(read_model, copies[0])
    there = tuple(f"{peer}:{part}" for part in parts)
    return msgspec.structs.replace(info, path=there[0], files=there)


async def _bring(sftp: asyncssh.SFTPClient, path: str, copy: Path, size: int) -> None:
    if await asyncio.to_thread(is_kept, copy, size):
        return
    await asyncio.to_thread(copy.parent.mkdir, parents=True, exist_ok=True)
    # Two may read the same model for the first time at once.
    with set_aside(copy.parent) as (aside, target):
        await _fetch(sftp, path, aside, target, size)
        aside.replace(copy)


async def _fetch(
    sftp: asyncssh.SFTPClient, path: str, copy: Path, target: BinaryIO, size: int
) -> None:
    """Bring ever more of the beginning, until the header is all there."""
    have, want = 0, min(size, FIRST_BYTES)
    target.truncate(size)
    async with sftp.open(path, "rb") as source:
        while True:
            while have < want:
                data = await read_at(source, min(CHUNK_BYTES, want - have), have)
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
