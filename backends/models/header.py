"""The GGUF header walk: metadata and tensor list of one file, arrays skipped.

Format: ggml's docs/gguf.md; what is refused follows gguf_init_from_reader in
llama.cpp's ggml/src/gguf.cpp, so that a file accepted here is one the engine can open.
Versions 2 and 3 share one layout; version 3 may be big-endian.
"""

from __future__ import annotations

import hashlib
import math
import os
import stat
import struct
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

from backends.errors import ModelError
from backends.printable import printable

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
    name: str
    block: int
    block_bytes: int


class ValueTypes(NamedTuple):
    scalars: dict[int, str]
    """Type number to struct letter."""
    names: dict[int, str]
    string: int
    array: int


@cache
def _gguf() -> ModuleType:
    """The tables of the gguf package; all the rest of it takes a tenth of a second."""
    package = find_spec("gguf")
    assert package is not None
    assert package.submodule_search_locations
    file = Path(package.submodule_search_locations[0]) / "constants.py"
    spec = spec_from_file_location("gguf_constants", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def tensor_types() -> dict[int, TensorType]:
    return {
        int(kind): TensorType(kind.name, block, block_bytes)
        for kind, (block, block_bytes) in _gguf().GGML_QUANT_SIZES.items()
    }


@cache
def value_types() -> ValueTypes:
    kinds = _gguf().GGUFValueType
    return ValueTypes(
        scalars={
            int(kind): _LETTERS[kind.name] for kind in kinds if kind.name in _LETTERS
        },
        names={int(kind): kind.name.lower() for kind in kinds},
        string=int(kinds.STRING),
        array=int(kinds.ARRAY),
    )


def tensor_type_name(number: int) -> str:
    known = tensor_types().get(number)
    return known.name if known else f"type {number}"


@cache
def file_type_name(number: int) -> str:
    try:
        name = str(_gguf().LlamaFileType(number).name)
    except ValueError:
        return f"file type {number}"
    return name.removeprefix("MOSTLY_").removeprefix("ALL_")


WINDOW_BYTES = 256 * 1024
LENGTH_BYTES = 8
"""A GGUF string is a 64-bit length and its bytes."""
HEADER_BYTES_MAX = 128 * 1024 * 1024
"""Ours; the largest real headers (vocabulary included) are under 32 MiB."""
AGAIN = "Copy or download it again."


class Cursor:
    """A place in an open file; every read checks against the file's end."""

    def __init__(self, descriptor: int, size: int, name: str) -> None:
        self.size = size
        self.name = name
        self.place = 0
        self.inside = "the header"
        """The part being read, for the error sentence."""
        self._descriptor = descriptor
        self._data = b""
        self._start = 0
        self.set_order("<")

    def set_order(self, order: str) -> None:
        self.order = order
        self._structs: dict[str, struct.Struct] = {}
        self._length = struct.Struct(order + "Q")

    def fail(self, what: str, hint: str = AGAIN) -> NoReturn:
        raise ModelError(f"{self.name} {what}", hint)

    def truncated(self) -> NoReturn:
        self.fail(f"is truncated: it ends at byte {self.size} inside {self.inside}")

    @property
    def left(self) -> int:
        return self.size - self.place

    def numbers(self, letters: str) -> tuple[Any, ...]:
        form = self._structs.get(letters)
        if form is None:
            form = self._structs[letters] = struct.Struct(self.order + letters)
        at = self._hold(form.size)
        self.place += form.size
        return form.unpack_from(self._data, at)

    def take(self, n_bytes: int) -> bytes:
        at = self._hold(n_bytes)
        self.place += n_bytes
        return self._data[at : at + n_bytes]

    def sha256(self, begin: int) -> str:
        passed = os.pread(self._descriptor, self.place - begin, begin)
        return hashlib.sha256(passed).hexdigest()

    def skip(self, n_bytes: int) -> None:
        self.place += n_bytes
        self._check_place()

    def skip_strings(self, count: int) -> None:
        """Step over strings, reading nothing but their lengths.

        The one loop that runs per vocabulary entry: it stays inside the window and
        lets struct notice the window's end, because a test per string costs a third.
        """
        length_at = self._length.unpack_from
        while count:
            at = self._hold(LENGTH_BYTES)
            base, data, done = self.place - at, self._data, 0
            try:
                for done in range(count):  # noqa: B007
                    at += LENGTH_BYTES + length_at(data, at)[0]
                done = count
            except (struct.error, OverflowError):
                pass
            count -= done
            self.skip(base + at - self.place)

    def _hold(self, n_bytes: int) -> int:
        at = self.place - self._start
        if at < 0 or at + n_bytes > len(self._data):
            self._refill(n_bytes)
            return 0
        return at

    def _check_place(self) -> None:
        if self.place > self.size:
            self.truncated()
        if self.place > HEADER_BYTES_MAX:
            self.fail(f"is corrupt: its header is over {HEADER_BYTES_MAX >> 20} MiB")

    def _refill(self, n_bytes: int) -> None:
        self._check_place()
        if n_bytes > self.left:
            self.truncated()
        wanted = max(n_bytes, WINDOW_BYTES)
        self._data = os.pread(self._descriptor, wanted, self.place)
        self._start = self.place
        if len(self._data) < n_bytes:
            self.size = self.place + len(self._data)
            self.truncated()


@contextmanager
def open_cursor(path: Path) -> Iterator[Cursor]:
    name = printable(path.name)
    try:
        # Non-blocking, or opening a FIFO would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise _cannot_read(path, error) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(f"{printable(str(path))} is not a file", "Name a .gguf.")
        yield Cursor(descriptor, status.st_size, name)
    except OSError as error:
        raise _cannot_read(path, error) from error
    finally:
        os.close(descriptor)


def _cannot_read(path: Path, error: OSError | ValueError) -> ModelError:
    reason = getattr(error, "strerror", None) or str(error)
    return ModelError(
        f"Cannot read {printable(str(path))} ({reason})",
        "Check the path; dllm-tui models show takes a file or a catalogue name.",
    )


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
        return tensor_type_name(self.type)


class Places(NamedTuple):
    layers: list[list[tuple[str, Tensor]]]
    """Per layer: the name without ``blk.N.``, and the tensor."""
    embedding: list[Tensor]
    output: list[Tensor]
    """Output norm and head, and whatever else is neither layer nor embedding."""


@dataclass(frozen=True, slots=True)
class Header:
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
    list_offset: int = 0
    """Byte at which the list of tensors starts; the metadata ends there."""


def has_whole_header(path: Path, there_bytes: int) -> bool:
    """True if the header ends within the first bytes of a file; the rest is a hole."""
    try:
        return read_header(path).data_offset <= there_bytes
    except ModelError:
        return False


def read_header(path: Path | str, texts: Collection[str] = ()) -> Header:
    """Read the header of one GGUF file, in bounded time and memory.

    ``texts`` are the keys of arrays of strings to keep, such as the vocabulary.
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
            list_offset=list_at,
            metadata=metadata,
            tensors=_checked(cursor, listed, data_offset, alignment),
            list_sha256=list_sha256,
            texts=kept,
        )


def _opening(cursor: Cursor) -> tuple[int, int, int]:
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


NUMBER_MAX = 2**30
"""Larger hyperparameters are damage; the largest known is a context of 10 485 760."""


class Params:
    """Metadata of one model, its architecture's prefix put in front of every key."""

    def __init__(self, header: Header, arch: str) -> None:
        self.arch = arch
        self._header = header

    def raw(self, key: str) -> Value | None:
        return self._header.metadata.get(f"{self.arch}.{key}")

    def number(self, key: str, default: int = 0) -> int:
        """A whole number; the largest one where the file has one per layer."""
        value = self.raw(key)
        if isinstance(value, tuple):
            return max((self._checked(key, item) for item in value), default=default)
        return default if value is None else self._checked(key, value)

    def per_layer(self, key: str, n_layer: int) -> list[int]:
        """One number per layer, from an array or from one number for all.

        A short array is filled up with zeros: some files leave out the layers that
        predict further tokens.
        """
        value = self.raw(key)
        if not isinstance(value, tuple):
            return [self.number(key)] * n_layer
        numbers = [self._checked(key, item) for item in value[:n_layer]]
        return numbers + [0] * (n_layer - len(numbers))

    def flags(self, key: str, n_layer: int) -> list[bool] | None:
        """One yes or no per layer, None when the file has no such array."""
        if not isinstance(self.raw(key), tuple):
            return None
        return [bool(value) for value in self.per_layer(key, n_layer)]

    def _checked(self, key: str, value: Value) -> int:
        if isinstance(value, int) and 0 <= value <= NUMBER_MAX:
            return int(value)
        raise ModelError(
            f"{printable(self._header.path.name)} is corrupt: its "
            f"{printable(self.arch)}.{key} cannot be {printable(str(value), 40)}",
            "Copy or download it again.",
        )
