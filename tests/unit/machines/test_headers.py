"""Reading a model's header at a peer: kept, shared by readers, forgotten in time."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from typing import TYPE_CHECKING

import pytest

from backends.demo import MODEL_PATH
from backends.errors import HostError
from backends.machines.model_files import UNUSED_S, read_there
from backends.models.layers import read_model
from tests.unit.models.ggufs import write_split

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kit.local_peer import LocalShell


async def test_two_first_reads_of_one_model_do_not_meet(
    shell: LocalShell, tmp_path: Path
) -> None:
    cache = tmp_path / "headers"
    path = str(MODEL_PATH)
    infos = await asyncio.gather(*(read_there(shell, path, cache) for _ in range(4)))
    assert {info.path for info in infos} == {f"mini:{path}"}
    assert [file.name for file in cache.rglob("*") if file.is_file()] == [
        MODEL_PATH.name
    ]


async def test_what_nobody_read_for_long_is_forgotten(
    shell: LocalShell, tmp_path: Path
) -> None:
    cache = tmp_path / "headers"
    models = [tmp_path / f"{name}.gguf" for name in ("old", "used", "new")]
    for model in models:
        shutil.copy(MODEL_PATH, model)
    for model in models[:2]:
        await read_there(shell, str(model), cache)
    left = next(cache.rglob("old.gguf")).with_name("left-over.tmp")
    left.touch()
    long_ago = time.time() - UNUSED_S - 60
    for path in (*cache.rglob("*.gguf"), left):
        os.utime(path, (long_ago, long_ago))
    await read_there(shell, str(models[1]), cache)
    await read_there(shell, str(models[2]), cache)
    kept = {file.name for file in cache.rglob("*") if file.is_file()}
    assert kept == {"used.gguf", "new.gguf"}


async def test_a_model_in_parts_of_different_sizes(
    shell: LocalShell, tmp_path: Path
) -> None:
    parts = write_split(tmp_path, "many", 3)
    assert len({part.stat().st_size for part in parts}) == 3
    found = await read_there(shell, str(parts[1]), tmp_path / "headers")
    assert found.layers == read_model(parts[0]).layers
    assert found.files == tuple(f"mini:{part}" for part in parts)


async def test_trouble_with_our_own_disk_is_told_as_such(
    shell: LocalShell, tmp_path: Path
) -> None:
    cache = tmp_path / "headers"
    cache.write_text("in the way")
    with pytest.raises(HostError, match=r"headers/mini.* on this machine cannot be"):
        await read_there(shell, str(MODEL_PATH), cache)
