"""Verifying a model: against its own record, and tensor by tensor against another."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from backends.models.header import tensor_type_name
from backends.models.identity import files_of, full_sha256, identity_of
from backends.models.layers import read_model
from backends.models.sparse import sparse_words
from backends.printable import shown_path
from backends.state import Value
from backends.state.models import TensorSums


class TensorDifference(Value, frozen=True, kw_only=True):
    name: str
    why: str
    """``other bytes``, ``Q4_K there, Q8_0 here`` and so on."""


class Comparison(Value, frozen=True, kw_only=True):
    machine: str
    path: str
    """There."""
    n_tensors: int
    """Here and there, those of one name counted once."""
    size_bytes: int
    """Of all tensors here."""
    differing: tuple[TensorDifference, ...]

    @property
    def same(self) -> bool:
        return not self.differing

    @property
    def verdict(self) -> str:
        if self.same:
            return f"the same by BLAKE3: all {self.n_tensors} tensors"
        return (
            f"{len(self.differing)} of {self.n_tensors} tensors differ: another file?"
        )


def compare_tensors(
    here: Iterable[TensorSums], there: Iterable[TensorSums], *, machine: str, path: str
) -> Comparison:
    ours = {tensor.name: tensor for tensor in here}
    theirs = {tensor.name: tensor for tensor in there}
    differing = [
        TensorDifference(name=name, why=why)
        for name, tensor in ours.items()
        if (why := _why(tensor, theirs.get(name)))
    ]
    differing += [
        TensorDifference(name=name, why="only there")
        for name in theirs
        if name not in ours
    ]
    return Comparison(
        machine=machine,
        path=path,
        n_tensors=len(ours | theirs),
        size_bytes=sum(tensor.size_bytes for tensor in ours.values()),
        differing=tuple(differing),
    )


def _why(here: TensorSums, there: TensorSums | None) -> str:
    if there is None:
        return "missing there"
    if here.type != there.type:
        types = tensor_type_name(there.type), tensor_type_name(here.type)
        return f"{types[0]} there, {types[1]} here"
    if here.shape != there.shape:
        return f"shape {_shape(there)} there, {_shape(here)} here"
    return "" if here.blake3 == there.blake3 else "other bytes"


def _shape(tensor: TensorSums) -> str:
    return "×".join(map(str, tensor.shape))


# Hugging Face's cache and Ollama's store name a file by its own hash.
_NAMED_BY_HASH = re.compile(r"(?:sha256-)?([0-9a-f]{64})")


class VerifiedFile(Value, frozen=True, kw_only=True):
    path: str
    size_bytes: int
    sha256: str
    """As ``sha256sum`` and Hugging Face's pages tell it; empty where not read."""
    expected_sha256: str = ""
    """By the name its store gave it; empty where that says nothing."""

    @property
    def damaged(self) -> bool:
        return bool(self.sha256 and self.expected_sha256 not in ("", self.sha256))


class VerifiedModel(Value, frozen=True, kw_only=True):
    path: str
    name: str
    identity: str
    """Equal on every machine that holds these bytes."""
    files: tuple[VerifiedFile, ...]
    sparse: str = ""
    """The parts that are there, if some are not; their bytes alone are checked."""

    @property
    def damaged(self) -> bool:
        return any(file.damaged for file in self.files)


def verify_model(
    path: Path,
    *,
    quick: bool = False,
    on_bytes: Callable[[int, int], None] = lambda done, total: None,
    stopped: Callable[[], bool] = lambda: False,
) -> VerifiedModel:
    """Read headers and every byte of a model's files, the first part first.

    ``quick`` reads headers and sizes alone: whether all parts and tensors are there.
    ``on_bytes`` hears the bytes read, and all there are. Once ``stopped`` says so,
    hashes stay empty.
    """
    info = read_model(path)
    files = files_of(path)
    before = 0
    found = []
    for file in files:

        def told(done: int, before: int = before) -> None:
            on_bytes(before + done, info.size_bytes)

        sha256 = "" if quick else full_sha256(file, told, stopped)
        size_bytes = file.stat().st_size
        named = _NAMED_BY_HASH.fullmatch(file.resolve().name)
        before += size_bytes
        found.append(
            VerifiedFile(
                path=shown_path(file),
                size_bytes=size_bytes,
                sha256=sha256,
                expected_sha256=named[1] if named else "",
            )
        )
    return VerifiedModel(
        path=info.path,
        name=info.name,
        identity=identity_of(files[0]),
        files=tuple(found),
        sparse=sparse_words(info.sparse) if info.sparse else "",
    )
