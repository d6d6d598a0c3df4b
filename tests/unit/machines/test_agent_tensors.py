"""The hashes of a model's tensors, as an agent tells them."""

from __future__ import annotations

import asyncio
import os
import shutil
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import blake3
import gguf
import numpy as np
import pytest

from backends.errors import MachineError
from tests.kit.models import write_llama

if TYPE_CHECKING:
    from collections.abc import Callable

    from backends.machines.agent import AgentSession
    from backends.state.models import Hashing, Seeding, TensorSums

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


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that takes several turns to be hashed."""
    file = tmp_path_factory.mktemp("m") / "big.gguf"
    write_llama(file, n_layer=2, n_embd=512, n_ff=2048)
    return aged(file)


def aged(file: Path) -> Path:
    os.utime(file, (LONG_AGO_S, LONG_AGO_S))
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


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def kept_in(cache: Path) -> Path:
    """The one cache there."""
    (kept,) = cache.iterdir()
    return kept


async def hashed(agent: AgentSession, file: Path | str) -> tuple[TensorSums, ...]:
    return (await all_told(agent, file))[-1].tensors


async def all_told(agent: AgentSession, file: Path | str) -> list[Hashing]:
    return [told async for told in agent.hashing(str(file))]


def by_name(found: tuple[TensorSums, ...]) -> dict[str, TensorSums]:
    return {tensor.name: tensor for tensor in found}


async def test_they_are_those_of_the_packages(
    agent: AgentSession, tmp_path: Path
) -> None:
    """Hashes of ``blake3``, the rest of ``gguf``."""
    file = tmp_path / "types.gguf"
    write_types(file)
    found = by_name(await hashed(agent, aged(file)))
    expected = gguf.GGUFReader(file).tensors
    assert len(found) == len(expected)
    for tensor in expected:
        told = found[tensor.name]
        data = tensor.data.tobytes()
        assert told.blake3 == blake3.blake3(data).hexdigest(), tensor.name
        assert (told.type, told.size_bytes) == (tensor.tensor_type, tensor.n_bytes)
        shape = [int(count) for count in tensor.shape]
        assert list(told.shape) == shape + [1] * (4 - len(shape))


async def test_of_a_fresh_file_nothing_is_kept(
    agent: AgentSession, model: Path, cache: Path
) -> None:
    os.utime(model)
    assert await hashed(agent, model)
    assert not await asyncio.to_thread(cache.exists)


async def test_hashing_goes_on_where_it_was_cut_off(
    open_agent: Callable[..., AgentSession],
    run_dir: Path,
    big: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("backends.machines.agent.WORK_S", 0.002)
        told = await all_told(open_agent(run_dir), big)
    assert len(told) > 2
    assert all(a.done_bytes < b.done_bytes for a, b in pairwise(told))
    assert not any(one.tensors for one in told[:-1])
    assert told[-1].done_bytes == told[-1].size_bytes
    # Another agent has nothing left to do, nor what the first one did to find.
    assert await all_told(open_agent(run_dir), big) == told[-1:]
    os.unlink(kept_in(cache))
    assert await hashed(open_agent(run_dir), big) == told[-1].tensors


async def test_where_nothing_can_be_kept_it_takes_one_go(
    agent: AgentSession, big: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backends.machines.agent.WORK_S", 0.002)
    os.makedirs(cache.parent)
    os.symlink("nowhere", cache)
    assert len(await hashed(agent, big)) == 21


async def test_what_is_no_model_is_refused(agent: AgentSession, tmp_path: Path) -> None:
    with pytest.raises(MachineError, match=r"py is not a GGUF file"):
        await hashed(agent, __file__)
    with pytest.raises(MachineError, match="absolute"):
        await hashed(agent, "text.gguf")
    with pytest.raises(MachineError, match="cannot be read"):
        await hashed(agent, tmp_path / "missing.gguf")


# --- Filling the cache of ``rpc-server -c`` from a model beside it, and emptying it ---

# llama.cpp asks for what is larger than 10 MiB.
SIZES = {"large": 12 * MIB + 5, "just": 10 * MIB + 1, "even": 11 * MIB, "ten": 10 * MIB}
ASKED_BYTES = sum(SIZES.values()) - SIZES["ten"]
# FNV-1a of zeros is a product.
ZEROS = "just"
ZEROS_FNV1A = 0xCBF29CE484222325 * pow(0x100000001B3, SIZES[ZEROS], 2**64) % 2**64


@pytest.fixture(autouse=True)
def worker_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of a stock worker of this test's user."""
    monkeypatch.delenv("LLAMA_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "cache" / "llama.cpp" / "rpc"


@pytest.fixture(scope="module")
def wide_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("models") / "big.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    rng = np.random.default_rng(1)
    for name, size in SIZES.items():
        data = rng.integers(-128, 128, size, dtype=np.int8)
        writer.add_tensor(name, np.zeros_like(data) if name == ZEROS else data)
    finish(writer)
    return aged(file)


async def seeded(
    agent: AgentSession,
    wide_model: Path,
    directory: Path | str = "",
    *,
    dry: bool = False,
) -> Seeding:
    told = [
        told async for told in agent.seeding(str(wide_model), str(directory), dry=dry)
    ]
    return told[-1]


def contents(wide_model: Path) -> set[bytes]:
    tensors = gguf.GGUFReader(wide_model).tensors
    return {t.data.tobytes() for t in tensors if t.n_bytes > 10 * MIB}


def there(path: Path) -> bool:
    return path.exists()


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


async def test_a_dry_run_tells_the_size_and_writes_nothing(
    agent: AgentSession, wide_model: Path, worker_cache: Path
) -> None:
    told = await seeded(agent, wide_model, dry=True)
    assert (told.size_bytes, told.seeded_bytes) == (ASKED_BYTES, 0)
    assert told.directory == str(worker_cache)
    assert told.free_bytes > 0
    assert not there(worker_cache.parent)


async def test_every_tensor_that_is_asked_for_is_there_under_its_hash(
    agent: AgentSession, wide_model: Path, worker_cache: Path
) -> None:
    told = await seeded(agent, wide_model)
    assert told.seeded_bytes == told.size_bytes == ASKED_BYTES
    found = files(worker_cache)
    assert set(found.values()) == contents(wide_model)
    assert set(told.names) == set(found)
    assert found[f"{ZEROS_FNV1A:016x}"] == bytes(SIZES[ZEROS])
    # The second time there is nothing to do.
    before = {name: os.stat(worker_cache / name).st_mtime_ns for name in found}
    again = await seeded(agent, wide_model)
    assert (again.names, again.seeded_bytes) == (told.names, ASKED_BYTES)
    assert {name: os.stat(worker_cache / name).st_mtime_ns for name in found} == before


async def test_it_goes_on_in_a_file_that_was_begun(
    agent: AgentSession, wide_model: Path, tmp_path: Path, worker_cache: Path
) -> None:
    whole = tmp_path / "whole"
    names = (await seeded(agent, wide_model, whole)).names
    os.makedirs(worker_cache)
    good, bad, short = (files(whole)[name] for name in names)
    write(worker_cache / f"{names[0]}.part", good[: 5 * MIB + 7])
    write(worker_cache / f"{names[1]}.part", b"x" * len(bad))
    # A worker takes a file as it is, so one cut short is worse than none.
    write(worker_cache / names[2], short[:-1])
    with pytest.raises(MachineError, match="is not what was written"):
        await seeded(agent, wide_model)
    await seeded(agent, wide_model)
    assert files(worker_cache) == files(whole)


def write(file: Path, data: bytes) -> None:
    file.write_bytes(data)


async def test_another_directory_may_be_meant(
    agent: AgentSession,
    wide_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "llama"))
    assert (
        await seeded(agent, wide_model, dry=True)
    ).directory == f"{tmp_path}/llama/rpc"
    told = await seeded(agent, wide_model, tmp_path / "else", dry=True)
    assert told.directory == f"{tmp_path}/else"
    with pytest.raises(MachineError, match="absolute"):
        await seeded(agent, wide_model, "else", dry=True)


