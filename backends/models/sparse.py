"""The record in a sparse file: what is there, and where its holes are.

A sparse file has the whole header of the model it was made from and only some of its
tensors; ``dllm-relay sparse`` writes it (``native/src/weights/sparse.h``). What is
there, and by hashes what is not, stands in its own metadata: a file and its record are
never apart.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

from backends.errors import ModelError
from backends.printable import printable
from backends.state import SparseModel
from backends.units import format_ranges

if TYPE_CHECKING:
    from backends.models.header import Header, Places, Tensor

_MARK = "dllm.thin."
SOURCE = "dllm.thin.source"
IDENTITY = "dllm.thin.identity"
KEPT = "dllm.thin.kept"
TENSORS = "dllm.thin.tensors"
HOLES = "dllm.thin.holes"
OUTPUT = "output"
LAYERS_KEPT = "dllm.layers.kept"
"""Of a file that lists some tensors of a model alone, and so has no holes."""
LAYERS_SOURCE = "dllm.layers.source"


def sparse_model(headers: Sequence[Header], places: Places) -> SparseModel | None:
    if LAYERS_KEPT in headers[0].metadata:
        return _with_some_layers(headers, places)
    if not any(map(has_holes, headers)):
        return None
    first = headers[0]
    for header in headers:
        _check_record(header, first)
    holes = {name for header in headers for name in _holes(header)}
    layers = [
        index
        for index, tensors in enumerate(places.layers)
        if not any(tensor.name in holes for _, tensor in tensors)
    ]
    tensors = [tensor for header in headers for tensor in header.tensors]
    return SparseModel(
        source=_source(first),
        identity=_text(first, IDENTITY),
        layers=tuple(layers),
        output=not any(tensor.name in holes for tensor in places.output),
        embedding=not any(tensor.name in holes for tensor in places.embedding),
        kept_bytes=sum(t.n_bytes for t in tensors if t.name not in holes),
    )


def _with_some_layers(headers: Sequence[Header], places: Places) -> SparseModel:
    there = [index for index, tensors in enumerate(places.layers) if tensors]
    return SparseModel(
        source=_text(headers[0], LAYERS_SOURCE),
        identity="",
        layers=tuple(there),
        output=bool(places.output),
        embedding=False,
        kept_bytes=sum(t.n_bytes for header in headers for t in header.tensors),
        for_worker=True,
    )


def sparse_words(sparse: SparseModel) -> str:
    """``sparse: output, 0–9 of big.gguf``."""
    parts = filter(None, [OUTPUT * sparse.output, format_ranges(sparse.layers)])
    kept = ", ".join(parts) or "no layer"
    return f"sparse: {kept} of {printable(Path(sparse.source).name)}"


def has_holes(header: Header) -> bool:
    """True if a file says that it is sparse, be that right or not."""
    return any(key.startswith(_MARK) for key in header.metadata)


def _check_record(header: Header, first: Header) -> None:
    """Refuse a record that is of other tensors, or of another sparse file.

    Whoever quantises, joins or splits a sparse file copies its metadata.
    """
    if not has_holes(header):
        raise _unclear(header, "is a part of a sparse file, and does not say so")
    if header.metadata.get(TENSORS) != header.list_sha256:
        raise _unclear(header, "does not say where its holes are, but those of another")
    if any(_text(header, key) != _text(first, key) for key in (IDENTITY, HOLES)):
        raise _unclear(header, "is of another sparse file than the first part")


def _are_runs(kept: tuple[object, ...]) -> TypeGuard[tuple[int, ...]]:
    numbers = [place for place in kept if type(place) is int]
    is_whole = len(numbers) == len(kept) and len(kept) % 2 == 0
    return is_whole and numbers == sorted(numbers)


def _unclear(header: Header, what: str) -> ModelError:
    return ModelError(
        f"{printable(header.path.name)} {what}",
        "Make it again, from the whole model: dllm-tui models sparse.",
    )


def _holes(header: Header) -> list[str]:
    kept = header.metadata.get(KEPT)
    if not isinstance(kept, tuple) or not _are_runs(kept):
        raise _unclear(header, "is sparse, and does not say where its holes are")

    def there(tensor: Tensor) -> bool:
        after = bisect_right(kept, tensor.offset)
        ends = tensor.offset + tensor.n_bytes
        return tensor.n_bytes == 0 or (after % 2 == 1 and ends <= kept[after])

    return [tensor.name for tensor in header.tensors if not there(tensor)]


def _source(header: Header) -> str:
    try:
        return str(json.loads(_text(header, SOURCE))["path"])
    except (ValueError, TypeError, KeyError):
        return ""


def _text(header: Header, key: str) -> str:
    value = header.metadata.get(key, "")
    return value if isinstance(value, str) else ""
