"""``dllm-tui models verify``: whole files, damaged ones, parts that are missing."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from backends.errors import ModelError
from backends.models.sparse_copy import plan_sparse, write_sparse
from backends.models.verify import Comparison, compare_tensors, verify_model
from backends.state.models import TensorSums
from tests.kit.models import write_llama
from tests.unit.models.ggufs import write_gguf, write_split
from tui.cli.main import cli

pytestmark = pytest.mark.usefixtures("home", "forking")


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


def test_a_sparse_copy_is_not_called_whole(tmp_path: Path) -> None:
    write_llama(tmp_path / "m.gguf", n_layer=2, n_embd=128, n_ff=256)
    copy = tmp_path / "copy.gguf"
    plan = plan_sparse(tmp_path / "m.gguf", "output,0", copy)
    asyncio.run(write_sparse(plan, lambda done: None))
    result = CliRunner().invoke(cli, ["models", "verify", str(copy), "--quick"])
    assert result.stdout.startswith("sparse ")
    assert "sparse: output, 0 of m.gguf" in result.stdout


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


# --- against another machine ---------------------------------------------------------

Q4_K, Q8_0 = 12, 8


def tensor(name: str, digit: str = "a") -> TensorSums:
    return TensorSums(
        name=name,
        type=Q8_0,
        shape=(256, 4, 1, 1),
        size_bytes=1088,
        blake3=digit * 64,
    )


HERE = (tensor("one"), tensor("two"), tensor("three"))


def compared(*there: TensorSums) -> Comparison:
    return compare_tensors(HERE, there, machine="mini", path="/m.gguf")


def test_the_same_in_another_order() -> None:
    found = compared(*reversed(HERE))
    assert found.same
    assert found.verdict == "the same by BLAKE3: all 3 tensors"
    assert (found.machine, found.path) == ("mini", "/m.gguf")
    assert found.size_bytes == 3 * 1088


def test_every_difference_is_named() -> None:
    other = tensor("two", "b")
    found = compared(replace(HERE[0], type=Q4_K, size_bytes=576), other, tensor("four"))
    assert {one.name: one.why for one in found.differing} == {
        "one": "Q4_K there, Q8_0 here",
        "two": "other bytes",
        "three": "missing there",
        "four": "only there",
    }
    assert not found.same
    assert found.verdict == "4 of 4 tensors differ: another file?"


def test_a_shape_of_its_own() -> None:
    reshaped = replace(HERE[0], shape=(512, 2, 1, 1))
    (one,) = compared(reshaped, *HERE[1:]).differing
    assert one.why == "shape 512×2×1×1 there, 256×4×1×1 here"
