"""The vocabulary of a draft model and of its model, compared as llama-server does.

Source: ``common_speculative_are_compatible`` (``common/speculative.cpp``), and
``llama_vocab::impl::load`` (``src/llama-vocab.cpp``) for what counts where a file does
not say. llama-server only logs that two do not go together, and serves without draft.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from backends.models.header import Header, read_header
from backends.models.parts import first_part
from backends.printable import printable

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
    """The vocabulary of a model; any part of a split one stands for all of them."""
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


def why_not(model: Vocabulary, draft: Vocabulary) -> str:
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
