"""Reading a model's header where the model is: a few MB come, the weights stay.

What comes is kept as a sparse file of the model's full length whose beginning is the
real one, so that the ordinary walk reads it; it never touches the weights.
"""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import asyncssh
import msgspec

from backends.errors import ModelError
from backends.models.header import read_header
from backends.models.layers import read_model
from backends.models.parts import part_paths
from backends.provision.refusals import transfer_error

if TYPE_CHECKING:
    from backends.provision.upload import Files
    from backends.state import ModelInfo

FIRST_BYTES = 4 << 20
HEADER_BYTES_MAX = 512 << 20
"""No header is this long: the largest vocabularies take some tens of MB."""
CHUNK_BYTES = 1 << 20


async def read_there(files: Files, peer: str, path: str, cache: Path) -> ModelInfo:
    """The header of a model on a peer; paths in the result are as ``peer:path``.

    ``cache`` keeps what has come, by peer, path, size and time of change.

    Raises:
        ModelError: it is missing there, or not a usable GGUF.
        PeerUnreachable: the connection broke.
    """
    try:
        async with files() as sftp:
            copies = [
                await _beginning(sftp, part, cache / peer) for part in _parts(path)
            ]
    except (OSError, asyncssh.Error) as error:
        raise _cannot(peer, path, error) from error
    info = await asyncio.to_thread(read_model, copies[0])
    return _as_there(info, peer, path)


def _parts(path: str) -> list[str]:
    """Every part of a split model, in order; the path itself otherwise."""
    return list(map(str, part_paths(PurePosixPath(path))))


async def _beginning(sftp: asyncssh.SFTPClient, path: str, folder: Path) -> Path:
    """A sparse copy that has at least the header."""
    found = await sftp.stat(path)
    size = found.size or 0
    word = f"{PurePosixPath(path).parent}\n{size}\n{found.mtime}"
    key = hashlib.sha256(word.encode()).hexdigest()[:16]
    copy = folder / key / PurePosixPath(path).name
    if copy.exists():
        return copy
    await asyncio.to_thread(copy.parent.mkdir, parents=True, exist_ok=True)
    growing = copy.with_name(f".{copy.name}.part")
    await _fetch(sftp, path, growing, size)
    growing.replace(copy)
    return copy


async def _fetch(sftp: asyncssh.SFTPClient, path: str, copy: Path, size: int) -> None:
    """Bring ever more of the beginning, until the header is all there."""
    have, want = 0, min(size, FIRST_BYTES)
    with copy.open("wb") as target:
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
                if await asyncio.to_thread(_is_whole, copy, have):
                    return
                if have < want or want in (size, HEADER_BYTES_MAX):
                    # All there is to have: the walk says what is wrong with it.
                    return
                want = min(size, HEADER_BYTES_MAX, want * 2)


def _is_whole(copy: Path, have: int) -> bool:
    """Whether the header ends within what has come."""
    try:
        return read_header(copy).data_offset <= have
    except ModelError:
        return False


def _as_there(info: ModelInfo, peer: str, path: str) -> ModelInfo:

    parts = [f"{peer}:{part}" for part in _parts(path)]
    return msgspec.structs.replace(info, path=parts[0], files=tuple(parts))


def _cannot(peer: str, path: str, error: Exception) -> ModelError | Exception:
    if isinstance(error, asyncssh.SFTPNoSuchFile):
        return ModelError(f"There is no {path} on {peer}", "Check the path.")
    if isinstance(error, asyncssh.SFTPPermissionDenied):
        return ModelError(f"{path} on {peer} may not be read", "Check its permissions.")
    return transfer_error(peer, error)
