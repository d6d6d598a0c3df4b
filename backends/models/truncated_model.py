"""A truncated model: its first layers, as large as they are, with holes for bytes.

It has the metadata, vocabulary, shapes and types of the model. So an engine needs the
same operators for it. Only the first layer of each kind is there, with all before it.
It has no more experts than a token uses. It computes nonsense.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from backends.errors import ModelError
from backends.models.header import (
    MAGIC,
    Cursor,
    Tensor,
    open_cursor,
    read_header,
    value_types,
)
from backends.models.parts import part_paths

LAYERS_MAX = 8
"""Kinds of layers repeat sooner."""
_DROPPED = ("split.", "general.base_model.", "general.dataset.")
_BLOCK = "blk."


class TruncatedModel(NamedTuple):
    n_layer: int
    layer_bytes: int
    """Of all its layers: so much a worker is sent."""


class _Entry(NamedTuple):
    """A key of the metadata as it stands in the file."""

    key: str
    type: int
    element: int
    """Type of the elements of an array."""
    length: int
    value: bytes
    """Of an array: its elements alone."""


class _Shape(NamedTuple):
    """The parts of a model that a truncated model keeps."""

    arch: str
    n_layer: int
    kept: int
    n_expert: int
    used: int


def write_truncated(model: Path, target: Path) -> TruncatedModel:
    """Write the truncated form of a model, of any part of it."""
    parts = part_paths(model)
    headers = [read_header(part) for part in parts]
    if headers[0].byte_order != "little":
        raise ModelError(f"{model.name} is big-endian", "Try another model.")
    every = [tensor for header in headers for tensor in header.tensors]
    shape = _shape(headers[0].metadata, every)
    kept = [_cut(one, shape) for one in every if _block(one.name) < shape.kept]
    with open_cursor(parts[0]) as cursor, parts[0].open("rb") as file:
        entries = [_changed(one, shape) for one in _entries(cursor, file.fileno())]
    entries = [one for one in entries if not one.key.startswith(_DROPPED)]
    alignment = headers[0].alignment
    data = bytearray(MAGIC + struct.pack("<IQQ", 3, len(kept), len(entries)))
    for entry in entries:
        data += _written(entry)
    offset = 0
    for tensor in kept:
        name = tensor.name.encode()
        form = f"<Q{len(name)}sI{len(tensor.shape)}QIQ"
        numbers = (len(tensor.shape), *tensor.shape, tensor.type, offset)
        data += struct.pack(form, len(name), name, *numbers)
        offset += tensor.n_bytes + -tensor.n_bytes % alignment
    data += bytes(-len(data) % alignment)
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with target.open("wb") as made:
        made.write(data)
        # The bytes of the tensors are a hole.
        made.truncate(len(data) + offset)
    layers = [tensor.n_bytes for tensor in kept if _block(tensor.name) >= 0]
    return TruncatedModel(n_layer=shape.kept, layer_bytes=sum(layers))


def _shape(metadata: Mapping[str, object], tensors: Iterable[Tensor]) -> _Shape:
    arch = str(metadata.get("general.architecture", ""))

    def number(name: str) -> int:
        found = metadata.get(f"{arch}.{name}", 0)
        return found if isinstance(found, int) else 0

    n_layer = number("block_count") - number("nextn_predict_layers")
    kinds: dict[frozenset[tuple[str, int]], int] = {}
    members: dict[int, set[tuple[str, int]]] = {}
    for tensor in tensors:
        block = _block(tensor.name)
        if 0 <= block < n_layer:
            suffix = tensor.name.partition(".")[2].partition(".")[2]
            members.setdefault(block, set()).add((suffix, tensor.type))
    for block in sorted(members):
        kinds.setdefault(frozenset(members[block]), block)
    if not kinds or n_layer < 1:
        raise ModelError("It has no layers", "Name a whole model, not a draft or head.")
    first = [block for block in kinds.values() if block < LAYERS_MAX]
    experts, used = number("expert_count"), number("expert_used_count")
    # Experts in groups cannot be cut without knowing how they are chosen.
    fewer = used if used and number("expert_group_count") < 2 else experts
    return _Shape(arch, n_layer, max(first) + 1, experts, min(fewer, experts))


def _block(name: str) -> int:
    # -1 of a tensor that belongs to no layer.
    number = name[len(_BLOCK) :].partition(".")[0] if name.startswith(_BLOCK) else ""
    return int(number) if number.isdigit() else -1


def _cut(tensor: Tensor, shape: _Shape) -> Tensor:
    """The tensor with fewer experts, if it has any."""
    has_experts = shape.n_expert > shape.used and tensor.shape[-1] == shape.n_expert
    routes = "exps" in tensor.name or "gate_inp" in tensor.name or "exp_" in tensor.name
    if _block(tensor.name) < 0 or not (has_experts and routes):
        return tensor
    return tensor._replace(
        shape=(*tensor.shape[:-1], shape.used),
        n_bytes=tensor.n_bytes // shape.n_expert * shape.used,
    )


# --- metadata ------------------------------------------------------------------------


def _entries(cursor: Cursor, descriptor: int) -> Iterator[_Entry]:
    types = value_types()
    cursor.take(len(MAGIC))
    _, _, n_keys = cursor.numbers("IQQ")
    for _ in range(n_keys):
        key = cursor.take(cursor.numbers("Q")[0]).decode(errors="replace")
        (kind,) = cursor.numbers("I")
        element, count = kind, 1
        if kind == types.array:
            element, count = cursor.numbers("IQ")
        begin = cursor.place
        if element == types.string:
            cursor.skip_strings(count)
        elif element in types.scalars:
            cursor.skip(struct.calcsize(f"<{types.scalars[element]}") * count)
        else:
            cursor.fail("has arrays of arrays in its metadata")
        value = os.pread(descriptor, cursor.place - begin, begin)
        yield _Entry(key, kind, element, count, value)


def _changed(entry: _Entry, shape: _Shape) -> _Entry:
    types = value_types()
    numbers = {
        f"{shape.arch}.block_count": shape.kept,
        f"{shape.arch}.nextn_predict_layers": 0,
        f"{shape.arch}.expert_count": shape.used,
    }
    if entry.type in types.scalars and entry.key in numbers:
        form = f"<{types.scalars[entry.type]}"
        return entry._replace(value=struct.pack(form, numbers[entry.key]))
    own = entry.key.startswith(f"{shape.arch}.")
    per_layer = own and entry.length == shape.n_layer and entry.element in types.scalars
    if entry.type == types.array and per_layer:
        size = len(entry.value) // entry.length
        return entry._replace(length=shape.kept, value=entry.value[: size * shape.kept])
    return entry


def _written(entry: _Entry) -> bytes:
    key = entry.key.encode()
    head = struct.pack("<Q", len(key)) + key + struct.pack("<I", entry.type)
    if entry.type == value_types().array:
        head += struct.pack("<IQ", entry.element, entry.length)
    return head + entry.value
