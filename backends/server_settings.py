"""The limits of llama-server's settings, and the combinations that work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.errors import PlanError
from backends.split.buffers import cache_type, is_quantized, is_unfused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from backends.state import ModelInfo, ServerSettings

CTX_MIN = 16
CTX_STRETCH_MAX = 8
"""Further than this times its training no scaling of positions carries a model."""
CTX_UNKNOWN_MAX = 1 << 24
"""For a model that does not say what it was trained for."""
SLOTS_MAX = 256
"""As many sequences as llama.cpp keeps apart."""
THREADS_MAX = 1024
DRAFT_TOKENS_MAX = 64
"""More drafted tokens at a time are never all accepted."""


def check_server(server: ServerSettings, ctx_size: int, model: ModelInfo) -> None:
    """Refuse settings that cannot be meant, or that llama.cpp refuses together.

    Raises:
        PlanError: it names the setting and what is allowed.
    """
    check_slots(server.slots, ctx_size)
    check_threads(server.threads)
    check_draft_tokens(server.draft_max)
    check_cache_types(server, model)


def check_context(ctx_size: int, model: ModelInfo) -> None:
    """Refuse a context that is too small to use, or that no model can have.

    Raises:
        PlanError: it says what is allowed.
    """
    most = most_context(model)
    if ctx_size < CTX_MIN:
        raise PlanError(
            f"A context of {ctx_size} tokens is too small",
            f"At least {CTX_MIN} (--context).",
        )
    if ctx_size > most:
        trained = model.n_ctx_train
        why = f"the model was trained for {trained}" if trained else "none is that long"
        raise PlanError(
            f"A context of {ctx_size} tokens is too large: {why}",
            f"At most {most} (--context).",
        )


def most_context(model: ModelInfo) -> int:
    """The longest context that can be meant, in tokens."""
    return model.n_ctx_train * CTX_STRETCH_MAX or CTX_UNKNOWN_MAX


def check_slots(slots: int, ctx_size: int) -> None:
    """Refuse slots that llama.cpp has not, or that share too little.

    Raises:
        PlanError: it says what is allowed.
    """
    if not 1 <= slots <= SLOTS_MAX:
        raise PlanError(
            f"{slots} slots cannot be had", f"Give 1 to {SLOTS_MAX} (--slots)."
        )
    if ctx_size // slots < CTX_MIN:
        raise PlanError(
            f"A context of {ctx_size} tokens is too small for {slots} slots, "
            "which share it",
            f"Give {slots * CTX_MIN} tokens or more (--context) or fewer --slots.",
        )


def check_threads(threads: int | None) -> None:
    """Refuse a number of threads that cannot be started.

    Raises:
        PlanError: it says what is allowed.
    """
    if threads is not None and not 1 <= threads <= THREADS_MAX:
        raise PlanError(
            f"{threads} threads cannot be started", f"Give 1 to {THREADS_MAX}."
        )


def check_draft_tokens(count: int) -> None:
    """Refuse a draft of no tokens, or of more than makes sense.

    Raises:
        PlanError: it says what is allowed.
    """
    if not 1 <= count <= DRAFT_TOKENS_MAX:
        raise PlanError(
            f"{count} tokens cannot be drafted at a time",
            f"Give 1 to {DRAFT_TOKENS_MAX} (--draft-max).",
        )


def check_cache_types(server: ServerSettings, model: ModelInfo) -> None:
    """Refuse types that are none, do not fit the model's heads, or need fused steps.

    Raises:
        PlanError: it says which would do.
    """
    for name in (server.cache_type_k, server.cache_type_v):
        cache_type(name)
    if model.one_cache_type and server.cache_type_k != server.cache_type_v:
        raise PlanError(
            f"K cannot be stored as {server.cache_type_k} and V as "
            f"{server.cache_type_v}: the model keeps them as one (MLA)",
            "Give --cache-type-k and --cache-type-v the same type.",
        )
    if is_quantized(server.cache_type_v) and is_unfused(server):
        raise PlanError(
            f"V cannot be stored as {server.cache_type_v} without flash attention",
            "Give --cache-type-v f16, or leave flash attention on.",
        )
    if is_unfused(server):
        return
    _check_blocks("K", server.cache_type_k, model.k_head_lengths)
    _check_blocks("V", server.cache_type_v, model.v_head_lengths)


def _check_blocks(which: str, name: str, lengths: Sequence[int]) -> None:
    """llama.cpp stores each head in whole blocks."""
    values = cache_type(name).values
    odd = [length for length in lengths if length % values]
    if odd:
        raise PlanError(
            f"{which} cannot be stored as {name}: the model's heads have {odd[0]} "
            f"values, no multiple of {values}",
            f"Give --cache-type-{which.lower()} f16 or bf16.",
        )
