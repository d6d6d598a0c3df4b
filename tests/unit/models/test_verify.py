"""``dllm-tui models verify``: whole files, damaged ones, parts that are missing."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from backends.errors import ModelError
from backends.models.verify import verify_model
from tests.unit.models.ggufs import write_gguf, write_split
from tui.cli.main import cli


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("CONFIG", "STATE", "CACHE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    return tmp_path


def in_a_store(model: Path, folder: Path) -> Path:
    blob = folder / hashlib.sha256(model.read_bytes()).hexdigest()
    model.rename(blob)
    model.symlink_to(blob)
    return blob


def test_a_file_of_a_store_is_compared_with_its_name(tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "m.gguf")
    blob = in_a_store(model, tmp_path)
    result = CliRunner().invoke(cli, ["models", "verify", str(model)])
    assert result.exit_code == 0
    assert "verified" in result.stdout
    assert blob.name in result.stdout

    content = bytearray(blob.read_bytes())
    content[-1] ^= 1
    blob.write_bytes(content)
    result = CliRunner().invoke(cli, ["models", "verify", str(model)])
    assert result.exit_code == 1
    assert "DAMAGED" in result.stdout
    assert "download it again" in result.stderr
    told = json.loads(
        CliRunner().invoke(cli, ["models", "verify", str(model), "--json"]).stdout
    )
    assert told["damaged"]
    assert told["model"]["files"][0]["expected_sha256"] == blob.name


def test_of_another_file_the_hash_is_told(tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "m.gguf")
    result = CliRunner().invoke(cli, ["models", "verify", str(model)])
    assert result.stdout.startswith("whole")
    assert hashlib.sha256(model.read_bytes()).hexdigest() in result.stdout


def test_what_was_cut_off_is_found_without_reading_all(tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "m.gguf")
    model.write_bytes(model.read_bytes()[:-64])
    with pytest.raises(ModelError, match="truncated"):
        verify_model(model, quick=True)


def test_every_part_is_read_and_progress_reaches_all_bytes(tmp_path: Path) -> None:
    parts = write_split(tmp_path, "m", 3)
    seen: list[tuple[int, int]] = []
    found = verify_model(parts[1], on_bytes=lambda *told: seen.append(told))
    assert [file.path for file in found.files] == [str(part) for part in parts]
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1] == sum(part.stat().st_size for part in parts)
    parts[2].unlink()
    with pytest.raises(ModelError, match="missing"):
        verify_model(parts[0])
