"""A model here against one on another machine."""

from __future__ import annotations

from msgspec.structs import replace

from backends.models.verify import Comparison, compare
from backends.state.models import TensorSums

Q4_K, Q8_0 = 12, 8


def tensor(name: str, digit: str = "a") -> TensorSums:
    return TensorSums(
        name=name,
        type=Q8_0,
        shape=(256, 4, 1, 1),
        size_bytes=1088,
        fnv1a=digit * 16,
        xxh64=digit * 16,
        blake3=digit * 64,
    )


HERE = (tensor("one"), tensor("two"), tensor("three"))


def compared(*there: TensorSums) -> Comparison:
    return compare(HERE, there, machine="mini", path="/m.gguf")


def test_the_same_in_another_order() -> None:
    found = compared(*reversed(HERE))
    assert found.same
    assert found.verdict == "the same by BLAKE3: all 3 tensors"
    assert (found.machine, found.path) == ("mini", "/m.gguf")
    assert found.size_bytes == found.same_bytes == 3 * 1088


def test_every_difference_is_named() -> None:
    other = tensor("two", "b")
    found = compared(replace(HERE[0], type=Q4_K, size_bytes=576), other, tensor("four"))
    assert {one.name: one.why for one in found.differing} == {
        "one": "Q4_K there, Q8_0 here",
        "two": "other bytes",
        "three": "missing there",
        "four": "only there",
    }
    assert not found.same
    assert found.same_bytes == 0
    assert found.verdict == "4 of 4 tensors differ: another file?"


def test_a_shape_of_its_own() -> None:
    reshaped = replace(HERE[0], shape=(512, 2, 1, 1))
    (one,) = compared(reshaped, *HERE[1:]).differing
    assert one.why == "shape 512×2×1×1 there, 256×4×1×1 here"


def test_a_helper_without_blake3_is_told() -> None:
    older = [replace(tensor, blake3="") for tensor in HERE]
    found = compared(*older)
    assert found.same
    assert found.verdict.startswith("the same by 64-bit hashes (its helper is older")
    assert not compared(*[replace(tensor, xxh64="0" * 16) for tensor in older]).same


def test_any_hash_tells_bytes_apart() -> None:
    for other in (
        replace(HERE[0], xxh64="0" * 16),
        replace(HERE[0], fnv1a="0" * 16),
        replace(HERE[0], blake3="0" * 64),
    ):
        found = compared(other, *HERE[1:])
        assert [one.why for one in found.differing] == ["other bytes"]
        assert found.same_bytes == 2 * 1088
