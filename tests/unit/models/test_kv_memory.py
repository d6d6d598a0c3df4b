"""KV bytes per token against figures worked out from llama.cpp's formulas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backends.models.header import Header, Params
from backends.models.kv_cache import (
    LayerMemory,
    has_one_type,
    head_lengths,
    layer_memory,
)

ATTENTION = frozenset({"attn_q.weight", "attn_k.weight", "attn_v.weight"})
MLA = frozenset({"attn_q_b.weight", "attn_kv_a_mqa.weight"})
LINEAR = frozenset({"attn_qkv.weight", "ssm_out.weight"})
HYBRID = ATTENTION | {"ssm_in.weight"}
HEADS = {"embedding_length": 4096, "attention.head_count": 32}


def memory(
    arch: str, params: dict[str, Any], *layers: frozenset[str]
) -> list[tuple[int, int]]:
    """Bytes per token and window of each layer."""
    return [entry[:2] for entry in all_kept(arch, params, *layers)]


def all_kept(
    arch: str, params: dict[str, Any], *layers: frozenset[str]
) -> list[LayerMemory]:
    """All that each layer keeps."""
    return list(layer_memory(params_of(arch, params), layers))


def params_of(arch: str, params: dict[str, Any]) -> Params:
    """The hyperparameters of a header that has only these."""
    metadata = {f"{arch}.{key}": value for key, value in params.items()}
    return Params(Header(Path("m.gguf"), 0, 3, "little", 32, 0, metadata, ()), arch)


def test_grouped_heads_keep_a_row_of_k_and_v() -> None:
    # Llama 3.1 8B: 8 heads of 128, K and V, two bytes each.
    params = HEADS | {"attention.head_count_kv": 8}
    assert memory("llama", params, ATTENTION) == [(8 * 256 * 2, 0)]


def test_without_grouping_every_head_is_kept() -> None:
    assert memory("llama", HEADS, ATTENTION) == [(32 * 256 * 2, 0)]


def test_head_lengths_from_the_file_win() -> None:
    lengths = {"attention.key_length": 192, "attention.value_length": 128}
    params = HEADS | lengths | {"attention.head_count_kv": 4}
    assert all_kept("qwen3", params, ATTENTION) == [(4 * 320 * 2, 0, 4 * 192 * 2)]


def test_heads_per_layer() -> None:
    params = HEADS | {"attention.head_count_kv": (8, 0, 4)}
    kept = memory("deci", params, ATTENTION, ATTENTION, ATTENTION)
    assert kept == [(4096, 0), (0, 0), (2048, 0)]


def test_compressed_attention_keeps_one_row_and_no_v() -> None:
    # DeepSeek V3: kv_lora_rank 512 + 64 rotary dimensions.
    params = {
        "attention.head_count": 128,
        "attention.head_count_kv": 1,
        "attention.key_length": 576,
        "attention.value_length": 512,
        "attention.key_length_mla": 192,
        "attention.value_length_mla": 128,
    }
    assert all_kept("deepseek2", params, MLA) == [(576 * 2, 0, 576 * 2)]
    # Sparse attention (V3.2) adds an indexer key of 128.
    indexed = MLA | {"indexer.attn_k.weight"}
    more = params | {"attention.indexer.key_length": 128}
    assert memory("deepseek32", more, indexed) == [((576 + 128) * 2, 0)]


def test_an_indexers_key_is_a_head_of_its_own() -> None:
    """Eight heads of 128 and an indexer of 96: no head has 140 values."""
    indexed = ATTENTION | {"indexer.attn_k.weight"}
    more = {"attention.head_count_kv": 8, "attention.indexer.key_length": 96}
    params = params_of("minimax-m2", HEADS | more)
    assert head_lengths(params, [ATTENTION, indexed]) == ((96, 128), (128,))
    assert head_lengths(params, [ATTENTION]) == ((128,), (128,))
    assert not has_one_type(params)


def test_which_models_keep_k_and_v_in_one_type() -> None:
    mla = {"attention.key_length_mla": 192, "attention.value_length_mla": 128}
    assert has_one_type(params_of("deepseek2", HEADS | mla))
    assert has_one_type(params_of("deepseek4", HEADS))
    assert not has_one_type(params_of("deepseek2", HEADS))


def test_sliding_windows_may_have_other_heads() -> None:
    more = {"attention.sliding_window": 512, "attention.sliding_window_pattern": 2}
    lengths = {"attention.key_length_swa": 64, "attention.value_length_swa": 64}
    params = params_of("gemma4", HEADS | more | lengths)
    assert head_lengths(params, [ATTENTION] * 4) == ((64, 128), (64, 128))


def test_old_files_of_compressed_attention_keep_k_and_v() -> None:
    lengths = {"attention.key_length": 192, "attention.value_length": 128}
    params = {"attention.head_count": 16, "attention.head_count_kv": 16} | lengths
    assert memory("deepseek2", params, MLA) == [(16 * 320 * 2, 0)]


@pytest.mark.parametrize(
    ("arch", "layers", "kept"),
    [
        ("mamba2", (frozenset({"ssm_in.weight"}),), [0]),
        ("rwkv7", (frozenset({"time_mix_key.weight"}),), [0]),
        ("qwen3next", (LINEAR, LINEAR, LINEAR, ATTENTION), [0, 0, 0, 16384]),
        ("falcon-h1", (HYBRID,), [16384]),
        ("bert", (ATTENTION,), [0]),
        ("dream", (ATTENTION,), [0]),
    ],
)
def test_states_and_encoders_keep_nothing(
    arch: str, layers: tuple[frozenset[str], ...], kept: list[int]
) -> None:
    assert [entry[0] for entry in memory(arch, HEADS, *layers)] == kept


def test_prediction_layers_keep_nothing() -> None:
    params = HEADS | {"nextn_predict_layers": 1}
    kept = [entry[0] for entry in memory("glm4moe", params, ATTENTION, ATTENTION)]
    assert kept == [16384, 0]


def test_layers_that_share_a_cache_keep_nothing() -> None:
    params = HEADS | {"attention.shared_kv_layers": 2}
    kept = [entry[0] for entry in memory("gemma4", params, *[ATTENTION] * 4)]
    assert kept == [16384, 16384, 0, 0]
    kept = [entry[0] for entry in memory("gemma3n", params, *[ATTENTION] * 22)]
    assert kept == [16384] * 20 + [0, 0]


def test_sliding_windows_are_noted() -> None:
    params = HEADS | {"attention.sliding_window": 1024}
    windows = [entry[1] for entry in memory("gemma3", params, *[ATTENTION] * 7)]
    assert windows == [1024] * 5 + [0, 1024]
    windows = [entry[1] for entry in memory("smallthinker", params, *[ATTENTION] * 5)]
    assert windows == [0, 1024, 1024, 1024, 0]
    assert [entry[1] for entry in memory("mistral", params, ATTENTION)] == [0]
    windows = [entry[1] for entry in memory("llama4", HEADS, *[ATTENTION] * 4)]
    assert windows == [8192] * 3 + [0]


def test_sliding_layers_listed_in_the_file_have_their_own_head_lengths() -> None:
    params = HEADS | {
        "attention.head_count_kv": 1,
        "attention.sliding_window": 512,
        "attention.sliding_window_pattern": (True, False),
        "attention.key_length": 512,
        "attention.value_length": 512,
        "attention.key_length_swa": 256,
        "attention.value_length_swa": 256,
    }
    kept = memory("gemma4", params, ATTENTION, ATTENTION)
    assert kept == [(1024, 512), (2048, 0)]
