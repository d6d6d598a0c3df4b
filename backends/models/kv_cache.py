"""The cache of a token: bytes of f16 K and V per layer, and of a recurrent state.

Sources in llama.cpp: llama_hparams::n_embd_k_gqa, n_embd_v_gqa, has_kv, n_embd_r and
n_embd_s (src/llama-hparams.cpp); the constructors of llama_kv_cache and
llama_memory_recurrent (src/); llama_model::create_memory for the cached layers
(src/llama-model.cpp); load_hparams of each architecture (src/models/).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from backends.models.header import Params

F16_BYTES = 2
F32_BYTES = 4

ENCODERS = frozenset(
    {
        "bert",
        "eurobert",
        "gemma-embedding",
        "jina-bert-v2",
        "jina-bert-v3",
        "modern-bert",
        "neo-bert",
        "nomic-bert",
        "nomic-bert-moe",
    }
)
"""Architectures that embed text and predict no token."""
CACHELESS = ENCODERS | {"dream", "llada", "llada-moe", "rnd1", "wavtokenizer-dec"}
"""Architectures for which create_memory returns nothing."""

# Every how many layers one attends to the whole context, where the file does not say
# (load_swa_pattern in src/models/<arch>.cpp).
_SWA_PERIODS = {
    "afmoe": 4,
    "cohere2": 4,
    "cohere2moe": 4,
    "exaone-moe": 4,
    "exaone4": 4,
    "gemma2": 2,
    "gemma3": 6,
    "gemma3n": 5,
    "gpt-oss": 2,
    "laguna": 4,
    "llama4": 4,
    "mellum": 4,
    "muse-glimmer": 4,
    "olmo2": 4,
    "plamo3": 8,
    "smallthinker": 4,
}
# The full layer comes first in its period (dense_first), not last.
_SWA_FULL_FIRST = frozenset({"cohere2moe", "laguna", "smallthinker"})
# llama4.cpp attends in chunks of this many tokens, whatever the file says.
_LLAMA4_WINDOW = 8192
# gemma3n.cpp sets n_layer_kv_from_start itself.
_GEMMA3N_OWN_KV_LAYERS = 20


ONE_TYPE = ("deepseek4",)


class LayerMemory(NamedTuple):
    bytes_per_token: int
    window: int = 0
    """Tokens kept at most (sliding-window attention); 0: all of the context."""
    k_bytes_per_token: int = 0
    """K's part of the bytes."""
    state_bytes: int = 0
    """Of a recurrent state, whatever the context; one for each slot."""


def layer_memory(
    params: Params, stems: Sequence[frozenset[str]]
) -> tuple[LayerMemory, ...]:
    """K and V of every layer, f16, in bytes per token.

    Full attention keeps ``n_head_kv · (key_length + value_length)`` numbers. Compressed
    attention (MLA, files with the ``*_mla`` keys) keeps no V. It keeps one row of
    ``key_length`` = kv_lora_rank + rope dimensions. A sparse-attention indexer adds a
    key of its own. Recurrent layers, layers that reuse another's cache and multi-token
    prediction layers keep nothing.

    ``stems`` are the names of a layer's tensors without the ``blk.N.`` in front.
    """
    n_layer = len(stems)
    heads = params.per_layer("attention.head_count", n_layer)
    heads_kv = params.per_layer("attention.head_count_kv", n_layer)
    if params.raw("attention.head_count_kv") is None:
        heads_kv = heads
    window = swa_window(params)
    windowed = swa_layers(params, n_layer)
    kept = kept_layers(params, n_layer)
    rows = (
        _row_values(params, heads_kv[index], windowed[index], stems[index])
        if kept[index] and not is_recurrent(stems[index])
        else (0, 0)
        for index in range(n_layer)
    )
    return tuple(
        LayerMemory(
            (k_values + v_values) * F16_BYTES,
            window if is_windowed else 0,
            k_values * F16_BYTES,
            _state_values(params, layer) * F32_BYTES,
        )
        for (k_values, v_values), is_windowed, layer in zip(
            rows, windowed, stems, strict=True
        )
    )


def kept_layers(params: Params, n_layer: int) -> list[bool]:
    own = n_layer - params.number("nextn_predict_layers")
    if params.arch in CACHELESS:
        own = 0
    if params.arch == "gemma3n":
        own = min(own, _GEMMA3N_OWN_KV_LAYERS)
    if params.arch == "gemma4":
        own -= params.number("attention.shared_kv_layers")
    return [index < own for index in range(n_layer)]


