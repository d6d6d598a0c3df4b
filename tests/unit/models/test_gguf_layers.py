"""Layers, groups, totals, split files and what is no language model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType
from gguf.constants import TENSOR_NAMES

from backends.errors import ModelError
from backends.models.layers import group_of, read_model
from backends.models.parts import part_of
from backends.state import ModelInfo
from tests.unit.models.ggufs import (
    F32,
    LLAMA,
    TOKENS,
    Tensors,
    llama_tensors,
    n_bytes,
    write_gguf,
    write_split,
)

Q4_K, Q6_K = GGMLQuantizationType.Q4_K, GGMLQuantizationType.Q6_K


def adds_up(info: ModelInfo) -> bool:
    layers = sum(layer.bytes for layer in info.layers)
    return layers + info.output_bytes + info.embedding_bytes == info.tensor_bytes


def layers_of(
    folder: Path, arch: str, params: dict[str, Any], *stems: str
) -> ModelInfo:
    """A model of one tensor [256] per stem and layer."""
    count = params["block_count"]
    tensors: Tensors = {
        f"blk.{layer}.{stem}": ((256,), F32) for layer in range(count) for stem in stems
    }
    tensors["token_embd.weight"] = ((256, 32), F32)
    return read_model(write_gguf(folder / "m.gguf", params, tensors, arch=arch))


def test_a_dense_model(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "m.gguf",
        metadata={
            "general.name": "Small\x1b[31m one",
            "general.file_type": 15,
            "tokenizer.chat_template": "{{ x }}",
        },
    )
    info = read_model(path)
    assert (info.path, info.files) == (str(path), (str(path),))
    assert (info.arch, info.file_type, info.name) == (
        "llama",
        "Q4_K_M",
        "Small�[31m one",
    )
    assert (info.n_layer, info.n_embd, info.n_vocab) == (3, 64, len(TOKENS))
    assert (info.n_head, info.n_head_kv, info.n_ctx_train) == (4, 2, 1024)
    assert info.has_chat_template
    assert not info.tied_output
    assert info.size_bytes == path.stat().st_size
    assert info.n_tensors == len(llama_tensors())
    assert [layer.index for layer in info.layers] == [0, 1, 2]
    layer = info.layers[0]
    assert layer.groups.attention == 4 * (2 * 64 * 64 + 2 * 64 * 32)
    assert layer.groups.ffn == 4 * 3 * 64 * 96
    assert layer.groups.other == 4 * 2 * 64
    assert layer.groups.experts == layer.groups.recurrent == 0
    assert layer.quants == {"F32": layer.bytes}
    assert layer.kv_bytes_per_token == 2 * (16 + 16) * 2
    assert info.embedding_bytes == 4 * 64 * 32
    assert info.output_bytes == 4 * 64 * 32 + 4 * 64
    assert info.tensor_bytes == sum(n_bytes(*t) for t in llama_tensors().values())
    assert adds_up(info)


def test_a_tied_head_counts_the_embedding_again(tmp_path: Path) -> None:
    info = read_model(write_gguf(tmp_path / "m.gguf", tensors=llama_tensors(tied=True)))
    assert info.tied_output
    assert info.output_bytes == 4 * 64 + info.embedding_bytes
    stored = llama_tensors(tied=True).values()
    assert info.tensor_bytes == sum(n_bytes(*tensor) for tensor in stored)


def test_an_encoder_has_no_head_to_tie(tmp_path: Path) -> None:
    info = layers_of(tmp_path, "bert", {"block_count": 1}, "attn_q.weight")
    assert not info.tied_output
    assert adds_up(info)


def test_the_quant_mix_is_per_layer(tmp_path: Path) -> None:
    tensors: Tensors = {
        "blk.0.attn_q.weight": ((256, 8), Q4_K),
        "blk.0.ffn_up.weight": ((256, 8), Q6_K),
        "blk.1.ffn_up.weight": ((256, 8), Q4_K),
        "output.weight": ((256, 8), Q4_K),
    }
    params = {"block_count": 2, "embedding_length": 256}
    info = read_model(write_gguf(tmp_path / "m.gguf", params, tensors))
    assert list(info.layers[0].quants.items()) == [("Q6_K", 1680), ("Q4_K", 1152)]
    assert info.layers[1].quants == {"Q4_K": 1152}
    assert info.file_type == "Q4_K"
    assert adds_up(info)


def test_a_stated_type_that_no_layer_has_is_not_believed(tmp_path: Path) -> None:
    """A copy whose layers were quantised anew may state its original's."""
    tensors: Tensors = {
        "blk.0.attn_q.weight": ((256, 8), Q4_K),
        "blk.0.ffn_up.weight": ((256, 8), Q6_K),
        "output.weight": ((256, 64), F32),
    }
    params = {"block_count": 1, "embedding_length": 256}

    def named(stated: int) -> str:
        metadata = {"general.file_type": stated}
        path = write_gguf(tmp_path / "m.gguf", params, tensors, metadata=metadata)
        return read_model(path).file_type

    q8_0, f32, q6_k, q4_k_m = 7, 0, 18, 15
    assert [named(t) for t in (q8_0, f32, q6_k, q4_k_m)] == [
        *("Q6_K", "Q6_K", "Q6_K", "Q4_K_M")
    ]


