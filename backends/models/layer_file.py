"""A GGUF file with some layers of a model: what a worker needs on its disk.

It has the model's metadata and lists the tensors of those layers alone. So nobody
takes it for the model: llama.cpp misses the others, and a worker is sent them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import NamedTuple

from backends.errors import ModelError
from backends.models.header import MAGIC, Header, Tensor, value_types
from backends.models.layers import model_headers, model_of, places_in
from backends.models.parts import part_name, part_of
from backends.models.sparse import LAYERS_KEPT, LAYERS_SOURCE
from backends.models.sparse_copy import parse_keep
from backends.printable import printable

KEYS_AT = 24
"""The beginning of the metadata, after magic, version and two counts."""
MARK = ".layers-"
EMBEDDING = "token_embd.weight"


class Run(NamedTuple):
    """Bytes of the model's file, and their place in the new one."""

    source_at: int
    length: int
    target_at: int


class LayerFile(NamedTuple):
    """One file to be made: its header, and what follows that."""

    name: str
    header: bytes
    runs: tuple[Run, ...]

    @property
    def size_bytes(self) -> int:
        return len(self.header) + sum(run.length for run in self.runs)


def layer_files(model: Path, keep: str) -> list[LayerFile]:
    """The files, one for each part of a model, with what ``--layers`` names.

    Headers suffice of the model: sparse files of the same size, say.
    """
    headers = model_headers(model)
    info, places = model_of(headers), places_in(headers)
    if info.sparse:
        raise ModelError(
            f"{printable(model.name)} lacks layers itself",
            f"Take the model itself, {printable(info.sparse.source)}.",
        )
    kept = parse_keep(keep, info.n_layer)
    wanted = {
        tensor.name for index in kept.layers for _, tensor in places.layers[index]
    }
    if kept.output:
        wanted |= {tensor.name for tensor in places.output}
        wanted |= {EMBEDDING} if info.tied_output else set()
    name = headers[0].path.name
    return [_layer_file(header, wanted, keep, name) for header in headers]


def layer_name(name: str, keep: str) -> str:
    """``big.layers-10-19.gguf`` of ``big.gguf``; parts keep their numbers."""
    words = f"{MARK}{keep.replace(',', '_')}"
    if part := part_of(name):
        return part_name(f"{part.prefix}{words}", part.number, part.count)
    return f"{PurePath(name).stem}{words}.gguf"


def has_layers_of(name: str, model: str) -> bool:
    """True if a file is called as one with layers of that model."""
    part = part_of(model)
    prefix = part.prefix if part else PurePath(model).stem
    return name.startswith(f"{prefix}{MARK}")


def _layer_file(
    header: Header, wanted: Iterable[str], keep: str, source: str
) -> LayerFile:
    names = set(wanted)
    order = ">" if header.byte_order == "big" else "<"
    by_place = sorted(header.tensors, key=lambda tensor: tensor.offset)
    kept = [tensor for tensor in by_place if tensor.name in names]
    if unknown := [tensor.name for tensor in kept if not tensor.type_known]:
        raise ModelError(
            f"{printable(unknown[0])} has a type that this dllm-tui does not know",
            "Copy the whole model, or use a newer dllm-tui.",
        )
    offsets, end = [], 0
    for tensor in kept:
        offsets.append(end)
        end += tensor.n_bytes + -tensor.n_bytes % header.alignment
    notes = _text(LAYERS_SOURCE, source, order) + _text(LAYERS_KEPT, keep, order)
    with header.path.open("rb") as file:
        opening = file.read(KEYS_AT)
        keys = file.read(header.list_offset - KEYS_AT)
    (n_keys,) = struct.unpack_from(f"{order}Q", opening, 16)
    made = b"".join(
        (
            MAGIC,
            opening[4:8],
            struct.pack(f"{order}QQ", len(kept), n_keys + 2),
            notes,
            keys,
            *(
                _info(tensor, at, order)
                for tensor, at in zip(kept, offsets, strict=True)
            ),
        )
    )
    made += bytes(-len(made) % header.alignment)
    return LayerFile(
        name=layer_name(header.path.name, keep),
        header=made,
        runs=tuple(_runs(header, kept, offsets, len(made))),
    )


def _runs(
    header: Header, kept: list[Tensor], offsets: list[int], data_at: int
) -> list[Run]:
    """The bytes to copy, neighbours together with the padding between them."""
    runs: list[Run] = []
    for tensor, at in zip(kept, offsets, strict=True):
        source_at, target_at = header.data_offset + tensor.offset, data_at + at
        if runs:
            last = runs[-1]
            gap = source_at - last.source_at - last.length
            if gap == target_at - last.target_at - last.length < header.alignment:
                length = source_at + tensor.n_bytes - last.source_at
                runs[-1] = last._replace(length=length)
                continue
            padding = target_at - last.target_at - last.length
            runs[-1] = last._replace(length=last.length + padding)
        runs.append(Run(source_at, tensor.n_bytes, target_at))
    return runs


def _text(key: str, value: str, order: str) -> bytes:
    name, text = key.encode(), value.encode("utf-8", "surrogateescape")
    kind = struct.pack(f"{order}I", value_types().string)
    return _sized(name, order) + kind + _sized(text, order)


def _sized(text: bytes, order: str) -> bytes:
    return struct.pack(f"{order}Q", len(text)) + text


def _info(tensor: Tensor, offset: int, order: str) -> bytes:
    shape = tensor.shape
    numbers = f"{order}I{len(shape)}QIQ"
    packed = struct.pack(numbers, len(shape), *shape, tensor.type, offset)
    return _sized(tensor.name.encode(), order) + packed
