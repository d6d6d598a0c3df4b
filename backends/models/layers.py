"""Headers to ``ModelInfo``: what layers, output and embedding weigh and cache.

Sources of the cache's sizes in llama.cpp: llama_hparams::n_embd_k_gqa, n_embd_v_gqa,
has_kv, n_embd_r and n_embd_s (src/llama-hparams.cpp); the constructors of
llama_kv_cache and llama_memory_recurrent (src/); llama_model::create_memory for the
cached layers (src/llama-model.cpp); load_hparams of each architecture (src/models/).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

from backends.errors import ModelError
from backends.models.header import (
    Header,
    Params,
    Places,
    Skipped,
    Tensor,
    file_type_name,
    read_header,
    tensor_types,
)
from backends.models.parts import check_part, first_part, other_parts
from backends.models.search import caveat_of
from backends.models.sparse import sparse_model
from backends.printable import printable
from backends.state import Layer, LayerBytes, ModelInfo

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


LAYERS_MAX = 4096
"""Ours; LLAMA_MAX_LAYERS is 512."""

EMBEDDING = ("token_embd", "token_types", "position_embd", "per_layer_token_embd")
"""The names of tensors that turn tokens into vectors; they stay on the head."""
ATTENTION = ("attn_", "cross_attn_", "vis_attn_", "indexer.")
FFN = ("ffn", "channel_mix_", "vis_gate", "vis_up", "vis_down")
EXPERTS = ("_exps.", "_chexps.")
# T5 has enc.blk.N and dec.blk.N; both belong to layer N.
_LAYER = re.compile(r"(?:enc\.|dec\.)?blk\.(\d+)\.(.+)", re.DOTALL)
_OTHER_FILES = {
    "adapter": "is a LoRA adapter, not a language model",
    "mmproj": "is a projector, not a language model",
    "imatrix": "is an importance matrix, not a language model",
}


def read_model(path: Path | str) -> ModelInfo:
    """Everything a plan needs to know of a model, from its headers."""
    return model_of(model_headers(path))


def model_headers(path: Path | str) -> list[Header]:
    first = read_header(first_part(Path(path)))
    headers = [first]
    for number, other in enumerate(other_parts(first), start=2):
        headers.append(read_header(other))
        check_part(headers[-1], number)
    return headers


def model_of(headers: Sequence[Header]) -> ModelInfo:
    first = headers[0]
    params = Params(first, _arch(first))
    tensors = _all_tensors(headers)
    places = places_in(headers)
    named = {tensor.name: tensor for tensor in tensors}
    embedding = named.get("token_embd.weight")
    k_lengths, v_lengths = head_lengths(params, _stems(places))
    memory = layer_memory(params, _stems(places))
    tied = "output.weight" not in named and params.arch not in ENCODERS
    return ModelInfo(
        path=printable_path(first.path),
        files=tuple(printable_path(header.path) for header in headers),
        name=_name(first),
        arch=printable(params.arch),
        file_type=_file_type(first, tensors),
        gguf_version=first.version,
        byte_order=first.byte_order,
        size_bytes=sum(header.file_bytes for header in headers),
        n_tensors=len(tensors),
        n_layer=len(places.layers),
        n_layer_nextn=min(params.number("nextn_predict_layers"), len(places.layers)),
        n_embd=params.number("embedding_length"),
        n_vocab=_vocabulary(first, params, embedding.shape if embedding else ()),
        n_head=params.number("attention.head_count"),
        n_head_kv=params.number(
            "attention.head_count_kv", params.number("attention.head_count")
        ),
        k_head_lengths=k_lengths,
        v_head_lengths=v_lengths,
        one_cache_type=has_one_type(params),
        n_expert=params.number("expert_count"),
        n_expert_used=params.number("expert_used_count"),
        n_ff=_width(params),
        n_handed_over=_handed_over(params, memory),
        n_ctx_train=params.number("context_length"),
        has_chat_template=bool(first.metadata.get("tokenizer.chat_template")),
        tied_output=tied,
        layers=tuple(map(_layer, count(), places.layers, memory)),
        output_bytes=_total(places.output)
        + (embedding.n_bytes if tied and embedding else 0),
        embedding_bytes=_total(places.embedding),
        tensor_bytes=_total(tensors),
        unknown_types=tuple(sorted({t.type_name for t in tensors if not t.type_known})),
        sparse=sparse_model(headers, places),
        caveat=caveat_of(headers),
    )


def places_in(headers: Sequence[Header]) -> Places:
    first = headers[0]
    params = Params(first, _arch(first))
    return place_tensors(_all_tensors(headers), _layer_count(first, params))


def place_tensors(tensors: Iterable[Tensor], n_layer: int) -> Places:
    """Sort tensors into layers, embedding and output; every tensor lands once."""
    places = Places([[] for _ in range(n_layer)], [], [])
    for tensor in tensors:
        match = _LAYER.fullmatch(tensor.name)
        if match and int(match[1]) < n_layer:
            places.layers[int(match[1])].append((match[2], tensor))
        elif tensor.name.startswith(EMBEDDING):
            places.embedding.append(tensor)
        else:
            places.output.append(tensor)
    return places


def group_of(stem: str, recurrent: bool = False) -> str:
    """The field of ``LayerBytes`` a tensor counts in.

    ``stem`` is its name without ``blk.N.``. In a ``recurrent`` layer, which keeps a
    state, the projections around that are called ``attn_*`` too.
    """
    if "norm" in stem:
        return "other"
    if any(mark in stem for mark in EXPERTS):
        return "experts"
    if stem.startswith(RECURRENT_PREFIXES):
        return "recurrent"
    if stem.startswith(ATTENTION):
        return "recurrent" if recurrent else "attention"
    return "ffn" if stem.startswith(FFN) else "other"


def printable_path(path: Path) -> str:
    text = str(path.absolute())
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ModelError(
            f"The name {printable(path.name)} is not valid UTF-8", "Rename the file."
        ) from error
    return text


def _arch(header: Header) -> str:
    name = printable(header.path.name)
    kind = header.metadata.get("general.type")
    arch = header.metadata.get("general.architecture")
    what = _OTHER_FILES.get(kind) if isinstance(kind, str) else None
    if arch == "clip":
        what = _OTHER_FILES["mmproj"]
    if what:
        raise ModelError(f"{name} {what}", "Name the model it belongs to.")
    if not isinstance(arch, str) or not arch:
        raise ModelError(
            f"{name} does not name its architecture",
            "It is not a language model in llama.cpp's format.",
        )
    return arch


def _layer_count(header: Header, params: Params) -> int:
    n_layer = params.number("block_count")
    if 1 <= n_layer <= LAYERS_MAX:
        return n_layer
    arch = printable(params.arch, 40)
    raise ModelError(
        f"{printable(header.path.name)} has no usable {arch}.block_count "
        f"({n_layer} layers)",
        "It is not a language model that can be split into layers.",
    )


def _all_tensors(headers: Sequence[Header]) -> list[Tensor]:
    tensors = [tensor for header in headers for tensor in header.tensors]
    name = printable(headers[0].path.name)
    if not tensors:
        raise ModelError(f"{name} holds no tensors, only metadata", "Name the model.")
    repeated = Counter(tensor.name for tensor in tensors).most_common(1)[0]
    if repeated[1] > 1:
        raise ModelError(
            f"Tensor {printable(repeated[0])} is in more than one part of {name}",
            "The parts come from different models.",
        )
    return tensors


def _stems(places: Places) -> list[frozenset[str]]:
    return [frozenset(stem for stem, _ in layer) for layer in places.layers]


def _layer(index: int, tensors: list[tuple[str, Tensor]], memory: LayerMemory) -> Layer:
    recurrent = is_recurrent(frozenset(stem for stem, _ in tensors))
    groups: defaultdict[str, int] = defaultdict(int)
    quants: defaultdict[str, int] = defaultdict(int)
    for stem, tensor in tensors:
        groups[group_of(stem, recurrent)] += tensor.n_bytes
        quants[tensor.type_name] += tensor.n_bytes
    return Layer(
        index=index,
        bytes=sum(groups.values()),
        groups=LayerBytes(**groups),
        quants=_by_size(quants),
        kv_bytes_per_token=memory.bytes_per_token,
        k_bytes_per_token=memory.k_bytes_per_token,
        kv_window=memory.window,
        state_bytes=memory.state_bytes,
    )


def _by_size(quants: dict[str, int]) -> dict[str, int]:
    return dict(sorted(quants.items(), key=lambda item: (-item[1], item[0])))


def _width(params: Params) -> int:
    dense = params.number("feed_forward_length")
    expert = params.number("expert_feed_forward_length", dense)
    shared = params.number(
        "expert_shared_feed_forward_length",
        params.number("expert_shared_count") * expert,
    )
    experts = params.number("expert_used_count") * expert + shared
    return max(dense, experts, 2 * params.number("ssm.inner_size"))


def _handed_over(params: Params, memory: Sequence[LayerMemory]) -> int:
    # As llama.cpp's graphs have it: models that attend nowhere keep more tensors alive
    # from layer to layer.
    attends = any(layer.bytes_per_token for layer in memory)
    if attends or not any(layer.state_bytes for layer in memory):
        return 1
    return 2 if params.number("wkv.head_size") else 3


def _total(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.n_bytes for tensor in tensors)


def _name(header: Header) -> str:
    value = header.metadata.get("general.name")
    return printable(value if isinstance(value, str) and value else header.path.stem)


def _file_type(header: Header, tensors: Sequence[Tensor]) -> str:
    """The stated file type, else the type most bytes of the layers are stored in.

    A copy made with some types changed may still state that of its original.
    """
    stated = header.metadata.get("general.file_type")
    named = file_type_name(stated) if type(stated) is int else ""
    layers = [tensor for tensor in tensors if tensor.name.startswith("blk.")]
    quants: defaultdict[str, int] = defaultdict(int)
    for tensor in layers or tensors:
        quants[tensor.type_name] += tensor.n_bytes
    is_mix = named not in {kind.name for kind in tensor_types().values()}
    if named and (is_mix or named in quants):
        return named
    return next(iter(_by_size(quants)))


def _vocabulary(header: Header, params: Params, embedding: tuple[int, ...]) -> int:
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, Skipped):
        return tokens.count
    return params.number("vocab_size", embedding[1] if len(embedding) > 1 else 0)