@pytest.mark.parametrize(
    ("params", "width"),
    [
        ({"feed_forward_length": 100}, 100),
        ({"feed_forward_length": (100, 300)}, 300),
        ({"feed_forward_length": 100, "expert_used_count": 2}, 200),
        (
            {
                "feed_forward_length": 100,
                "expert_used_count": 4,
                "expert_feed_forward_length": 30,
                "expert_shared_count": 2,
            },
            180,
        ),
        ({"expert_used_count": 4, "expert_shared_feed_forward_length": 50}, 50),
        ({"feed_forward_length": 100, "ssm.inner_size": 70}, 140),
        ({}, 0),
    ],
)
def test_the_width_of_the_widest_part(
    tmp_path: Path, params: dict[str, Any], width: int
) -> None:
    info = layers_of(tmp_path, "qwen3moe", {"block_count": 2} | params, "ffn_up.weight")
    assert info.n_ff == width


@pytest.mark.parametrize(
    ("params", "stem", "count"),
    [
        ({"attention.head_count": 4}, "attn_k.weight", 1),
        ({"ssm.inner_size": 8, "ssm.state_size": 4}, "ssm_in.weight", 3),
        ({"wkv.head_size": 8}, "time_mix_key.weight", 2),
    ],
)
def test_models_that_attend_nowhere_are_told_apart(
    tmp_path: Path, params: dict[str, Any], stem: str, count: int
) -> None:
    shape = {"block_count": 2, "embedding_length": 64}
    assert layers_of(tmp_path, "llama", shape | params, stem).n_handed_over == count


def test_experts_apart_from_shared_experts(tmp_path: Path) -> None:
    info = layers_of(
        tmp_path,
        "deepseek2",
        {"block_count": 2, "expert_count": 8, "expert_used_count": 2},
        "ffn_up_exps.weight",
        "ffn_gate_up_exps.weight",
        "ffn_up_shexp.weight",
        "ffn_gate_inp.weight",
        "exp_probs_b.bias",
        "ffn_norm.weight",
    )
    assert (info.n_expert, info.n_expert_used) == (8, 2)
    groups = info.layers[1].groups
    assert (groups.experts, groups.ffn, groups.other) == (2048, 2048, 2048)


# Everything gguf knows that is neither attention, feed-forward, expert nor state.
OTHER = {
    "exp_probs_b",
    "layer_output_scale",
    "inp_gate",
    "proj",
    "altup_correct_coef",
    "altup_correct_scale",
    "altup_predict_coef",
    "altup_router",
    "laurel_l",
    "laurel_r",
    "nextn.eh_proj",
    "nextn.embed_tokens",
    "nextn.shared_head_head",
}


def test_every_layer_tensor_of_gguf_has_its_group() -> None:
    stems = {
        name.partition("blk.{bid}.")[2]
        for name in TENSOR_NAMES.values()
        if name.startswith(("blk.", "enc.blk.", "dec.blk."))
    }
    other = {s for s in stems if group_of(f"{s}.weight") == "other" and "norm" not in s}
    assert other == OTHER
    for stem in stems - other:
        if "norm" not in stem:
            group = group_of(f"{stem}.weight")
            assert group == expected_group(stem), stem


def expected_group(stem: str) -> str:
    """By what the name starts with, spelled out the other way round."""
    if stem.endswith(("_exps", "_chexps")):
        return "experts"
    for group, starts in (
        ("recurrent", ("ssm", "time_mix", "shortconv")),
        ("ffn", ("ffn", "channel_mix", "vis_gate", "vis_up", "vis_down")),
    ):
        if stem.startswith(starts):
            return group
    return "attention"


