"""The GGUF header walk: metadata and tensor list of one file, arrays skipped.

Format: ggml's docs/gguf.md; what is refused follows gguf_init_from_reader in
llama.cpp's ggml/src/gguf.cpp, so that a file accepted here is one the engine can open.
Versions 2 and 3 share one layout; version 3 may be big-endian.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from backends.models.reader import AGAIN, LENGTH_BYTES, Cursor, open_cursor
from backends.models.tables import tensor_type_name, tensor_types, value_types
from backends.models.text import printable

if TYPE_CHECKING:
    from collections.abc import Collection

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT_DEFAULT = 32
"""GGUF_DEFAULT_ALIGNMENT in ggml/include/gguf.h, bytes."""

KEYS_MAX = 65_536
"""Metadata entries; ours, real files have under 100."""
TENSORS_MAX = 131_072
"""Ours; the most seen is 47 000 (experts stored one by one)."""
KEY_BYTES_MAX = 65_535
"""docs/gguf.md."""
NAME_BYTES_MAX = 63
"""GGML_MAX_NAME - 1; llama.cpp refuses longer tensor names."""
DIMS_MAX = 4
"""GGML_MAX_DIMS."""
ELEMENTS_MAX = 2**63 - 1
"""Of one tensor, as in gguf.cpp."""
KEY_VALUE_BYTES_MIN = LENGTH_BYTES + 1 + 4 + 1
TENSOR_INFO_BYTES_MIN = LENGTH_BYTES + 4 + 4 + 8
KEPT_STRING_BYTES_MAX = 1024 * 1024
"""Longer strings are skipped; the longest chat templates are under 100 KiB."""
KEPT_BYTES_MAX = 16 * 1024 * 1024
"""Strings and arrays kept of one file; more and the rest is skipped."""
TEXTS_MAX = 4_194_304
"""Strings kept of one array; the largest vocabularies have half a million."""
ELEMENT_BYTES = 8
"""The cost of a kept number."""
KEPT_ELEMENTS_MAX = 4096
"""Numeric arrays up to here are kept: per-layer figures have an entry per layer."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """The stand-in of a value that was not kept."""

    element: str
    """Element type of an array (``string``, ``float32``), or ``string`` alone."""
    count: int
    """Elements of the array, or bytes of the string."""


Scalar = int | float | bool | str
Value = Scalar | tuple[int | float | bool, ...] | Skipped


class Tensor(NamedTuple):
    """One entry of the tensor list."""

    name: str
    type: int
    """ggml's type number."""
    shape: tuple[int, ...]
    """Elements per dimension, ggml's order: the row length first."""
    offset: int
    """Bytes from the start of the file's data section."""
    n_bytes: int
    """Of a type ``gguf`` cannot size: up to the next tensor, padding included."""
    type_known: bool = True

    @property
    def type_name(self) -> str:
        """``Q4_K``, or ``type 42`` for a type ``gguf`` does not know."""
        return tensor_type_name(self.type)


@dataclass(frozen=True, slots=True)
class Header:
    """Everything in front of the weights of one file."""

    path: Path
    file_bytes: int
    version: int
    byte_order: str
    """``little`` or ``big``."""
    alignment: int
    data_offset: int
    """Byte at which tensor offsets start to count."""
    metadata: dict[str, Value]
    tensors: tuple[Tensor, ...]
    list_sha256: str = ""
    """Of the list of tensors as it stands in the file."""
    texts: dict[str, tuple[bytes, ...]] = field(default_factory=dict)
    """The arrays of strings that were asked for, by their key."""


def read_header(path: Path | str, texts: Collection[str] = ()) -> Header:
    """Read the header of one GGUF file, in bounded time and memory.

    ``texts`` are the keys of arrays of strings to keep, such as the vocabulary.

    Raises:
        ModelError: not a GGUF, cut short, damaged, or beyond the limits above.
    """
    path = Path(path)
    with open_cursor(path) as cursor:
        version, n_tensors, n_keys = _opening(cursor)
        kept: dict[str, tuple[bytes, ...]] = dict.fromkeys(texts, ())
        metadata = _metadata(cursor, n_keys, kept)
        alignment = _alignment(cursor, metadata)
        list_at = cursor.place
        listed = [_tensor_info(cursor) for _ in range(n_tensors)]
        list_sha256 = cursor.sha256(list_at)
        data_offset = cursor.place + -cursor.place % alignment
        return Header(
            path=path,
            file_bytes=cursor.size,
            version=version,
            byte_order="big" if cursor.order == ">" else "little",
            alignment=alignment,
            data_offset=data_offset,
            metadata=metadata,
            tensors=_checked(cursor, listed, data_offset, alignment),
            list_sha256=list_sha256,
            texts=kept,
        )


