"""Draft models for a model: those found that fit, and the reasons of the others.

Vocabularies are compared as llama-server does. Sources:
``common_speculative_are_compatible`` (``common/speculative.cpp``), and
``llama_vocab::impl::load`` (``src/llama-vocab.cpp``) for what counts where a file does
not say. llama-server only logs that two do not go together, and serves without draft.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from backends.errors import EngineError, ModelError
from backends.machine_names import at_peer
from backends.models.header import Header, read_header
from backends.models.parts import first_part
from backends.printable import printable
from backends.speculation.methods import method_for, methods_known
from backends.state import (
    MTP_DRAFT,
    NGRAM_DRAFT,
    DraftCandidate,
    Drafts,
    DraftTrial,
    ModelFile,
    ModelInfo,
)

SIZE_DIFFERENCE_MAX = 128
"""SPEC_VOCAB_MAX_SIZE_DIFFERENCE."""
FIRST_COMPARED = 5
"""SPEC_VOCAB_CHECK_START_TOKEN_ID: the first few are often named anew."""
NULL = -1
"""LLAMA_TOKEN_NULL: a token that a vocabulary has not."""
TOKENS = "tokenizer.ggml.tokens"


class _Kind(NamedTuple):
    name: str
    bos: int
    eos: int
    adds_bos: bool = False
    adds_eos: bool = False


_BPE = _Kind("BPE", 11, 11)
_KINDS = {
    "llama": _Kind("SPM", 1, 2, adds_bos=True),
    "bert": _Kind("WPM", 101, NULL, adds_bos=True),
    "gpt2": _BPE,
    "hybriddna": _BPE,
    "whitespace": _BPE,
    "gemma4": _Kind("BPE", NULL, NULL),
    "t5": _Kind("UGM", NULL, 1, adds_eos=True),
    "rwkv": _Kind("RWKV", NULL, NULL),
    "plamo2": _Kind("PLaMo2", 1, 2),
    "plamo3": _Kind("PLaMo3", 1, 2),
}
"""By ``tokenizer.ggml.model``."""
_ADDS_BOS = frozenset(
    {
        *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral"),
        *("midm-2.0", "lfm2", "jina-v5-nano", "tekken", "chameleon"),
    }
)
"""BPE pre-tokenizers (``tokenizer.ggml.pre``) that begin with BOS unless told."""
_ALWAYS_BOS = frozenset({"gemma4", "granite-embed-multi-311m"})
_NO_BOS = frozenset({"chatglm-bpe", "glm4", "glm5"})


@dataclass(frozen=True)
class Vocabulary:
    kind: str
    """``SPM``, ``BPE``…, or the file's own word for one that is not known."""
    bos: int | None
    """The token before a text; None: there is none."""
    eos: int | None
    """The token after a text."""
    tokens: tuple[bytes, ...]


def read_vocabulary(path: Path) -> Vocabulary:
    return vocabulary_of(read_header(first_part(path), texts=(TOKENS,)))


def vocabulary_of(header: Header) -> Vocabulary:
    model, pre = (_text(header, key) for key in ("model", "pre"))
    kind = _KINDS.get(model, _Kind(printable(model) or "none", NULL, NULL))
    if kind.name == _BPE.name:
        bos = NULL if pre in _NO_BOS else kind.bos
        kind = kind._replace(bos=bos, adds_bos=pre in _ADDS_BOS)
    adds_bos = _flag(header, "add_bos_token", kind.adds_bos) or pre in _ALWAYS_BOS
    adds_eos = _flag(header, "add_eos_token", kind.adds_eos)
    tokens = header.texts[TOKENS]
    bos = _token(header, "bos_token_id", kind.bos, len(tokens))
    eos = _token(header, "eos_token_id", kind.eos, len(tokens))
    return Vocabulary(
        kind=kind.name,
        bos=bos if adds_bos else None,
        eos=eos if adds_eos else None,
        tokens=tokens,
    )


def _text(header: Header, key: str) -> str:
    value = header.metadata.get(f"tokenizer.ggml.{key}")
    return value if isinstance(value, str) else ""


def _flag(header: Header, key: str, otherwise: bool) -> bool:
    value = header.metadata.get(f"tokenizer.ggml.{key}")
    return value if isinstance(value, bool) else otherwise


def _token(header: Header, key: str, otherwise: int, count: int) -> int:
    value = header.metadata.get(f"tokenizer.ggml.{key}")
    if type(value) is int and 0 <= value < count:
        return value
    return otherwise if otherwise < count else NULL


def vocabulary_misfit(model: Vocabulary, draft: Vocabulary) -> str:
    if model.kind != draft.kind:
        return f"its tokenizer is {draft.kind}, the model's {model.kind}"
    if model.bos != draft.bos:
        return f"texts begin with {_named(draft.bos)}, the model's {_named(model.bos)}"
    if model.eos != draft.eos:
        return f"texts end with {_named(draft.eos)}, the model's {_named(model.eos)}"
    sizes = len(draft.tokens), len(model.tokens)
    if abs(sizes[0] - sizes[1]) > SIZE_DIFFERENCE_MAX:
        return f"it has {sizes[0]} tokens, the model {sizes[1]}"
    for index in range(FIRST_COMPARED, min(sizes)):
        ours, theirs = draft.tokens[index], model.tokens[index]
        if ours != theirs:
            return f"its token {index} is {_shown(ours)}, the model's {_shown(theirs)}"
    return ""


