"""The identity of a model file's bytes, in a few milliseconds.

The identity of a file is ``1-<size in bytes>-<32 hex digits>``. The digits are the
first half of a SHA-256. It covers the first and last MiB, and eight blocks of 128 KiB
between them. A file of up to 4 MiB is hashed whole. The agent
(``native/src/agent/files.cpp``) computes the same, so files on different machines can
be compared by text.

Files with different identities differ. Files with the same identity are the same *for
practical purposes* only. Another model, another quant or another fine-tune differs in
its size or in every block. But damage between the blocks that are read goes unseen.
``full_sha256`` proves sameness, at the price of reading the whole file; a copy is
checked with it, and weights that stay home are compared tensor by tensor.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

from backends.errors import ModelError
from backends.models.parts import missing_part, part_paths
from backends.printable import printable

FORMAT = 1
BLOCK_BYTES = 131_072
WHOLE_BLOCKS_MAX = 32
"""Files of up to so many blocks are read whole."""
END_BLOCKS = 8
"""Read at the beginning and at the end."""
MIDDLE_BLOCKS = 8
_DIGITS = 32
_CHUNK_BYTES = 1 << 20


def identity_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            pieces = []
            for offset, length in sampled(size):
                file.seek(offset)
                pieces.append(file.read(length))
    except OSError as error:
        raise _unreadable(path, error) from error
    return identity_from(size, pieces)


def identity_from(size_bytes: int, pieces: Iterable[bytes]) -> str:
    """The identity of a file of that size, by the pieces that ``sampled`` names."""
    digest = hashlib.sha256(b"".join(pieces)).hexdigest()
    return f"{FORMAT}-{size_bytes}-{digest[:_DIGITS]}"


def sampled(size_bytes: int) -> list[tuple[int, int]]:
    """Offset and length, in bytes, of the pieces an identity reads, in order."""
    blocks = -(-size_bytes // BLOCK_BYTES)
    if blocks <= WHOLE_BLOCKS_MAX:
        return [(0, size_bytes)]
    end = END_BLOCKS * BLOCK_BYTES
    parts = range(1, MIDDLE_BLOCKS + 1)
    middle = [blocks * part // (MIDDLE_BLOCKS + 1) for part in parts]
    return [
        (0, end),
        *((block * BLOCK_BYTES, BLOCK_BYTES) for block in middle),
        ((blocks - END_BLOCKS) * BLOCK_BYTES, end),
    ]


def size_in(identity: str) -> int:
    pieces = identity.split("-")
    return int(pieces[1]) if len(pieces) == 3 and pieces[1].isdigit() else 0


def full_sha256(
    path: Path,
    on_bytes: Callable[[int], None] = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> str:
    """Hex SHA-256 of all of a file, as ``sha256sum`` prints it.

    ``on_bytes`` hears the bytes read so far, after every MiB. Once ``stopped`` says so,
    the result is empty.
    """
    try:
        with path.open("rb") as file:
            digest, done = hashlib.sha256(), 0
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                done += len(chunk)
                on_bytes(done)
                if stopped():
                    return ""
            return digest.hexdigest()
    except OSError as error:
        raise _unreadable(path, error) from error


def files_of(path: Path) -> list[Path]:
    files = part_paths(path)
    for file in files:
        if len(files) > 1 and not file.is_file():
            raise missing_part(file, len(files))
    return files


def _unreadable(path: Path, error: OSError) -> ModelError:
    return ModelError(f"{printable(str(path))} cannot be read ({error.strerror})")
