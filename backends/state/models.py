"""Model files and what their headers tell."""

from __future__ import annotations

from enum import StrEnum

from backends.state.base import Value


class LayerBytes(Value, frozen=True, kw_only=True):
    """Bytes of one layer's weights by group."""

    attention: int = 0
    ffn: int = 0
    experts: int = 0
    recurrent: int = 0
    other: int = 0
    """Norms, scales and whatever else the layer holds."""


class Layer(Value, frozen=True, kw_only=True):
    """One transformer block of a GGUF."""

    index: int
    bytes: int
    groups: LayerBytes = LayerBytes()
    quants: dict[str, int] = {}
    """Quantisation type name to bytes, for example ``{"Q4_K": 1048576}``."""
    kv_bytes_per_token: int = 0
    """Bytes of f16 K and V one token adds; 0 for recurrent layers."""
    k_bytes_per_token: int = 0
    """How many of them are K's."""
    kv_window: int = 0
    """Tokens it keeps at most (sliding-window attention); 0: the whole context."""


class ThinModel(Value, frozen=True, kw_only=True):
    """What is there of a model whose file has holes."""

    source: str
    """Path of the file it was made from."""
    identity: str
    """Of that model, as ``models.identity`` defines it."""
    layers: tuple[int, ...]
    """Those that are there, ascending."""
    output: bool
    """Whether that is there, as the embedding is."""
    embedding: bool
    kept_bytes: int
    """Of all tensors that are there."""


class ModelInfo(Value, frozen=True, kw_only=True):
    """What a GGUF header tells: enough to plan, nothing of the weights."""

    path: str
    files: tuple[str, ...] = ()
    """All parts of a split GGUF in order; one path otherwise."""
    name: str = ""
    arch: str
    file_type: str = ""
    gguf_version: int = 3
    byte_order: str = "little"
    size_bytes: int = 0
    """Bytes of all files on disk."""
    n_tensors: int = 0
    n_layer: int
    n_layer_nextn: int = 0
    """Of ``n_layer`` the last, for multi-token prediction (MTP): the engine leaves
    their weights in the file, or some of them, unless it is asked to predict."""
    n_embd: int
    n_vocab: int
    n_head: int = 0
    n_head_kv: int = 0
    k_head_lengths: tuple[int, ...] = ()
    """Values of a head of K, each length once, an indexer's too; empty: unknown."""
    v_head_lengths: tuple[int, ...] = ()
    """The same of V."""
    one_cache_type: bool = False
    """Whether llama.cpp stores K and V in one type only (compressed attention)."""
    n_expert: int = 0
    n_expert_used: int = 0
    n_ctx_train: int = 0
    has_chat_template: bool = False
    tied_output: bool = False
    """The output reuses the token embedding; ``output_bytes`` then counts it again."""
    layers: tuple[Layer, ...] = ()
    output_bytes: int = 0
    embedding_bytes: int = 0
    tensor_bytes: int = 0
    """All tensor bytes as stored, each once."""
    unknown_types: tuple[str, ...] = ()
    """Tensor types this version of ``gguf`` cannot size."""
    thin: ThinModel | None = None
    """What is there, where some of it is not."""


class ModelFile(Value, frozen=True, kw_only=True):
    """One model found on disk."""

    path: str
    """``peer:/path`` where only a peer holds it."""
    name: str
    size_bytes: int
    source: str
    """Where it was found: ``models``, ``huggingface``, ``lmstudio``, ``ollama``…"""
    arch: str = ""
    file_type: str = ""
    n_layer: int = 0
    n_ctx_train: int = 0
    problem: str = ""
    """Why it cannot be used; empty when it can."""
    identity: str = ""
    """Same text, same bytes (of its first file); empty when unread."""
    thin: str = ""
    """What is there of a file with holes, in words; empty for a whole one."""
    held_by: tuple[str, ...] = ()
    """Machines that hold these bytes; ``local`` is the one we run on."""


class DraftVerdict(StrEnum):
    """Whether guessing with a draft is worth it."""

    PAYS = "pays"
    SAME = "makes no difference"
    LOSES = "costs more than it brings"


class DraftFound(Value, frozen=True, kw_only=True):
    """What ``--draft auto`` found of a way to guess, over one network."""

    draft: str
    """``ngram``, ``mtp``, or the draft model's file."""
    draft_max: int
    """Tokens it guessed at a time."""
    tok_per_s: float
    """With it, in the trial; of all slots together."""
    plain_tok_per_s: float | None = None
    """Without any; None before that was measured."""
    speedup: float | None = None
    """Times as fast as none, by what clients asked for where that is known."""
    acceptance: float | None = None
    """The part of its guesses that was right, likewise; None where none was made."""
    verdict: DraftVerdict | None = None
    """None before it could be compared."""
    cluster: str = ""
    """In which it was found; empty for what an earlier release found, as the next."""
    network: str = ""
    """Over which, in words: ``ada 2 to 8 ms``."""
    slots: int = 0
    """That answered at once; 0: not known."""
    at: float
    """Unix seconds of the trial."""


class DraftCandidate(Value, frozen=True, kw_only=True):
    """A model found here that might guess ahead for another."""

    path: str
    name: str
    size_bytes: int
    arch: str = ""
    file_type: str = ""
    head: str = ""
    """The way to guess that it is a head for (``draft-eagle3``); empty for a model."""
    why_not: str = ""
    """Why it cannot, or is not worth it; empty where it can."""
    found: tuple[DraftFound, ...] = ()
    """What ``auto`` found of it on this machine, newest first; empty: nothing yet."""


class Drafts(Value, frozen=True, kw_only=True):
    """What could guess ahead for a model."""

    model: str
    size_bytes: int
    heads: tuple[str, ...] = ()
    """Ways to guess that the model itself has layers for (``draft-mtp``), and that the
    engine knows."""
    head_why_not: str = ""
    """Why layers of the model itself, where it has any, cannot guess."""
    head_found: tuple[DraftFound, ...] = ()
    """What ``auto`` found of guessing with those layers."""
    candidates: tuple[DraftCandidate, ...] = ()
    """Those that can first, then by size."""
    ngram: tuple[DraftFound, ...] = ()
    """What ``auto`` found of guessing without a model."""


class ModelCatalogue(Value, frozen=True, kw_only=True):
    """All models found, and whether the search is still going on."""

    models: tuple[ModelFile, ...] = ()
    folders: tuple[str, ...] = ()
    scanning: bool = False
    scanned_at: float | None = None
