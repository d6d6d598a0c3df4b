"""Headers to ``ModelInfo``: what every layer, the output and the embedding weigh."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path

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
from backends.models.kv_cache import (
    ENCODERS,
    RECURRENT_PREFIXES,
    LayerMemory,
    has_one_type,
    head_lengths,
    is_recurrent,
    layer_memory,
)
from backends.models.ollama import caveat_of
from backends.models.parts import check_part, first_part, other_parts
from backends.models.sparse import sparse_model
from backends.printable import printable
from backends.state import Layer, LayerBytes, ModelInfo

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
    return describe(model_headers(path))


def model_headers(path: Path | str) -> list[Header]:
    first = read_header(first_part(Path(path)))
    headers = [first]
    for number, other in enumerate(other_parts(first), start=2):
        headers.append(read_header(other))
        check_part(headers[-1], number)
    return headers


def describe(headers: Sequence[Header]) -> ModelInfo:
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
