"""The tables of ``gguf``: value types, tensor types, file types.

``gguf`` imports numpy (0.1 to 0.2 s), so each table is made when first asked for.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

# struct's letter for every scalar GGUF stores, by gguf's name for it.
_LETTERS = {
    "UINT8": "B",
    "INT8": "b",
    "UINT16": "H",
    "INT16": "h",
    "UINT32": "I",
    "INT32": "i",
    "FLOAT32": "f",
    "BOOL": "?",
    "UINT64": "Q",
    "INT64": "q",
    "FLOAT64": "d",
}


class TensorType(NamedTuple):
    """One way to store numbers: `block` elements take `block_bytes` bytes."""

    name: str
    block: int
    block_bytes: int


class ValueTypes(NamedTuple):
    """Numbers of GGUF's metadata types."""

    scalars: dict[int, str]
    """Type number to struct letter."""
    names: dict[int, str]
    string: int
    array: int


@cache
def tensor_types() -> dict[int, TensorType]:
    """Every tensor type this ``gguf`` can size, by number."""
    from gguf.constants import GGML_QUANT_SIZES

    return {
        int(kind): TensorType(kind.name, block, block_bytes)
        for kind, (block, block_bytes) in GGML_QUANT_SIZES.items()
    }


@cache
def value_types() -> ValueTypes:
    """GGUF's metadata types, by number."""
    from gguf.constants import GGUFValueType

    return ValueTypes(
        scalars={
            int(kind): _LETTERS[kind.name]
            for kind in GGUFValueType
            if kind.name in _LETTERS
        },
        names={int(kind): kind.name.lower() for kind in GGUFValueType},
        string=int(GGUFValueType.STRING),
        array=int(GGUFValueType.ARRAY),
    )


def tensor_type_name(number: int) -> str:
    """``Q4_K``, or ``type 42`` where this ``gguf`` has no name for it."""
    known = tensor_types().get(number)
    return known.name if known else f"type {number}"


@cache
def file_type_name(number: int) -> str:
    """``Q4_K_M`` for ``general.file_type`` 15; ``file type 99`` when unknown."""
    from gguf.constants import LlamaFileType

    try:
        name = LlamaFileType(number).name
    except ValueError:
        return f"file type {number}"
    return name.removeprefix("MOSTLY_").removeprefix("ALL_")