async def test_a_disk_too_small_is_told_before_anything_is_written(
    agent: AgentSession, wide_model: Path, small_disk: Callable[[int], Path]
) -> None:
    disk = small_disk(16 << 20)
    with pytest.raises(MachineError, match=r"the disk of \S+ is too full: 34 MiB are"):
        await seeded(agent, wide_model, disk / "rpc")
    assert os.listdir(disk) == []


async def test_the_cache_is_listed_and_emptied(
    agent: AgentSession, wide_model: Path, worker_cache: Path
) -> None:
    empty = await agent.worker_cache()
    assert (empty.directory, empty.files, empty.size_bytes) == (
        str(worker_cache),
        (),
        0,
    )
    names = (await seeded(agent, wide_model)).names
    write(worker_cache / "0123456789abcdef.part", b"12345")
    write(worker_cache / "notes.txt", b"mine")
    found = await agent.worker_cache()
    assert found.size_bytes == ASKED_BYTES + 5
    assert {file.name for file in found.files} == {*names, "0123456789abcdef.part"}
    assert all(file.mtime_s > LONG_AGO_S for file in found.files)
    assert await agent.uncache([names[0], "0123456789abcdef.part"]) == (
        SIZES["large"] + 5
    )
    assert set(files(worker_cache)) == {*names[1:], "notes.txt"}
    # What is gone already is fine.
    assert await agent.uncache([names[0]]) == 0


@pytest.mark.parametrize("name", ["notes.txt", "../0123456789abcdef", "0123", ""])
async def test_nothing_else_is_deleted(
    agent: AgentSession, worker_cache: Path, name: str
) -> None:
    os.makedirs(worker_cache)
    write(worker_cache / "notes.txt", b"mine")
    with pytest.raises(MachineError, match="is no file of a cache"):
        await agent.uncache([name])
    assert set(files(worker_cache)) == {"notes.txt"}


async def test_a_file_that_changed_without_a_trace_fills_no_cache(
    agent: AgentSession, wide_model: Path, tmp_path: Path, worker_cache: Path
) -> None:
    copy = tmp_path / "copy.gguf"
    aged(Path(shutil.copy(wide_model, copy)))
    assert (await seeded(agent, copy, dry=True)).size_bytes
    scribble(copy)
    with pytest.raises(MachineError, match="large has changed since it was hashed"):
        await seeded(agent, copy)
    assert files(worker_cache) == {}


def scribble(file: Path) -> None:
    """Change a byte of the first tensor, and set the clock back."""
    with file.open("r+b") as opened:
        opened.seek(5 * MIB)
        opened.write(b"?")
    aged(file)
