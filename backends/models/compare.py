"""Compare a model on two machines: every tensor, by hashes of its bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.models.tables import tensor_type_name
from backends.state import Value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from backends.state.models import TensorSums


class TensorDifference(Value, frozen=True, kw_only=True):
    """A tensor that is not the same on both."""

    name: str
    why: str
    """``other bytes``, ``Q4_K there, Q8_0 here`` and so on."""


class Comparison(Value, frozen=True, kw_only=True):
    """A model here against one on another machine."""

    machine: str
    path: str
    """There."""
    n_tensors: int
    """Here and there, those of one name counted once."""
    size_bytes: int
    """Of all tensors here."""
    same_bytes: int
    """Of those that are the same there."""
    differing: tuple[TensorDifference, ...]

    @property
    def same(self) -> bool:
        """True if all of it is."""
        return not self.differing

    @property
    def verdict(self) -> str:
        """In a few words."""
        if self.same:
            return f"the same: all {self.n_tensors} tensors"
        return (
            f"{len(self.differing)} of {self.n_tensors} tensors differ: another file?"
        )


def compare(
    here: Iterable[TensorSums], there: Iterable[TensorSums], *, machine: str, path: str
) -> Comparison:
    """Compare the tensors of a model here with those on a machine, by name.

    Args:
        here: what this machine, or the one that is compared with, holds.
        there: what the other one holds.
        machine: the name of that one.
        path: of the model there.
    """
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
    others = {one.name for one in differing}
    same = (t.size_bytes for t in ours.values() if t.name not in others)
    return Comparison(
        machine=machine,
        path=path,
        n_tensors=len(ours | theirs),
        size_bytes=sum(tensor.size_bytes for tensor in ours.values()),
        same_bytes=sum(same),
        differing=tuple(differing),
    )


def _why(here: TensorSums, there: TensorSums | None) -> str:
    """Why two tensors of one name are not the same; empty when they are."""
    if there is None:
        return "missing there"
    if here.type != there.type:
        types = tensor_type_name(there.type), tensor_type_name(here.type)
        return f"{types[0]} there, {types[1]} here"
    if here.shape != there.shape:
        return f"shape {_shape(there)} there, {_shape(here)} here"
    if (here.size_bytes, here.xxh64, here.fnv1a) != (
        there.size_bytes,
        there.xxh64,
        there.fnv1a,
    ):
        return "other bytes"
    return ""


def _shape(tensor: TensorSums) -> str:
    return "×".join(map(str, tensor.shape))