def test_tensors_of_no_layer_belong_to_the_output(tmp_path: Path) -> None:
    tensors = llama_tensors()
    tensors["rope_freqs.weight"] = ((8,), F32)
    tensors["blk.3.attn_q.weight"] = ((64,), F32)
    tensors["position_embd.weight"] = ((64, 16), F32)
    info = read_model(write_gguf(tmp_path / "m.gguf", tensors=tensors))
    assert info.output_bytes == 4 * (64 * 32 + 64 + 8 + 64)
    assert info.embedding_bytes == 4 * (64 * 32 + 64 * 16)
    assert adds_up(info)


def test_an_encoder_and_its_decoder_share_layers(tmp_path: Path) -> None:
    tensors: Tensors = {
        "enc.blk.0.attn_q.weight": ((64,), F32),
        "dec.blk.0.cross_attn_q.weight": ((64,), F32),
        "output.weight": ((64,), F32),
    }
    path = write_gguf(tmp_path / "m.gguf", {"block_count": 1}, tensors, arch="t5")
    info = read_model(path)
    assert info.layers[0].groups.attention == 512
    assert adds_up(info)


def test_any_part_stands_for_the_whole(tmp_path: Path) -> None:
    parts = write_split(tmp_path, "big", 3)
    for part in parts:
        info = read_model(part)
        assert info.files == tuple(map(str, parts))
        assert info.path == str(parts[0])
        assert info.n_tensors == len(llama_tensors())
        assert info.size_bytes == sum(part.stat().st_size for part in parts)
        assert adds_up(info)


@pytest.mark.parametrize("missing", [1, 3])
def test_a_missing_part_is_named(tmp_path: Path, missing: int) -> None:
    parts = write_split(tmp_path, "big", 3)
    parts[missing - 1].unlink()
    with pytest.raises(
        ModelError, match=rf"big-0000{missing}-of-00003\.gguf is missing"
    ):
        read_model(parts[missing % 3])


def test_parts_that_do_not_belong_together(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    wrong = write_split(tmp_path / "a", "big", 3, wrong_number=2)
    with pytest.raises(ModelError, match=r"is not part 2: its metadata says"):
        read_model(wrong[0])
    (tmp_path / "b").mkdir()
    twice = write_split(tmp_path / "b", "big", 2)
    split = {"split.no": 1, "split.count": 2}
    write_gguf(twice[1], {}, llama_tensors(), metadata=split, vocabulary=False)
    with pytest.raises(ModelError, match="in more than one part"):
        read_model(twice[0])


def test_a_renamed_part_is_explained(tmp_path: Path) -> None:
    renamed = write_split(tmp_path, "big", 2)[0].rename(tmp_path / "mine.gguf")
    with pytest.raises(
        ModelError, match=r"mine\.gguf is one of 2 parts.*00001-of-00002"
    ):
        read_model(renamed)


def test_a_whole_model_may_be_called_like_a_part(tmp_path: Path) -> None:
    info = read_model(write_gguf(tmp_path / "m-00001-of-00002.gguf"))
    assert len(info.files) == 1


def test_part_names() -> None:
    part = part_of("a-b-00002-of-00010.gguf")
    assert part is not None
    assert (part.prefix, part.number, part.count) == ("a-b", 2, 10)
    for name in ("a.gguf", "a-00000-of-00002.gguf", "a-00003-of-00002.gguf"):
        assert part_of(name) is None


@pytest.mark.parametrize(
    ("arch", "params", "metadata", "sentence"),
    [
        ("clip", {}, {}, "a projector, not a language model"),
        ("llama", LLAMA, {"general.type": "mmproj"}, "a projector"),
        ("llama", LLAMA, {"general.type": "adapter"}, "a LoRA adapter"),
        ("flux", {}, {}, "no usable flux.block_count"),
        ("llama", {"block_count": 0}, {}, r"\(0 layers\)"),
        ("llama", {"block_count": 2**20}, {}, "1048576 layers"),
        ("llama", {"block_count": "many"}, {}, "block_count cannot be many"),
        ("llama", LLAMA | {"context_length": -5}, {}, "context_length cannot be"),
        ("", {}, {}, "does not name its architecture"),
    ],
)
def test_what_is_no_language_model(
    tmp_path: Path, arch: str, params: dict[str, Any], metadata: Any, sentence: str
) -> None:
    negative = {key: value for key, value in params.items() if value == -5}
    whole = {key: value for key, value in params.items() if value != -5}
    more = {f"{arch}.{key}": float(value) for key, value in negative.items()}
    path = write_gguf(tmp_path / "m.gguf", whole, arch=arch, metadata=metadata | more)
    with pytest.raises(ModelError, match=sentence):
        read_model(path)


def test_a_vocabulary_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="holds no tensors"):
        read_model(write_gguf(tmp_path / "vocab.gguf", tensors={}))
