"""The histogram of one command: where cells, marks and labels fall."""

from __future__ import annotations

import pytest
from textual.app import ComposeResult

from backends.state import LinkCommand
from tests.tui.helpers import text_of
from tests.tui.links import MINI, buckets
from tests.tui.stages import Stage
from tui.screens.traffic.detail import (
    NO_CALLS,
    NO_TIMES,
    Axis,
    TrafficDetail,
    axis_of,
    bars_of,
    heights_of,
    labels_of,
    place_of,
)
from tui.screens.traffic.table import TrafficRow

SLOW = buckets(4000, 9_800.0)


@pytest.mark.parametrize(
    ("times_us", "axis"),
    [
        ((), Axis(0, 6)),
        ((38.0, 410.0), Axis(1, 3)),
        ((9_800.0,), Axis(3, 5)),
        ((0.8, 2_000_000.0), Axis(-1, 7)),
        ((0.0, 3.0), Axis(-1, 1)),
        ((1_000.0, 1_000.0), Axis(3, 5)),
    ],
)
def test_an_axis_is_of_whole_decades(times_us: tuple[float, ...], axis: Axis) -> None:
    assert axis_of(times_us) == axis


def test_places_on_the_axis_are_powers_of_ten() -> None:
    axis = Axis(0, 6)
    assert [place_of(10.0**n, axis, 60) for n in range(6)] == list(range(0, 60, 10))
    assert place_of(0.01, axis, 60) == 0
    assert place_of(1e9, axis, 60) == 59


@pytest.mark.parametrize("room", [10, 39, 67, 240])
def test_every_call_is_in_some_cell(room: int) -> None:
    axis = axis_of([upper for upper, _ in SLOW])
    heights = heights_of(SLOW, axis, room)
    assert len(heights) == room
    assert sum(heights) == pytest.approx(sum(count for _, count in SLOW))


def test_a_bucket_wider_than_a_cell_leaves_no_gap() -> None:
    heights = heights_of(((10_485.759, 80),), Axis(3, 5), 400)
    filled = [at for at, height in enumerate(heights) if height]
    assert len(filled) > 5
    assert filled == list(range(filled[0], filled[-1] + 1))


def test_what_is_off_the_axis_counts_at_its_ends() -> None:
    heights = heights_of(((0.001, 3), (4.5e6, 2)), Axis(0, 6), 20)
    assert [heights[0], heights[-1]] == pytest.approx([3, 2])


def test_bars_are_to_scale_and_nothing_vanishes() -> None:
    assert bars_of([0, 1, 4, 8, 0.001], 2) == ["   █ ", " ▂██▁"]
    assert bars_of([0, 0], 2) == ["  ", "  "]


@pytest.mark.parametrize(
    ("axis", "room", "text"),
    [
        (Axis(0, 6), 60, "1 µs      10        100       1 ms      10        100"),
        (Axis(1, 3), 40, "10 µs               100"),
        (Axis(-1, 1), 40, "100 ns              1 µs"),
    ],
)
def test_labels_say_their_units(axis: Axis, room: int, text: str) -> None:
    assert labels_of(axis, room, room + 2).startswith(text)


def test_labels_that_collide_are_left_out() -> None:
    assert labels_of(Axis(0, 6), 12, 14) == "1 µs  1 ms 1 s"


class DetailStage(Stage):
    """One row in detail."""

    def __init__(self, figures: LinkCommand) -> None:
        super().__init__()
        self.detail = TrafficDetail()
        self.figures = figures

    def compose(self) -> ComposeResult:
        yield self.detail

    def on_mount(self) -> None:
        super().on_mount()
        self.detail.row = TrafficRow("mini", "GET_TENSOR", self.figures)


async def shown(figures: LinkCommand, width: int, height: int) -> list[str]:
    app = DetailStage(figures)
    async with app.run_test(size=(width, 24)) as pilot:
        app.detail.styles.height = height
        await pilot.pause()
        return text_of(app.detail).splitlines()


@pytest.mark.parametrize(("width", "height"), [(48, 20), (76, 5), (116, 8)])
async def test_marks_stand_under_their_bars(width: int, height: int) -> None:
    lines = await shown(MINI.commands["GET_TENSOR"], width, height)
    bars, marks, labels = lines[-4:-2], lines[-2], lines[-1]
    assert len(lines) == min(height, 3 + 12 + 2)
    assert bars[-1][marks.index("●")] == "█"
    assert bars[-1][marks.index("▲")] == "▁"
    assert labels.strip().startswith("1 ms")
    assert all(len(line) <= width for line in lines)
    assert any("┤" in line for line in lines)


async def test_a_command_without_replies_has_no_times() -> None:
    assert NO_TIMES in (await shown(LinkCommand(count=7), 76, 5))[0]
    assert NO_CALLS in (await shown(LinkCommand(), 76, 5))[0]


async def test_times_without_a_histogram_still_have_their_marks() -> None:
    figures = LinkCommand(count=3, p50_us=38.0, p99_us=410.0)
    lines = await shown(figures, 76, 8)
    assert lines[-2].index("●") < lines[-2].index("◆")
