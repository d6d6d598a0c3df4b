"""The model of zeros that measures a device."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import gguf
import pytest

from backends.models.layers import read_model
from backends.models.synthetic import Shape, synthetic_model

SHAPE = Shape(n_layer=3, n_embd=256, n_ff=512)


def test_it_is_whole_and_takes_no_room(tmp_path: Path) -> None:
    file = tmp_path / "cache" / "zeros.gguf"
    synthetic_model(file, SHAPE)
    model = read_model(file)
    assert (model.n_layer, model.n_embd, model.arch) == (3, 256, "llama")
    found = gguf.GGUFReader(file)
    assert sum(tensor.n_bytes for tensor in found.tensors) < file.stat().st_size
    assert not any(tensor.data.any() for tensor in found.tensors)
    assert file.stat().st_blocks * 512 < file.stat().st_size // 4
    assert [one.name for one in file.parent.iterdir()] == ["zeros.gguf"]


def test_one_that_is_there_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "zeros.gguf"
    file.write_bytes(b"mine")
    synthetic_model(file, SHAPE)
    assert file.read_bytes() == b"mine"


def test_what_a_killed_program_left_is_removed(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    left, *others = (
        tmp_path / name
        for name in (
            f"zeros.{ended.pid}.part",
            f"zeros.{os.getppid()}.part",
            f"ones.{ended.pid}.part",
        )
    )
    for file in (left, *others):
        file.touch()
    synthetic_model(tmp_path / "zeros.gguf", SHAPE)
    assert not left.exists()
    assert all(file.exists() for file in others)


def test_without_room_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.truncate", full)
    with pytest.raises(OSError, match="No space left"):
        synthetic_model(tmp_path / "zeros.gguf", SHAPE)
    assert not list(tmp_path.iterdir())