def _opening(cursor: Cursor) -> tuple[int, int, int]:
    """Check magic and version, find the byte order; version and the two counts."""
    if cursor.size == 0:
        cursor.fail("is empty")
    magic = cursor.take(min(len(MAGIC), cursor.size))
    if magic != MAGIC:
        _not_gguf(cursor, magic)
    (version,) = cursor.numbers("I")
    # Written by a big-endian machine, 3 reads as 0x03000000 here.
    if version & 0xFFFF == 0:
        version = int.from_bytes(version.to_bytes(4, "little"), "big")
        cursor.set_order(">")
    if version not in VERSIONS:
        cursor.fail(
            f"is GGUF version {version}; versions 2 and 3 can be read",
            "Convert it again with a current llama.cpp.",
        )
    n_tensors, n_keys = cursor.numbers("QQ")
    _check_count(cursor, "metadata entries", n_keys, KEYS_MAX, KEY_VALUE_BYTES_MIN)
    _check_count(cursor, "tensors", n_tensors, TENSORS_MAX, TENSOR_INFO_BYTES_MIN)
    return version, n_tensors, n_keys


def _not_gguf(cursor: Cursor, magic: bytes) -> None:
    if magic == b"vers" and cursor.take(min(20, cursor.left)).startswith(b"ion https"):
        cursor.fail("is a Git LFS pointer, not the model", "Fetch it: git lfs pull.")
    shown = printable(magic.decode("latin-1"))
    cursor.fail(
        f"is not a GGUF file (it starts with “{shown}”)",
        "Name a .gguf, or convert the model with llama.cpp.",
    )


def _check_count(cursor: Cursor, of: str, count: int, limit: int, least: int) -> None:
    if count > limit or count * least > cursor.left:
        cursor.fail(f"is corrupt: it claims {count} {of} in {cursor.size} bytes")


def _metadata(
    cursor: Cursor, n_keys: int, texts: dict[str, tuple[bytes, ...]]
) -> dict[str, Value]:
    """Every key with its value; of arrays of strings only the keys of ``texts``."""
    metadata: dict[str, Value] = {}
    room = KEPT_BYTES_MAX
    for index in range(n_keys):
        cursor.inside = f"metadata key {index}"
        key = _text(cursor, KEY_BYTES_MAX)
        cursor.inside = f"metadata key “{printable(key)}”"
        if not key or key in metadata:
            cursor.fail(f"is corrupt: metadata key “{printable(key)}” appears twice")
        (kind,) = cursor.numbers("I")
        if key in texts and kind == value_types().array:
            texts[key] = _texts(cursor)
            metadata[key] = Skipped("string", len(texts[key]))
        else:
            metadata[key] = _value(cursor, kind, room)
        room -= len(key) + _weight(metadata[key])
        if room < 0:
            cursor.fail(f"is corrupt: its metadata is over {KEPT_BYTES_MAX >> 20} MiB")
    return metadata


def _weight(value: Value) -> int:
    if isinstance(value, str):
        return len(value)
    return ELEMENT_BYTES * (len(value) if isinstance(value, tuple) else 1)


def _text(cursor: Cursor, limit: int) -> str:
    (length,) = cursor.numbers("Q")
    if length > limit:
        cursor.fail(f"is corrupt: {cursor.inside} has a name of {length} bytes")
    return cursor.take(length).decode("utf-8", "replace")


def _value(cursor: Cursor, kind: int, room: int) -> Value:
    types = value_types()
    letter = types.scalars.get(kind)
    if letter is not None:
        value: Scalar = cursor.numbers(letter)[0]
        return value
    if kind == types.string:
        return _string(cursor, room)
    if kind == types.array:
        return _array(cursor, room)
    cursor.fail(f"is corrupt: {cursor.inside} has the unknown type {kind}")


def _string(cursor: Cursor, room: int) -> str | Skipped:
    (length,) = cursor.numbers("Q")
    if length > min(room, KEPT_STRING_BYTES_MAX):
        cursor.skip(length)
        return Skipped("string", length)
    return cursor.take(length).decode("utf-8", "replace")


