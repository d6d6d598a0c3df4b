"""Columns of the split bar, for every width and split."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui.screens.cluster.split_bar import BarGeometry

counts = st.lists(st.integers(0, 60), min_size=1, max_size=9).map(tuple)
widths = st.integers(1, 220)


@given(width=widths, counts=counts)
def test_segments_and_handles_fill_the_bar_without_overlap(
    width: int, counts: tuple[int, ...]
) -> None:
    bar = BarGeometry(width, counts)
    edge = 0
    for index in range(len(counts)):
        start, end = bar.span(index)
        assert start == edge
        assert end >= start
        edge = end + 1 if index < len(counts) - 1 else end
    assert edge == max(width, len(counts) - 1)


@given(width=st.integers(17, 220), counts=counts)
def test_every_device_keeps_a_column(width: int, counts: tuple[int, ...]) -> None:
    bar = BarGeometry(width, counts)
    spans = [bar.span(index) for index in range(len(counts))]
    assert all(end > start for start, end in spans)


@given(width=st.integers(20, 220), counts=counts, data=st.data())
def test_a_handle_let_go_where_it_is_stays(
    width: int, counts: tuple[int, ...], data: st.DataObject
) -> None:
    bar = BarGeometry(width, counts)
    if not bar.positions or not bar.total:
        return
    index = data.draw(st.integers(0, len(bar.positions) - 1))
    back = bar.position_at(index, bar.handle_x(index))
    moved = list(bar.positions)
    # A narrow bar cannot tell neighbouring layers apart: the column must agree.
    assert bar._scaled(back) == bar._scaled(moved[index])
    if bar.spare >= bar.total:
        assert back == moved[index]


@pytest.mark.parametrize("x", [-50, 0, 40, 79, 500])
def test_positions_stay_within_the_layers(x: int) -> None:
    bar = BarGeometry(80, (26, 8, 14))
    assert 0 <= bar.position_at(0, x) <= 48


def test_neighbouring_columns_move_by_one_layer_at_most_on_a_wide_bar() -> None:
    bar = BarGeometry(120, (24, 24))
    positions = [bar.position_at(0, x) for x in range(120)]
    steps = [b - a for a, b in pairwise(positions)]
    assert set(steps) <= {0, 1}
    assert positions[0] == 0
    assert positions[-1] == 48


def test_the_nearest_handle_within_reach_is_found() -> None:
    bar = BarGeometry(80, (26, 8, 14))
    first, second = bar.handle_x(0), bar.handle_x(1)
    assert bar.boundary_near(first + 1) == 0
    assert bar.boundary_near(second - 1) == 1
    assert bar.boundary_near(first + 4) is None


def test_a_segment_is_found_by_its_columns() -> None:
    bar = BarGeometry(80, (26, 8, 14))
    for index in range(3):
        start, end = bar.span(index)
        assert {bar.segment_at(x) for x in range(start, end)} == {index}


def test_layers_are_marked_where_each_has_two_columns() -> None:
    wide, narrow = BarGeometry(60, (6, 7)), BarGeometry(20, (6, 7))
    assert len(wide.layer_edges(0)) == 5
    assert not narrow.layer_edges(1)


def test_one_device_has_no_handle() -> None:
    bar = BarGeometry(40, (13,))
    assert bar.positions == ()
    assert bar.span(0) == (0, 40)
    assert bar.boundary_near(20) is None
