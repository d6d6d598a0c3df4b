"""Moving boundaries, reordering."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.errors import PlanError
from backends.split.layout import (
    boundaries,
    counts,
    devices,
    even_counts,
    format_range,
    make_split,
    move_boundary,
    ranges,
    reorder,
    with_counts,
)
from backends.state import LayerRange

THREE = make_split(12, ["local/CPU", "a/CPU", "b/CPU"], [0, 6, 7])


def test_ranges_skip_empty_devices() -> None:
    assert ranges(THREE) == (LayerRange("a/CPU", 0, 5), LayerRange("b/CPU", 6, 12))


def test_boundaries_are_cumulative() -> None:
    assert boundaries(THREE) == (0, 6)


@given(st.integers(0, 1), st.integers(-50, 50))
def test_a_boundary_stays_between_its_neighbours(index: int, position: int) -> None:
    moved = move_boundary(THREE, index, position)
    assert sum(counts(moved)) == 13
    assert min(counts(moved)) >= 0
    other = 1 - index
    assert boundaries(moved)[other] == boundaries(THREE)[other]


def test_a_boundary_goes_where_it_is_put() -> None:
    assert counts(move_boundary(THREE, 1, 9)) == (0, 9, 4)
    assert counts(move_boundary(THREE, 0, 2)) == (2, 4, 7)


def test_reordering_takes_the_layers_along() -> None:
    swapped = reorder(THREE, 1, 1)
    assert devices(swapped) == ("local/CPU", "b/CPU", "a/CPU")
    assert counts(swapped) == (0, 7, 6)


@pytest.mark.parametrize(("index", "by"), [(0, 1), (1, -1), (2, 1), (9, 1)])
def test_the_heads_cpu_stays_first(index: int, by: int) -> None:
    assert reorder(THREE, index, by) == THREE


@pytest.mark.parametrize(
    ("names", "wrong", "message"),
    [
        (["a", "b"], [6, 6], "sums to 12"),
        (["a", "b"], [6], "1 share for 2 devices"),
        (["a"], [6, 7], "2 shares for 1 device[.]"),
        (["a", "b"], [-1, 14], "negative"),
        (["a", "a"], [6, 7], "twice"),
    ],
)
def test_bad_splits_are_refused(
    names: list[str], wrong: list[int], message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        make_split(12, names, wrong)


def test_with_counts_is_checked() -> None:
    with pytest.raises(PlanError):
        with_counts(THREE, [1, 1, 1])


@given(st.integers(1, 200), st.integers(1, 16))
def test_even_counts_are_even(n_layer: int, n_devices: int) -> None:
    dealt = even_counts(n_layer, n_devices)
    assert sum(dealt) == n_layer + 1
    assert max(dealt) - min(dealt) <= 1


@pytest.mark.parametrize(
    ("layers", "text"),
    [((6, 12), "6–11 + output"), ((12, 12), "output"), ((3, 3), "3"), ((0, 5), "0–5")],
)
def test_ranges_read_well(layers: tuple[int, int], text: str) -> None:
    assert format_range(LayerRange("a", *layers), 12) == text