def _array(cursor: Cursor, room: int) -> Value:
    """Keep a short numeric array, step over any other."""
    types = value_types()
    kind, count = cursor.numbers("IQ")
    letter = types.scalars.get(kind)
    if kind == types.string:
        if count * LENGTH_BYTES > cursor.left:
            cursor.truncated()
        cursor.skip_strings(count)
    elif letter is None:
        # Arrays of arrays too: llama.cpp refuses them, and they would nest forever.
        cursor.fail(f"is corrupt: {cursor.inside} is an array of the type {kind}")
    elif count <= min(KEPT_ELEMENTS_MAX, room // ELEMENT_BYTES):
        return cursor.numbers(f"{count}{letter}")
    else:
        cursor.skip(count * struct.calcsize("=" + letter))
    return Skipped(types.names[kind], count)


def _texts(cursor: Cursor) -> tuple[bytes, ...]:
    """Every string of an array."""
    kind, count = cursor.numbers("IQ")
    if kind != value_types().string:
        cursor.fail(f"is corrupt: {cursor.inside} is no array of strings")
    if count * LENGTH_BYTES > cursor.left:
        cursor.truncated()
    if count > TEXTS_MAX:
        cursor.fail(f"is corrupt: {cursor.inside} claims {count} strings")
    return tuple(_kept_text(cursor) for _ in range(count))


def _kept_text(cursor: Cursor) -> bytes:
    (length,) = cursor.numbers("Q")
    if length > KEPT_STRING_BYTES_MAX:
        cursor.fail(f"is corrupt: {cursor.inside} has a string of {length} bytes")
    return cursor.take(length)


def _alignment(cursor: Cursor, metadata: dict[str, Value]) -> int:
    value = metadata.get("general.alignment", ALIGNMENT_DEFAULT)
    if type(value) is not int or value < 1 or value & (value - 1):
        cursor.fail("is corrupt: general.alignment is not a power of two")
    return value


def _tensor_info(cursor: Cursor) -> Tensor:
    """One entry of the list, its size not yet known."""
    cursor.inside = "the tensor list"
    name = _text(cursor, NAME_BYTES_MAX)
    cursor.inside = f"the entry of tensor {printable(name)}"
    (n_dims,) = cursor.numbers("I")
    if n_dims > DIMS_MAX:
        cursor.fail(f"is corrupt: tensor {printable(name)} has {n_dims} dimensions")
    *shape, kind, offset = cursor.numbers(f"{n_dims}QIQ")
    return Tensor(name, kind, tuple(shape), offset, 0)


def _checked(
    cursor: Cursor, listed: list[Tensor], data_offset: int, alignment: int
) -> tuple[Tensor, ...]:
    """The tensors with their sizes; refused when any two or the file's end collide."""
    names: set[str] = set()
    for tensor in listed:
        if tensor.name in names:
            cursor.fail(f"is corrupt: tensor {printable(tensor.name)} appears twice")
        names.add(tensor.name)
    by_offset = sorted(range(len(listed)), key=lambda index: listed[index].offset)
    sized = list(listed)
    data_bytes = cursor.size - data_offset
    following = data_bytes
    for index in reversed(by_offset):
        sized[index] = _sized(cursor, listed[index], following)
        following = listed[index].offset
    _check_places(cursor, [sized[index] for index in by_offset], data_offset, alignment)
    return tuple(sized)


def _sized(cursor: Cursor, tensor: Tensor, following: int) -> Tensor:
    """The tensor with its bytes; `following` is where the next one starts."""
    known = tensor_types().get(tensor.type)
    if known is None:
        gap = max(following - tensor.offset, 0)
        return tensor._replace(n_bytes=gap, type_known=False)
    elements = math.prod(tensor.shape)
    row = tensor.shape[0] if tensor.shape else 1
    if elements > ELEMENTS_MAX or row % known.block:
        cursor.fail(
            f"is corrupt: tensor {printable(tensor.name)} cannot have the shape "
            f"{list(tensor.shape)} in {known.name}"
        )
    return tensor._replace(n_bytes=elements // known.block * known.block_bytes)


def _check_places(
    cursor: Cursor, tensors: list[Tensor], data_offset: int, alignment: int
) -> None:
    """Check that tensors, sorted by offset, are aligned, disjoint and in the file."""
    end = 0
    for tensor in tensors:
        name = printable(tensor.name)
        if tensor.offset % alignment:
            cursor.fail(f"is corrupt: tensor {name} is not aligned to {alignment}")
        if tensor.offset < end and tensor.n_bytes:
            cursor.fail(f"is corrupt: tensor {name} overlaps the one before it")
        end = max(end, tensor.offset + tensor.n_bytes)
        if data_offset + end > cursor.size:
            cursor.fail(
                f"is truncated: tensor {name} ends at byte {data_offset + end}, "
                f"the file has {cursor.size}",
                AGAIN,
            )
