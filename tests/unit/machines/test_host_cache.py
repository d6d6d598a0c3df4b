"""Filling the cache of ``rpc-server -c`` from a model beside it, and emptying it."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest

from backends.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from backends.machines.agent import AgentSession
    from backends.state.models import Seeding

MIB = 1 << 20
LONG_AGO_S = 1_000_000_000
# llama.cpp asks for what is larger than 10 MiB.
SIZES = {"large": 12 * MIB + 5, "just": 10 * MIB + 1, "even": 11 * MIB, "ten": 10 * MIB}
ASKED_BYTES = sum(SIZES.values()) - SIZES["ten"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of a stock worker of this test's user."""
    monkeypatch.delenv("LLAMA_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "cache" / "llama.cpp" / "rpc"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("models") / "big.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    rng = np.random.default_rng(1)
    for name, size in SIZES.items():
        writer.add_tensor(name, rng.integers(-128, 128, size, dtype=np.int8))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.utime(file, (LONG_AGO_S, LONG_AGO_S))
    return file


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


async def seeded(
    host: AgentSession, model: Path, directory: Path | str = "", *, dry: bool = False
) -> Seeding:
    told = [told async for told in host.seeding(str(model), str(directory), dry=dry)]
    return told[-1]


def contents(model: Path) -> set[bytes]:
    tensors = gguf.GGUFReader(model).tensors
    return {t.data.tobytes() for t in tensors if t.n_bytes > 10 * MIB}


def there(path: Path) -> bool:
    return path.exists()


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


async def test_a_dry_run_tells_the_size_and_writes_nothing(
    host: AgentSession, model: Path, cache: Path
) -> None:
    told = await seeded(host, model, dry=True)
    assert (told.size_bytes, told.seeded_bytes) == (ASKED_BYTES, 0)
    assert told.directory == str(cache)
    assert told.free_bytes > 0
    assert not there(cache.parent)


async def test_every_tensor_that_is_asked_for_is_there_under_its_hash(
    host: AgentSession, model: Path, cache: Path
) -> None:
    told = await seeded(host, model)
    assert told.seeded_bytes == told.size_bytes == ASKED_BYTES
    found = files(cache)
    assert set(found.values()) == contents(model)
    sums = [one async for one in host.hashing(str(model))][-1].tensors
    by_hash = {t.fnv1a: t.size_bytes for t in sums if t.size_bytes > 10 * MIB}
    assert {name: len(data) for name, data in found.items()} == by_hash
    assert set(told.names) == set(by_hash)
    # The second time there is nothing to do.
    before = {name: os.stat(cache / name).st_mtime_ns for name in found}
    again = await seeded(host, model)
    assert (again.names, again.seeded_bytes) == (told.names, ASKED_BYTES)
    assert {name: os.stat(cache / name).st_mtime_ns for name in found} == before


async def test_it_goes_on_in_a_file_that_was_begun(
    host: AgentSession, model: Path, tmp_path: Path, cache: Path
) -> None:
    whole = tmp_path / "whole"
    names = (await seeded(host, model, whole)).names
    os.makedirs(cache)
    good, bad, short = (files(whole)[name] for name in names)
    write(cache / f"{names[0]}.part", good[: 5 * MIB + 7])
    write(cache / f"{names[1]}.part", b"x" * len(bad))
    # A worker takes a file as it is, so one cut short is worse than none.
    write(cache / names[2], short[:-1])
    with pytest.raises(HostError, match="is not what was written"):
        await seeded(host, model)
    await seeded(host, model)
    assert files(cache) == files(whole)


def write(file: Path, data: bytes) -> None:
    file.write_bytes(data)


async def test_another_directory_may_be_meant(
    host: AgentSession, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "llama"))
    assert (await seeded(host, model, dry=True)).directory == f"{tmp_path}/llama/rpc"
    told = await seeded(host, model, tmp_path / "else", dry=True)
    assert told.directory == f"{tmp_path}/else"
    with pytest.raises(HostError, match="absolute"):
        await seeded(host, model, "else", dry=True)


async def test_a_disk_too_small_is_told_before_anything_is_written(
    host: AgentSession, model: Path, small_disk: Path
) -> None:
    with pytest.raises(HostError, match=r"the disk of \S+ is too full: 34 MiB are"):
        await seeded(host, model, small_disk / "rpc")
    assert os.listdir(small_disk) == []


async def test_the_cache_is_listed_and_emptied(
    host: AgentSession, model: Path, cache: Path
) -> None:
    empty = await host.worker_cache()
    assert (empty.directory, empty.files, empty.size_bytes) == (str(cache), (), 0)
    names = (await seeded(host, model)).names
    write(cache / "0123456789abcdef.part", b"12345")
    write(cache / "notes.txt", b"mine")
    found = await host.worker_cache()
    assert found.size_bytes == ASKED_BYTES + 5
    assert {file.name for file in found.files} == {*names, "0123456789abcdef.part"}
    assert all(file.mtime_s > LONG_AGO_S for file in found.files)
    assert await host.uncache([names[0], "0123456789abcdef.part"]) == (
        SIZES["large"] + 5
    )
    assert set(files(cache)) == {*names[1:], "notes.txt"}
    # What is gone already is fine.
    assert await host.uncache([names[0]]) == 0


@pytest.mark.parametrize("name", ["notes.txt", "../0123456789abcdef", "0123", ""])
async def test_nothing_else_is_deleted(
    host: AgentSession, cache: Path, name: str
) -> None:
    os.makedirs(cache)
    write(cache / "notes.txt", b"mine")
    with pytest.raises(HostError, match="is no file of a cache"):
        await host.uncache([name])
    assert set(files(cache)) == {"notes.txt"}


async def test_a_file_that_changed_without_a_trace_fills_no_cache(
    host: AgentSession, model: Path, tmp_path: Path, cache: Path
) -> None:
    copy = tmp_path / "copy.gguf"
    shutil.copy(model, copy)
    os.utime(copy, (LONG_AGO_S, LONG_AGO_S))
    assert (await seeded(host, copy, dry=True)).size_bytes
    scribble(copy)
    with pytest.raises(HostError, match="large has changed since it was hashed"):
        await seeded(host, copy)
    assert files(cache) == {}


def scribble(file: Path) -> None:
    """Change a byte of the first tensor, and set the clock back."""
    with file.open("r+b") as opened:
        opened.seek(5 * MIB)
        opened.write(b"?")
    os.utime(file, (LONG_AGO_S, LONG_AGO_S))
