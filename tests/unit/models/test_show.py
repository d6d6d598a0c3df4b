"""``dllm-tui models show`` end to end, without a controller."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from backends.errors import ModelError
from backends.state import Layer
from backends.units import format_ranges
from tests.unit.models.ggufs import llama_tensors, write_gguf
from tui.cli.models import equal_layers, quant_mix, show_model

pytestmark = pytest.mark.usefixtures("home")


def output(*args: str) -> str:
    result = CliRunner().invoke(show_model, list(args), catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_json_goes_to_stdout_alone(tmp_path: Path) -> None:
    content = json.loads(output(str(write_gguf(tmp_path / "m.gguf")), "--json"))
    assert content["n_layer"] == len(content["layers"]) == 3
    layers = sum(layer["bytes"] for layer in content["layers"])
    parts = layers + content["output_bytes"] + content["embedding_bytes"]
    assert parts == content["tensor_bytes"]


def test_equal_layers_share_a_row(tmp_path: Path) -> None:
    text = output(str(write_gguf(tmp_path / "m.gguf")))
    rows = [line.split() for line in text.splitlines()]
    row = next(row for row in rows if row[:2] == ["0–2", "×3"])
    assert " ".join(row[2:]) == "120 KiB 48.0 KiB 72.0 KiB 512 B 128 B F32 100 %"
    assert "experts" not in text
    assert "tied" not in text


def test_a_tied_head_is_said(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", tensors=llama_tensors(tied=True))
    assert "the token embedding again (tied)" in output(str(path))


def test_text_of_the_file_is_not_interpreted(tmp_path: Path) -> None:
    name = "[bold]\x1b[2J:smile:\r\nx"
    path = write_gguf(tmp_path / "m.gguf", metadata={"general.name": name})
    text = output(str(path))
    assert "[bold]�[2J:smile:��x" in text
    assert "\x1b" not in text


def test_a_name_of_the_catalogue(home: Path) -> None:
    folder = home / ".models" / "sub"
    folder.mkdir(parents=True)
    write_gguf(folder / "tiny.gguf")
    assert "llama" in output("sub/tiny")


def test_the_bundled_model_has_a_name() -> None:
    content = json.loads(output("dllm-demo", "--json"))
    layers = sum(layer["bytes"] for layer in content["layers"])
    parts = layers + content["output_bytes"] + content["embedding_bytes"]
    assert parts == content["tensor_bytes"]


def test_errors_reach_the_caller() -> None:
    for model in ("nothing", "/nowhere/x.gguf"):
        with pytest.raises(ModelError):
            output(model)


def test_ranges_and_groups() -> None:
    assert format_ranges([0, 1, 2, 5, 7, 8]) == "0–2, 5, 7–8"
    layers = [Layer(index=i, bytes=1 + (i == 1)) for i in range(3)]
    assert [[x.index for x in row] for row in equal_layers(layers)] == [[0, 2], [1]]
    mixed = Layer(index=0, bytes=1000, quants={"Q4_K": 780, "Q6_K": 219, "F32": 1})
    assert quant_mix(mixed) == "Q4_K 78 %, Q6_K 22 %, F32"
