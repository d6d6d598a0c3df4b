"""KV bytes per token against figures worked out from llama.cpp's formulas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backends.models.header import Header, Params
from backends.models.layers import has_one_type, head_lengths, layer_memory

ATTENTION = frozenset({"attn_q.weight", "attn_k.weight", "attn_v.weight"})
MLA = frozenset({"attn_q_b.weight", "attn_kv_a_mqa.weight"})
LINEAR = frozenset({"attn_qkv.weight", "ssm_out.weight"})
HYBRID = ATTENTION | {"ssm_in.weight"}
HEADS = {"embedding_length": 4096, "attention.head_count": 32}


def params_of(arch: str, params: dict[str, Any]) -> Params:
    metadata = {f"{arch}.{key}": value for key, value in params.items()}
    return Params(Header(Path("m.gguf"), 0, 3, "little", 32, 0, metadata, ()), arch)


# Llama 3.1 8B has 8 heads of 128, K and V, two bytes each.
GROUPED = HEADS | {"attention.head_count_kv": 8}
# DeepSeek V3: kv_lora_rank 512 + 64 rotary dimensions.
COMPRESSED = {
    "attention.head_count": 128,
    "attention.head_count_kv": 1,
    "attention.key_length": 576,
    "attention.value_length": 512,
    "attention.key_length_mla": 192,
    "attention.value_length_mla": 128,
}
INDEXED = {**COMPRESSED, "attention.indexer.key_length": 128}
INDEXER = frozenset({"indexer.attn_k.weight"})
LENGTHS = {"attention.key_length": 192, "attention.value_length": 128}
OLD_MLA = {"attention.head_count": 16, "attention.head_count_kv": 16, **LENGTHS}
WINDOW = HEADS | {"attention.sliding_window": 1024}
LISTED = HEADS | {
    "attention.head_count_kv": 1,
    "attention.sliding_window": 512,
    "attention.sliding_window_pattern": (True, False),
    "attention.key_length": 512,
    "attention.value_length": 512,
    "attention.key_length_swa": 256,
    "attention.value_length_swa": 256,
}
MAMBA = frozenset({"ssm_in.weight"})
RWKV = frozenset({"time_mix_key.weight"})


@pytest.mark.parametrize(
    ("arch", "params", "layers", "kept"),
    [
        ("llama", GROUPED, [ATTENTION], [8 * 256 * 2]),
        ("llama", HEADS, [ATTENTION], [32 * 256 * 2]),
        ("qwen3", GROUPED | LENGTHS, [ATTENTION], [8 * 320 * 2]),
        (
            *("deci", HEADS | {"attention.head_count_kv": (8, 0, 4)}),
            *([ATTENTION] * 3, [4096, 0, 2048]),
        ),
        ("deepseek2", COMPRESSED, [MLA], [576 * 2]),
        ("deepseek32", INDEXED, [MLA | INDEXER], [(576 + 128) * 2]),
        ("deepseek2", OLD_MLA, [MLA], [16 * 320 * 2]),
        ("mamba2", HEADS, [MAMBA], [0]),
        ("rwkv7", HEADS, [RWKV], [0]),
        ("qwen3next", HEADS, [LINEAR, LINEAR, ATTENTION], [0, 0, 16384]),
        ("falcon-h1", HEADS, [HYBRID], [16384]),
        ("bert", HEADS, [ATTENTION], [0]),
        ("dream", HEADS, [ATTENTION], [0]),
        ("glm4moe", HEADS | {"nextn_predict_layers": 1}, [ATTENTION] * 2, [16384, 0]),
        (
            *("gemma4", HEADS | {"attention.shared_kv_layers": 2}),
            *([ATTENTION] * 4, [16384, 16384, 0, 0]),
        ),
        ("gemma3n", HEADS, [ATTENTION] * 22, [16384] * 20 + [0, 0]),
        ("gemma4", LISTED, [ATTENTION] * 2, [1024, 2048]),
    ],
)
def test_bytes_of_a_token_in_each_layer(
    arch: str, params: dict[str, Any], layers: list[frozenset[str]], kept: list[int]
) -> None:
    found = layer_memory(params_of(arch, params), layers)
    assert [layer.bytes_per_token for layer in found] == kept


@pytest.mark.parametrize(
    ("arch", "params", "windows"),
    [
        ("gemma3", WINDOW, [1024] * 5 + [0, 1024]),
        ("smallthinker", WINDOW, [0, 1024, 1024, 1024, 0]),
        ("mistral", WINDOW, [0]),
        ("llama4", HEADS, [8192] * 3 + [0]),
        ("gemma4", LISTED, [512, 0]),
    ],
)
def test_sliding_windows_are_noted(
    arch: str, params: dict[str, Any], windows: list[int]
) -> None:
    layers = [ATTENTION] * len(windows)
    found = layer_memory(params_of(arch, params), layers)
    assert [layer.window for layer in found] == windows


def test_ks_part_of_the_bytes() -> None:
    params = GROUPED | LENGTHS
    (plain,) = layer_memory(params_of("qwen3", params), [ATTENTION])
    (compressed,) = layer_memory(params_of("deepseek2", COMPRESSED), [MLA])
    assert plain.k_bytes_per_token == 8 * 192 * 2
    assert compressed.k_bytes_per_token == 576 * 2


SSM = {"ssm.conv_kernel": 4, "ssm.inner_size": 5120, "ssm.state_size": 16}
DELTA_NET = SSM | {"ssm.inner_size": 4096, "ssm.state_size": 128, "ssm.group_count": 16}


@pytest.mark.parametrize(
    ("arch", "params", "layer", "values"),
    [
        ("mamba", SSM, MAMBA, 3 * 5120 + 5120 * 16),
        ("qwen3next", DELTA_NET, LINEAR, 3 * (4096 + 2 * 16 * 128) + 4096 * 128),
        ("qwen3next", DELTA_NET, ATTENTION, 0),
        ("falcon-h1", SSM, HYBRID, 3 * 5120 + 5120 * 16),
        ("rwkv6", {"wkv.head_size": 64}, RWKV, 4096 * (2 + 64)),
        ("rwkv6qwen2", {"wkv.head_size": 64, "token_shift_count": 1}, RWKV, 4096 * 65),
        ("lfm2", {"shortconv.l_cache": 3}, frozenset({"shortconv.conv"}), 4096 * 2),
        (
            *("kimi-linear", {"kda.head_dim": 128, "ssm.conv_kernel": 4}),
            *(LINEAR, 4096 * (9 + 128)),
        ),
    ],
)
def test_a_recurrent_state_is_as_large_at_any_context(
    arch: str, params: dict[str, Any], layer: frozenset[str], values: int
) -> None:
    (memory,) = layer_memory(params_of(arch, HEADS | params), [layer])
    assert memory.state_bytes == values * 4


def test_head_lengths_are_those_of_all_layers_and_of_an_indexer() -> None:
    """Eight heads of 128 and an indexer of 96: no head has 140 values."""
    params = params_of("minimax-m2", GROUPED | {"attention.indexer.key_length": 96})
    assert head_lengths(params, [ATTENTION, ATTENTION | INDEXER]) == ((96, 128), (128,))
    assert head_lengths(params, [ATTENTION]) == ((128,), (128,))
    more = {"attention.sliding_window": 512, "attention.sliding_window_pattern": 2}
    lengths = {"attention.key_length_swa": 64, "attention.value_length_swa": 64}
    params = params_of("gemma4", HEADS | more | lengths)
    assert head_lengths(params, [ATTENTION] * 4) == ((64, 128), (64, 128))


@pytest.mark.parametrize(
    ("arch", "params", "expected"),
    [
        ("deepseek2", COMPRESSED, True),
        ("deepseek4", HEADS, True),
        ("deepseek2", HEADS, False),
        ("minimax-m2", GROUPED, False),
    ],
)
def test_which_models_keep_k_and_v_in_one_type(
    arch: str, params: dict[str, Any], expected: bool
) -> None:
    assert has_one_type(params_of(arch, params)) is expected
