"""The identity of a file: here and by the agent the same, different where it must."""

from __future__ import annotations

import asyncio
import hashlib
import random
from pathlib import Path

import pytest

from backends.errors import ModelError
from backends.machines.local import local_agent_for_now
from backends.models.identity import (
    BLOCK_BYTES,
    WHOLE_BLOCKS_MAX,
    files_of,
    full_sha256,
    identity_of,
    sampled,
    size_in,
)

WHOLE = BLOCK_BYTES * WHOLE_BLOCKS_MAX
SIZES = (0, 1, BLOCK_BYTES, WHOLE - 1, WHOLE, WHOLE + 1, 7_654_321, 20_000_000)


def write(path: Path, size: int) -> Path:
    path.write_bytes(random.Random(size).randbytes(size))
    return path


async def test_the_agent_computes_the_same(tmp_path: Path) -> None:
    files = [write(tmp_path / f'it\'s "{size}" $x.gguf', size) for size in SIZES]
    async with local_agent_for_now(tmp_path / "run") as agent:
        told = [await agent.identity(str(file)) for file in files]
    ours = await asyncio.to_thread(lambda: [identity_of(file) for file in files])
    assert told == ours


def test_the_full_hash_is_that_of_all_bytes(tmp_path: Path) -> None:
    file = write(tmp_path / "a.gguf", 3_000_000)
    assert full_sha256(file) == hashlib.sha256(file.read_bytes()).hexdigest()


def test_every_size_and_every_piece_that_is_read_counts(tmp_path: Path) -> None:
    file = write(tmp_path / "a.gguf", 20_000_000)
    first = identity_of(file)
    data = bytearray(file.read_bytes())
    seen = {first}
    for offset, length in sampled(len(data)):
        data[offset + length // 2] ^= 1
        file.write_bytes(data)
        seen.add(identity_of(file))
        data[offset + length // 2] ^= 1
    assert len(seen) == 1 + len(sampled(len(data)))
    file.write_bytes(data)
    assert identity_of(file) == first


def test_pieces_lie_in_the_file_and_reach_its_end() -> None:
    for size in (*SIZES, 10**11 + 7):
        pieces = sampled(size)
        assert pieces[0][0] == 0
        assert max(offset + length for offset, length in pieces) >= size
        assert all(offset < size or not size for offset, _ in pieces)
        assert sum(length for _, length in pieces) <= WHOLE


def test_an_identity_tells_the_size(tmp_path: Path) -> None:
    assert size_in(identity_of(write(tmp_path / "a", 1234))) == 1234
    assert size_in("") == 0


def test_hashing_can_be_stopped_and_tells_how_far_it_is(tmp_path: Path) -> None:
    file = write(tmp_path / "a", 3 << 20)
    seen: list[int] = []
    assert full_sha256(file, seen.append, lambda: len(seen) == 2) == ""
    assert seen == [1 << 20, 2 << 20]


def test_an_unreadable_file_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        identity_of(tmp_path / "absent")


def test_all_parts_of_a_split_model(tmp_path: Path) -> None:
    parts = [tmp_path / f"m-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    for part in parts[:2]:
        part.touch()
    with pytest.raises(ModelError, match=r"m-00003-of-00003\.gguf is missing"):
        files_of(parts[0])
    parts[2].touch()
    assert files_of(parts[1]) == parts
    assert files_of(tmp_path / "whole.gguf") == [tmp_path / "whole.gguf"]
