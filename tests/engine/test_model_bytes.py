"""``models verify --peer``, ``seed`` and ``cache``: what machines hold of a model."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.conftest import User
from tests.kit.models import write_llama

pytestmark = pytest.mark.engine

N_HASHED, HASHED_BYTES = 3, 2 * 512 * 11264
MIB = 1 << 20


@pytest.fixture
def alone(user: User) -> Iterator[User]:
    user.env["XDG_CACHE_HOME"] = str(user.home / "cache")
    user.env.pop("LLAMA_CACHE", None)
    yield user
    user.run("stop")


@pytest.fixture
def model(user: User) -> Path:
    file = user.home / "wide.gguf"
    write_llama(file, n_layer=1, n_embd=512, n_ff=11264)
    return file


def changed(model: Path) -> Path:
    """A copy with one other byte, in its last MiB."""
    copy = model.with_name("copy.gguf")
    shutil.copy(model, copy)
    with copy.open("r+b") as file:
        file.seek(-MIB, 2)
        byte = file.read(1)
        file.seek(-MIB, 2)
        file.write(bytes([byte[0] ^ 1]))
    return copy


@pytest.mark.trial
def test_other_bytes_are_told_tensor_by_tensor(alone: User, model: Path) -> None:
    same = alone.run("models", "verify", str(model), "--peer", "local")
    assert "local: the same by BLAKE3: all 12 tensors" in same.stdout
    place = f"local:{changed(model)}"
    told = alone.json("models", "verify", str(model), "--peer", place, code=1)
    (found,) = told["peers"]
    assert not found["same"]
    assert not told["damaged"]
    (one,) = found["differing"]
    assert one["why"] == "other bytes"
    text = alone.run("models", "verify", str(model), "--peer", place, code=1).stdout
    assert "1 of 12 tensors differ: another file?" in text
    assert one["name"] in text
    unknown = alone.run("models", "verify", str(model), "--peer", "mini", code=1)
    assert "There is no peer mini" in unknown.stderr
    watching = ("--readonly", "models", "verify", str(model), "--peer", "local")
    assert "the same" in alone.run(*watching).stdout


def test_a_worker_s_cache_is_seeded_shown_and_pruned(alone: User, model: Path) -> None:
    cache = alone.home / "cache" / "llama.cpp" / "rpc"
    here = ("--peer", "local")
    seed = ("models", "cache", "fill", str(model), *here)
    planned = alone.run(*seed, "--dry-run")
    assert "3 tensors, 33.0 MiB, 0 B of it there already" in planned.stderr
    assert not cache.exists()
    refused = alone.run("--readonly", *seed, code=2)
    assert "read-only" in refused.stderr
    done = alone.run(*seed)
    assert f"Cached 3 tensors, 33.0 MiB in {cache}" in done.stdout
    names = {file.name for file in cache.iterdir()}
    shown = alone.json("models", "cache", "list", *here)
    assert {file["name"] for file in shown["files"]} == names
    assert len(names) == N_HASHED
    (cache / "0123456789abcdef").write_bytes(b"of another model")
    # One of this model that broke off: the next seeding goes on from it.
    begun = cache / f"{min(names)}.part"
    begun.write_bytes(b"begun")

    prune = ("models", "cache", "prune", *here)
    would = alone.json(*prune, "--keep", str(model))
    assert not would["deleted"]
    assert [file["name"] for file in would["files"]] == ["0123456789abcdef"]
    assert "would be deleted" in alone.run(*prune, "--keep", str(model)).stderr
    assert alone.json(*prune, "--older-than", "1")["files"] == []
    assert len(list(cache.iterdir())) == N_HASHED + 2
    assert begun.exists()
    begun.unlink()
    alone.run(*prune, "--keep", str(model), "--delete")
    assert {file.name for file in cache.iterdir()} == names
    gone = alone.json(*prune, "--delete")
    assert gone["size_bytes"] == N_HASHED * HASHED_BYTES
    assert list(cache.iterdir()) == []
    events = alone.run("events").stdout
    assert "seeded the cache of workers on local with wide.gguf" in events
    assert "deleted 3 files of the cache on local" in events


@pytest.mark.trial
def test_what_cannot_be_seeded_is_said(alone: User, model: Path) -> None:
    missing = alone.home / "missing.gguf"
    for command in (["cache", "fill"], ["verify"]):
        failed = alone.run("models", *command, str(missing), "--peer", "local", code=1)
        assert "missing.gguf" in failed.stderr
    blocked = model / "rpc"
    failed = alone.run(
        *("models", "cache", "fill", str(model), "--peer", "local"),
        *("--cache-dir", str(blocked)),
        code=1,
    )
    assert str(blocked) in failed.stderr


def test_a_file_made_for_ollamas_engine_is_told_before_it_fails(
    user: User, tmp_path: Path
) -> None:
    """The engine refuses it indeed."""
    blob = tmp_path / "vision.gguf"
    write_llama(blob, n_layer=2, n_embd=64, n_ff=64, vision=True)
    said = "it holds 1 vision tensor (v.…) among those of the text"
    assert said in user.run("plan", str(blob), "--workers", "0").stdout
    failed = user.run("up", str(blob), "--workers", "0", "--detach", code=1).stderr
    assert said in failed.partition("wrong number of tensors")[0]
    assert "wrong number of tensors" in failed
