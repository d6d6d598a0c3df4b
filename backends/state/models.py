"""Model files and what their headers tell."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from backends.state.base import Value
from backends.state.plans import Fit


class LayerBytes(Value, frozen=True, kw_only=True):
    attention: int = 0
    ffn: int = 0
    experts: int = 0
    recurrent: int = 0
    other: int = 0
    """Norms, scales and whatever else the layer holds."""


class Layer(Value, frozen=True, kw_only=True):
    index: int
    bytes: int
    groups: LayerBytes = LayerBytes()
    quants: dict[str, int] = {}
    """Quantisation type name to bytes, for example ``{"Q4_K": 1048576}``."""
    kv_bytes_per_token: int = 0
    """Bytes of f16 K and V one token adds; 0 for recurrent layers."""
    k_bytes_per_token: int = 0
    """K's part of these."""
    kv_window: int = 0
    """Tokens it keeps at most (sliding-window attention); 0: the whole context."""
    state_bytes: int = 0
    """Of a recurrent state, which each slot has; no context makes it larger."""


class SparseModel(Value, frozen=True, kw_only=True):
    """The parts that are there of a model whose file lacks some."""

    source: str
    """Path of the file it was made from."""
    identity: str
    """Of that model, as ``models.identity`` defines it."""
    layers: tuple[int, ...]
    """The layers that are there, ascending."""
    output: bool
    """True if that is there, as the embedding is."""
    embedding: bool
    kept_bytes: int
    """Of all tensors that are there."""
    for_worker: bool = False
    """It lists its tensors alone: llama-server cannot load it."""


class ModelInfo(Value, frozen=True, kw_only=True):
    """The content of a GGUF header: enough to plan, nothing of the weights."""

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
    """True if llama.cpp stores K and V in one type only (compressed attention)."""
    n_expert: int = 0
    n_expert_used: int = 0
    n_ff: int = 0
    """Values of a token at once in the widest part of a layer: the feed-forward part,
    those of all experts in use together, or a state's; 0: unknown."""
    n_handed_over: int = 1
    """Hidden states that one device hands to the next."""
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
    sparse: SparseModel | None = None
    """The parts that are there, if some are not."""
    caveat: str = ""
    """A sentence if stock llama.cpp is likely to refuse it; empty otherwise."""


class ModelFile(Value, frozen=True, kw_only=True):
    path: str
    """``peer:/path`` where only a peer holds it."""
    name: str
    size_bytes: int
    source: str
    """The kind of folder: ``models``, ``huggingface``, ``lmstudio``, ``ollama``…"""
    arch: str = ""
    file_type: str = ""
    n_layer: int = 0
    n_ctx_train: int = 0
    problem: str = ""
    """Why it cannot be used; empty when it can."""
    identity: str = ""
    """Of its first file, as ``models.identity`` defines it; empty when unread."""
    sparse: str = ""
    """The parts of a file with holes, in words; empty for a whole one."""
    caveat: str = ""
    """As ``ModelInfo.caveat``; empty where the header was not read."""
    held_by: tuple[str, ...] = ()
    """Machines that hold these bytes; ``local`` is the one we run on."""


class DraftTrial(Value, frozen=True, kw_only=True):
    """The speed that ``--draft auto`` measured with one draft."""

    draft: str
    """``none``, ``ngram``, ``mtp``, or the draft model's file."""
    draft_max: int = 0
    """Tokens drafted at a time; 0 without a draft."""
    tok_per_s: Annotated[float, Meta(gt=0)]
    """Of all slots together."""
    speedup: float | None = None
    """Times as fast as without a draft; None before both were measured."""
    acceptance: float | None = None
    """The accepted part of the drafted tokens; None if there were none."""
    drafted: float | None = None
    """Tokens drafted for a pass in the mean; None if it is not known."""
    network: str = ""
    """The round trips of a token: ``2 to 8 ms``."""
    slots: int = 1
    at: float
    """Unix seconds."""


class DraftCandidate(Value, frozen=True, kw_only=True):
    """A model found here that may be a draft model for another."""

    path: str
    name: str
    size_bytes: int
    arch: str = ""
    file_type: str = ""
    head: str = ""
    """The method that it is a head for (``draft-eagle3``); empty for a model."""
    why_not: str = ""
    """Why it does not fit; empty if it does."""
    found: tuple[DraftTrial, ...] = ()
    """Measurements of ``auto`` on this machine, newest first."""


