"""The hashes of a model's tensors, as an agent tells them."""

from __future__ import annotations

import asyncio
import os
from itertools import pairwise
from typing import TYPE_CHECKING

import blake3
import gguf
import numpy as np
import pytest
import xxhash

from backends.errors import HostError
from tests.kit.models import write_llama

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from backends.machines.agent import AgentSession
    from backends.state.models import Hashing, TensorSums

LONG_AGO_S = 1_000_000_000
MIB = 1 << 20


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the agent keeps what it knows of this test's files."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "dllm-tui" / "tensors"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    file = tmp_path / "model.gguf"
    write_llama(file, n_layer=2, n_embd=64, n_ff=96, quantized=True)
    return aged(file)


def aged(file: Path, at_s: int = LONG_AGO_S) -> Path:
    """The file, as if it had been written long ago."""
    os.utime(file, (at_s, at_s))
    return file


def write_types(file: Path) -> None:
    """A tensor of every type there is, of no sense, and of sizes at all borders."""
    writer = gguf.GGUFWriter(file, "llama")
    rng = np.random.default_rng(1)
    for kind, (_, n_bytes) in gguf.GGML_QUANT_SIZES.items():
        data = rng.integers(0, 256, (3, 2 * n_bytes), dtype=np.uint8)
        writer.add_tensor(f"type.{kind.name}", data, raw_dtype=kind)
    for size in (*range(70), 1000, MIB - 1, MIB, MIB + 1, 3 * MIB + 17):
        data = rng.integers(-128, 128, max(size, 1), dtype=np.int8)
        writer.add_tensor(f"size.{size}", data)
    finish(writer)


def write_part(file: Path, number: int, parts: int) -> None:
    """A part of a split model, with one tensor."""
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_uint16("split.no", number - 1)
    writer.add_uint16("split.count", parts)
    writer.add_tensor(f"part{number}", np.full(10, number, dtype=np.int8))
    finish(writer)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def kept_in(cache: Path) -> Path:
    """The one sidecar there."""
    (kept,) = cache.iterdir()
    return kept


def flip(file: Path, place: int) -> None:
    """Change one bit."""
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "garbage": lambda file: file.write_bytes(b"x" * 99),
    "cut": cut,
    "flipped": lambda file: flip(file, 50),
}


def fnv1a(data: bytes) -> str:
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


async def hashed(host: AgentSession, file: Path | str) -> tuple[TensorSums, ...]:
    return (await all_told(host, file))[-1].tensors


async def all_told(host: AgentSession, file: Path | str) -> list[Hashing]:
    return [told async for told in host.hashing(str(file))]


def by_name(found: tuple[TensorSums, ...]) -> dict[str, TensorSums]:
    return {tensor.name: tensor for tensor in found}


async def test_they_are_those_of_the_packages(
    host: AgentSession, tmp_path: Path
) -> None:
    """Hashes of ``xxhash`` and ``blake3``, the rest of ``gguf``."""
    file = tmp_path / "types.gguf"
    write_types(file)
    found = by_name(await hashed(host, aged(file)))
    expected = gguf.GGUFReader(file).tensors
    assert len(found) == len(expected)
    for tensor in expected:
        told = found[tensor.name]
        data = tensor.data.tobytes()
        assert told.xxh64 == xxhash.xxh64(data).hexdigest(), tensor.name
        assert told.blake3 == blake3.blake3(data).hexdigest(), tensor.name
        assert (told.type, told.size_bytes) == (tensor.tensor_type, tensor.n_bytes)
        shape = [int(count) for count in tensor.shape]
        assert list(told.shape) == shape + [1] * (4 - len(shape))
        if len(data) <= MIB:
            assert told.fnv1a == fnv1a(data), tensor.name


async def test_all_parts_of_a_split_model(host: AgentSession, tmp_path: Path) -> None:
    one, two = (tmp_path / f"m-{number:05d}-of-00002.gguf" for number in (1, 2))
    write_part(one, 1, 2)
    write_part(two, 2, 2)
    found = await hashed(host, two)
    assert [tensor.name for tensor in found] == ["part1", "part2"]
    os.unlink(two)
    with pytest.raises(HostError, match=r"m-00002-of-00002\.gguf cannot be read"):
        await hashed(host, one)


async def test_a_change_is_seen_though_hashes_were_kept(
    host: AgentSession, model: Path, cache: Path
) -> None:
    first = await hashed(host, model)
    assert os.stat(kept_in(cache)).st_mode & 0o777 == 0o600
    flip(model, -100)
    aged(model, LONG_AGO_S + 1)
    second = await hashed(host, model)
    assert [a.name for a, b in zip(first, second, strict=True) if a != b] == [
        first[-1].name
    ]


async def test_what_is_kept_is_not_read_again(host: AgentSession, model: Path) -> None:
    """Only shown by a change that leaves no trace: size, time and inode as before."""
    first = await hashed(host, model)
    with model.open("r+b") as file:
        file.seek(-100, os.SEEK_END)
        file.write(b"\0" * 50)
    aged(model)
    assert await hashed(host, model) == first


@pytest.mark.parametrize("damage", DAMAGES)
async def test_damaged_sidecars_are_made_anew(
    host: AgentSession, model: Path, cache: Path, damage: str
) -> None:
    first = await hashed(host, model)
    DAMAGES[damage](kept_in(cache))
    assert await hashed(host, model) == first


async def test_of_a_fresh_file_nothing_is_kept(
    host: AgentSession, model: Path, cache: Path
) -> None:
    os.utime(model)
    assert await hashed(host, model)
    assert not await asyncio.to_thread(cache.exists)


async def test_hashing_goes_on_where_it_was_cut_off(
    open_host: Callable[..., AgentSession],
    run_dir: Path,
    tmp_path: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "big.gguf"
    write_llama(file, n_layer=2, n_embd=1024, n_ff=4096)
    aged(file)
    with monkeypatch.context() as patched:
        patched.setattr("backends.machines.agent.WORK_S", 0.01)
        told = await all_told(open_host(run_dir), file)
    assert len(told) > 2
    assert all(a.done_bytes < b.done_bytes for a, b in pairwise(told))
    assert not any(one.tensors for one in told[:-1])
    assert told[-1].done_bytes == told[-1].size_bytes
    # Another agent has nothing left to do, nor what the first one did to find.
    assert await all_told(open_host(run_dir), file) == told[-1:]
    os.unlink(kept_in(cache))
    assert await hashed(open_host(run_dir), file) == told[-1].tensors


async def test_where_nothing_can_be_kept_it_takes_one_go(
    host: AgentSession, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backends.machines.agent.WORK_S", 0.01)
    os.makedirs(cache.parent)
    os.symlink("nowhere", cache)
    file = tmp_path / "big.gguf"
    write_llama(file, n_layer=2, n_embd=1024, n_ff=4096)
    assert len(await hashed(host, aged(file))) == 21


async def test_what_is_no_model_is_refused(host: AgentSession, tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"py is not a GGUF file"):
        await hashed(host, __file__)
    with pytest.raises(HostError, match="absolute"):
        await hashed(host, "text.gguf")
    with pytest.raises(HostError, match="cannot be read"):
        await hashed(host, tmp_path / "missing.gguf")
