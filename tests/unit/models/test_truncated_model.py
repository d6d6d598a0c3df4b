"""Canaries: the first layers of a model, as the engine would meet them."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.demo import MODEL_PATH
from backends.errors import ModelError
from backends.models.header import read_header
from backends.models.layers import read_model
from backends.models.truncated_model import write_truncated
from tests.kit.models import write_delta_net, write_llama


def test_one_layer_is_left_of_layers_that_are_alike(tmp_path: Path) -> None:
    model, truncated = MODEL_PATH, tmp_path / "truncated.gguf"
    made = write_truncated(model, truncated)
    assert made.n_layer == 1
    whole, cut = read_header(model), read_header(truncated)
    shapes = {tensor.name: (tensor.type, tensor.shape) for tensor in whole.tensors}
    assert {t.name: (t.type, t.shape) for t in cut.tensors}.items() <= shapes.items()
    assert {t.name for t in cut.tensors} == {
        name for name in shapes if not name.startswith("blk.") or "blk.0." in name
    }
    changed = {
        key for key, value in whole.metadata.items() if cut.metadata.get(key) != value
    }
    assert changed == {"llama.block_count"}
    assert read_model(truncated).n_layer == 1
    blocks = truncated.stat().st_blocks * 512
    assert blocks < made.layer_bytes < truncated.stat().st_size, "its bytes are a hole"


def test_every_kind_of_layer_is_there(tmp_path: Path) -> None:
    model, truncated = tmp_path / "delta.gguf", tmp_path / "truncated.gguf"
    write_delta_net(model)
    made = write_truncated(model, truncated)
    assert 1 < made.n_layer <= read_model(model).n_layer
    kinds = [kinds_of(file) for file in (model, truncated)]
    assert len(kinds[0]) > 1
    assert kinds[0] == kinds[1]


def kinds_of(file: Path) -> set[frozenset[str]]:
    """The sets of tensors that a layer of a model has."""
    found: dict[str, set[str]] = {}
    for tensor in read_header(file).tensors:
        if tensor.name.startswith("blk."):
            _, block, name = tensor.name.split(".", 2)
            found.setdefault(block, set()).add(name)
    return {frozenset(names) for names in found.values()}


def test_no_more_experts_than_a_token_uses(tmp_path: Path) -> None:
    model, truncated = tmp_path / "experts.gguf", tmp_path / "truncated.gguf"
    write_llama(model, n_layer=3, n_embd=64, n_ff=128, n_expert=8)
    write_truncated(model, truncated)
    cut = read_header(truncated)
    assert cut.metadata["llama.expert_count"] == cut.metadata["llama.expert_used_count"]
    experts = {t.name: t.shape[-1] for t in cut.tensors if "exps" in t.name}
    assert set(experts.values()) == {2}
    assert read_model(truncated).n_layer == 1


def test_a_split_model_becomes_one_file(tmp_path: Path) -> None:
    model, truncated = tmp_path / "split.gguf", tmp_path / "truncated.gguf"
    write_llama(model, n_layer=4, n_embd=64, n_ff=128, split=9)
    (first, *_) = sorted(tmp_path.glob("split-*.gguf"))
    write_truncated(first, truncated)
    assert not [key for key in read_header(truncated).metadata if key[:6] == "split."]
    assert read_model(truncated).n_layer == 1


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="truncated"):
        write_truncated(file, tmp_path / "truncated.gguf")