def _named(token: int | None) -> str:
    return "no token" if token is None else f"token {token}"


def _shown(token: bytes) -> str:
    return f"“{printable(token.decode('utf-8', 'replace'), 24)}”"


WORTH = 4
"""A draft model must be so many times smaller than the model."""
SMALL = 10
"""A draft model so many times smaller takes next to none of the model's time."""
_HEADS = {"eagle3": "draft-eagle3", "dflash": "draft-dflash"}
"""Architectures of heads in files of their own, with their speculation method."""

_OWN_LAYERS = frozenset(
    {
        *("bailingmoe3", "cohere2moe", "deepseek2", "deepseek32", "deepseek4"),
        *("glm-dsa", "glm4moe", "glm5-next", "nemotron_h_moe"),
        *("qwen35", "qwen35moe", "qwen3next", "qwen4exp"),
    }
)
"""Architectures of which llama.cpp runs one MTP layer.

Source: ``graph_mtp`` in ``src/models``. For others llama.cpp has no graph."""
_OWN_LAYERS_IN_TURN = frozenset({"hy_v3", "mimo2", "step35"})
"""Architectures of which it runs any number, each for one more token."""


def own_layers_misfit(model: ModelInfo) -> str:
    name = Path(model.path).name
    count = model.n_layer_nextn
    own = model.layers[model.n_layer - count :] if count else ()
    if not own:
        return f"{name} has no layers of its own to draft with (MTP)"
    if not all(layer.bytes for layer in own):
        return f"{name} was made without the MTP layers that its header names"
    if model.arch not in _OWN_LAYERS | _OWN_LAYERS_IN_TURN:
        return f"llama.cpp is not known to run MTP layers of {model.arch} models"
    if len(own) > 1 and model.arch in _OWN_LAYERS:
        return f"llama.cpp runs one MTP layer of {model.arch} models, not {len(own)}"
    return ""


def head_method(arch: str) -> str:
    return _HEADS.get(arch, "")


def head_misfit(head: ModelInfo | ModelFile, model: ModelInfo) -> str:
    said = read_header(Path(head.path)).metadata
    width = said.get(f"{head.arch}.target_hidden_size")
    if isinstance(width, int) and width != model.n_embd:
        return f"it was made for a model {width} wide, this one is {model.n_embd}"
    layers = said.get(f"{head.arch}.target_layers")
    taken = layers if isinstance(layers, list | tuple) else ()
    if any(isinstance(at, int) and at > model.n_layer for at in taken):
        return f"it listens to layer {max(taken)}, the model has {model.n_layer}"
    return ""


def drafts_for(
    model: ModelInfo, header: Path, flags: Collection[str], files: Iterable[ModelFile]
) -> Drafts:
    vocabulary, methods = read_vocabulary(header), methods_known(flags)
    candidates = [
        DraftCandidate(
            path=file.path,
            name=file.name,
            size_bytes=file.size_bytes,
            arch=file.arch,
            file_type=file.file_type,
            head=head_method(file.arch),
            why_not=_misfit(file, model, vocabulary, methods),
        )
        for file in files
        if file.path not in (model.path, *model.files) and not file.problem
    ]
    heads, head_why_not = _own_methods(model, flags)
    return Drafts(
        model=model.path,
        size_bytes=model.size_bytes,
        heads=heads,
        head_why_not=head_why_not,
        candidates=tuple(
            sorted(candidates, key=lambda one: (bool(one.why_not), one.size_bytes))
        ),
    )


def _misfit(
    file: ModelFile, model: ModelInfo, vocabulary: Vocabulary, methods: Collection[str]
) -> str:
    head = head_method(file.arch)
    if head and head not in methods:
        return f"a head for {head}, which the engine does not know"
    if file.sparse:
        return file.sparse
    if file.size_bytes * WORTH > model.size_bytes:
        return "larger than a quarter of the model"
    if there := at_peer(file.path):
        return f"on {there[0]} alone, its vocabulary was not compared"
    try:
        if head:
            return head_misfit(file, model)
        return vocabulary_misfit(vocabulary, read_vocabulary(Path(file.path)))
    except ModelError as error:
        return str(error)


def _own_methods(
    model: ModelInfo, flags: Collection[str]
) -> tuple[tuple[str, ...], str]:
    if not model.n_layer_nextn:
        return (), ""
    if why := own_layers_misfit(model):
        return (), why
    try:
        return (method_for(flags, MTP_DRAFT),), ""
    except EngineError as error:
        return (), error.what


def best_first(found: Drafts) -> tuple[str, ...]:
    """Draft models: of the small ones the largest first, then the others by size."""
    able = [one for one in found.candidates if not one.why_not and not one.head]
    small = [one for one in able if one.size_bytes * SMALL <= found.size_bytes]
    others = [one for one in able if one not in small]
    ordered = (
        *sorted(small, key=lambda one: one.size_bytes, reverse=True),
        *sorted(others, key=lambda one: one.size_bytes),
    )
    return tuple(one.path for one in ordered)


def with_trials(drafts: Drafts, trials: Sequence[DraftTrial]) -> Drafts:
    def of(draft: str) -> tuple[DraftTrial, ...]:
        return tuple(one for one in trials if one.draft == draft)

    candidates = (replace(one, found=of(one.path)) for one in drafts.candidates)
    return replace(
        drafts,
        head_found=of(MTP_DRAFT),
        candidates=tuple(candidates),
        ngram=of(NGRAM_DRAFT),
    )