def swa_window(params: Params) -> int:
    default = _LLAMA4_WINDOW if params.arch == "llama4" else 0
    return params.number("attention.sliding_window", default)


def swa_layers(params: Params, n_layer: int) -> list[bool]:
    key = "attention.sliding_window_pattern"
    listed = params.flags(key, n_layer)
    if listed is not None:
        return listed
    period = params.number(key, _SWA_PERIODS.get(params.arch, 0))
    if not period or not swa_window(params):
        return [False] * n_layer
    full = 0 if params.arch in _SWA_FULL_FIRST else period - 1
    return [index % period != full for index in range(n_layer)]


def is_recurrent(stems: frozenset[str]) -> bool:
    """True if a layer's tensors mix tokens through a state, not through a cache.

    Attention inside such a layer (Falcon-H1) shows in a key projection of its own;
    a fused ``attn_qkv`` there belongs to linear attention (Qwen3-Next).
    """
    return _has_state(stems) and "attn_k.weight" not in stems


RECURRENT_PREFIXES = ("ssm_", "time_mix_", "shortconv.")


def _has_state(stems: frozenset[str]) -> bool:
    return any(stem.startswith(RECURRENT_PREFIXES) for stem in stems)


def _state_values(params: Params, stems: frozenset[str]) -> int:
    if not _has_state(stems):
        return 0
    n_embd, kernel = params.number("embedding_length"), "ssm.conv_kernel"
    if head := params.number("wkv.head_size"):
        return n_embd * (params.number("token_shift_count", 2) + head)
    if cached := params.number("shortconv.l_cache"):
        return n_embd * (cached - 1)
    if head := params.number("kda.head_dim"):
        width = params.number("attention.head_count") * head
        return width * (3 * (params.number(kernel, 4) - 1) + head)
    inner, state = params.number("ssm.inner_size"), params.number("ssm.state_size")
    mixed = inner + 2 * params.number("ssm.group_count") * state
    return max(params.number(kernel) - 1, 0) * mixed + state * inner


def _row_values(
    params: Params, heads_kv: int, windowed: bool, stems: frozenset[str]
) -> tuple[int, int]:
    k, v = _head_lengths(params, windowed)
    if params.number("attention.key_length_mla") > 0:
        v = 0
    k_values, v_values = heads_kv * k, heads_kv * v
    if has_indexer(stems):
        # One key head, see llama_kv_cache_dsa and llama_kv_cache_msa.
        k_values += params.number("attention.indexer.key_length")
        v_values += v
    return k_values, v_values


def head_lengths(
    params: Params, stems: Sequence[frozenset[str]]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Each length of a head of K there is, and of V, in values; ascending.

    llama.cpp stores each in whole blocks of a cache type. It looks at all layers.
    An indexer's key, cached in the type of K, is such a head of its own.
    """
    if not params.number("attention.head_count"):
        return (), ()
    kinds = {_head_lengths(params, one) for one in swa_layers(params, len(stems))}
    keys, values = {k for k, _ in kinds}, {v for _, v in kinds}
    if any(has_indexer(layer) for layer in stems):
        keys.add(params.number("attention.indexer.key_length"))
    return tuple(sorted(keys - {0})), tuple(sorted(values - {0}))


def has_one_type(params: Params) -> bool:
    """True if llama.cpp wants K and V in one type (``is_mla``, DeepSeek V4)."""
    mla = ("attention.key_length_mla", "attention.value_length_mla")
    return params.arch in ONE_TYPE or all(params.number(key) for key in mla)


def has_indexer(stems: frozenset[str]) -> bool:
    """True if a layer picks what it attends to by a small attention of its own."""
    return any(stem.startswith("indexer.") for stem in stems)


def _head_lengths(params: Params, windowed: bool) -> tuple[int, int]:
    first_heads = max(params.number("attention.head_count"), 1)
    default = params.number("embedding_length") // first_heads
    k = params.number("attention.key_length", default)
    v = params.number("attention.value_length", default)
    if windowed:
        k = params.number("attention.key_length_swa", k)
        v = params.number("attention.value_length_swa", v)
    return k, v
