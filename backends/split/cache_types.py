"""The types llama.cpp stores K and V in, and the bytes that takes."""

from __future__ import annotations

from typing import NamedTuple

from backends.errors import PlanError, did_you_mean


class CacheType(NamedTuple):
    """How many values lie in one block, and the bytes of it."""

    values: int
    n_bytes: int


F16 = "f16"
F32 = "f32"
CACHE_TYPES = {
    F32: CacheType(1, 4),
    F16: CacheType(1, 2),
    "bf16": CacheType(1, 2),
    "q8_0": CacheType(32, 34),
    "q5_1": CacheType(32, 24),
    "q5_0": CacheType(32, 22),
    "q4_1": CacheType(32, 20),
    "q4_0": CacheType(32, 18),
    "iq4_nl": CacheType(32, 18),
}
"""By the name llama-server has for it (``--cache-type-k``), the largest first."""


def cache_type(name: str) -> CacheType:
    """A type by its name.

    Raises:
        PlanError: there is none of that name.
    """
    if name not in CACHE_TYPES:
        raise PlanError(
            f"There is no KV cache type {name}",
            f"{did_you_mean(name, CACHE_TYPES)}Types: {', '.join(CACHE_TYPES)}.",
        )
    return CACHE_TYPES[name]


def is_quantized(name: str) -> bool:
    """Whether values share a scale, block by block."""
    return cache_type(name).values > 1


def stored_bytes(n_values: int, name: str) -> int:
    """Bytes of so many values; of a type we do not know, as many as of f16."""
    kind = CACHE_TYPES.get(name, CACHE_TYPES[F16])
    return n_values * kind.n_bytes // kind.values