class Drafts(Value, frozen=True, kw_only=True):
    model: str
    size_bytes: int
    heads: tuple[str, ...] = ()
    """Methods of the model's own layers (``draft-mtp``) that the engine knows."""
    head_why_not: str = ""
    """Why the model's own layers, if it has any, cannot draft."""
    head_found: tuple[DraftTrial, ...] = ()
    """Measurements with those layers, newest first."""
    candidates: tuple[DraftCandidate, ...] = ()
    """The ones that fit first, then by size."""
    ngram: tuple[DraftTrial, ...] = ()
    """Measurements of ``ngram``, newest first."""


class ModelCatalogue(Value, frozen=True, kw_only=True):
    """All models found, and whether the search is still going on."""

    models: tuple[ModelFile, ...] = ()
    folders: tuple[str, ...] = ()
    scanning: bool = False
    scanned_at: float | None = None


class TensorSums(Value, frozen=True, kw_only=True):
    """One tensor of a model file, and the hash of all its bytes."""

    name: str
    type: int
    """ggml's number."""
    shape: tuple[int, ...]
    """Always four, the row length first."""
    size_bytes: int
    blake3: str
    """BLAKE3, 64 hex digits."""


class Hashing(Value, frozen=True, kw_only=True):
    """The progress of hashing a model, with the hashes at the end."""

    done_bytes: int
    size_bytes: int
    complete: bool
    tensors: tuple[TensorSums, ...] = ()
    """None until it is complete."""


class Seeding(Value, frozen=True, kw_only=True):
    """The progress of filling a worker's own cache."""

    directory: str
    free_bytes: int
    """Of the disk it is on."""
    hashed_bytes: int
    """Of the model: that comes first."""
    model_bytes: int
    size_bytes: int
    """Of the tensors a worker asks its cache for; 0 until the model is hashed."""
    seeded_bytes: int
    """Of these: there already."""
    names: tuple[str, ...] = ()
    """Of the files with these tensors, there or not."""
    complete: bool


class CachedFile(Value, frozen=True, kw_only=True):
    name: str
    """Its FNV-1a in 16 hex digits; ``.part`` behind it: of a seeding that broke off."""
    size_bytes: int
    mtime_s: int
    """Unix seconds of its last change."""


class WorkerCache(Value, frozen=True, kw_only=True):
    """The cache that ``rpc-server -c`` keeps on a machine."""

    directory: str
    free_bytes: int
    """Of the disk it is on."""
    files: tuple[CachedFile, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


class RemovedFile(Value, frozen=True, kw_only=True):
    path: str
    size_bytes: int
    """On disk: of a link next to nothing, of a file with holes what it takes."""
    what: str = ""
    """``link``, ``half download``…; empty for weights."""


class Removal(Value, frozen=True, kw_only=True):
    """The files that would be deleted, or were, on one machine."""

    machine: str
    files: tuple[RemovedFile, ...] = ()
    kept: str = ""
    """A sentence on bytes that stay, and why; empty if none do."""
    folders: tuple[str, ...] = ()
    """Folders to be deleted with them if nothing else is in them, deepest first."""
    deleted: bool = False

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


class Download(Value, frozen=True, kw_only=True):
    """The progress of getting a model; the last one has its path."""

    file: str
    """The present file, or the work on it: ``checking model.gguf``."""
    done_bytes: int = 0
    size_bytes: int = 0
    """Of all files; 0 while it is unknown."""
    path: str = ""
    """Of the model, its first part if it has several; empty until it is complete."""
    verified_by: str = ""
    """The proof that its bytes are right: ``SHA-256 of the repository``."""


class RemoteFile(Value, frozen=True, kw_only=True):
    name: str
    """As the repository has it, folders included."""
    size_bytes: int
    sha256: str = ""
    """Of the whole file, if that is announced."""
    url: str = ""
    """Its address now, where that was asked for; it may expire."""
    token: str = ""
    """For the host of that address alone."""

    def __repr__(self) -> str:
        return f"RemoteFile(name={self.name!r}, size_bytes={self.size_bytes})"


class RemoteModel(Value, frozen=True, kw_only=True):
    """A model that could be got: its size first, then its headers."""

    source: str
    """The name to get it by: ``OWNER/NAME:Q4_K_M``."""
    quant: str
    size_bytes: int
    """Of all files."""
    files: tuple[RemoteFile, ...]
    header: str = ""
    """Path here of a sparse file with the first part's header; empty: not read."""
    problem: str = ""
    """Why the headers cannot be read; empty if they can."""
    fit: Fit | None = None
    """The longest context that fits; None while that is not known."""


class Delivered(Value, frozen=True, kw_only=True):
    """A model that a peer got, or did not."""

    peer: str
    path: str = ""
    """There, of its first file."""
    size_bytes: int = 0
    how: str = ""
    """The way it came, and the measured rates of all: the fastest was taken."""
    verified_by: str = ""
    problem: str = ""
    """Why it did not get it; empty if it did."""
