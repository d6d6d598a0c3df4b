"""The Traffic screen: sorting, filtering, pausing, rows, and the histogram of one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
from msgspec.structs import replace
from textual.app import ComposeResult
from textual.pilot import Pilot

from backends.state import (
    Acceptance,
    Generation,
    LastRun,
    Link,
    LinkCommand,
    RunPart,
    Speed,
)
from tests.tui.helpers import burst, resize, screen_text, text_of, until
from tests.tui.links import BOX, MINI, PLAIN, buckets
from tests.tui.stages import ScreenStage, Stage
from tests.tui.test_live_strip import serving as traffic
from tui.model.quantities import us_text
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
from tui.screens.traffic.screen import (
    COLUMNS,
    NAME_CELLS,
    LinkFigures,
    TrafficScreen,
    alerts_of,
)
from tui.screens.traffic.table import TrafficRow, TrafficTable
from tui.widgets.inputs import FilterBar


class Traffic(ScreenStage):
    """The Traffic screen with these links."""

    def __init__(self, *links: Link) -> None:
        self.traffic = TrafficScreen()
        super().__init__(self.traffic)
        self.links = links

    @property
    def table(self) -> TrafficTable:
        return self.traffic.table

    def rows(self, column: int = 1) -> list[str]:
        count = range(self.table.row_count)
        return [self.table.get_row_at(row)[column].plain.strip() for row in count]

    async def fill(self, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: self.traffic.is_mounted)
        self.traffic.show_snapshot(traffic(*self.links))
        rows = sum(len(link.commands) for link in self.links)
        await until(pilot, lambda: self.table.row_count == rows)


@asynccontextmanager
async def filled(
    *links: Link, width: int = 120
) -> AsyncIterator[tuple[Traffic, Pilot[None]]]:
    app = Traffic(*links)
    async with app.run_test(size=(width, 36)) as pilot:
        await app.fill(pilot)
        yield app, pilot


async def test_the_last_run_and_what_a_draft_brings() -> None:
    run = LastRun(
        at=1.0,
        parts=(
            RunPart(name="studio", compute_ms=20.0, predicted_compute_ms=25.0),
            RunPart(
                name="mini",
                compute_ms=10.0,
                predicted_compute_ms=8.0,
                network_ms=3.0,
                predicted_network_ms=3.001,
            ),
            RunPart(name="box", compute_ms=7.0, predicted_compute_ms=14.0),
        ),
    )
    async with filled(MINI, BOX) as (app, pilot):
        table = app.traffic.last_run
        assert not table.display
        shown = replace(traffic(*app.links), last_run=run)
        app.traffic.show_snapshot(shown)
        await until(pilot, lambda: table.size.height == 5)
        # The legend stays above a row for each worker.
        assert app.traffic.waterfall.size.height >= 4
        rows = [row.split() for row in text_of(table).splitlines()]
        _, studio, mini, _, whole = rows
        assert studio == ["studio", "20.0", "~25.0", "−20", "%"]
        assert mini == ["mini", "10.0", "~8.00", "+25", "%", "3.00", "~3.00"]
        assert whole == ["a", "pass", "40.0", "~50.0", "−20", "%"]
        made = Generation(tokens_per_pass=4.0, trips_per_pass=1.0, tokens_from="server")
        shared = replace(MINI, generation=made)
        speed = Speed(acceptance=Acceptance(drafted=8, accepted=6, passes=1))
        app.traffic.show_snapshot(replace(traffic(shared), speed=speed))
        await until(pilot, lambda: "latest pass, 4.0 tok/pass" in screen_text(app))
        assert "75 % of the draft accepted" in screen_text(app)


def link_of(name: str, **counts: int) -> Link:
    commands = {command: LinkCommand(count=n) for command, n in counts.items()}
    return Link(worker=name, commands=commands)


async def test_median_worker_export_copy_and_order() -> None:
    async with filled(MINI, BOX) as (app, pilot):
        await pilot.press("v", "w", "x")
        await pilot.pause()
        assert app.traffic.waterfall.median
        assert app.traffic.waterfall.chosen == "mini"
        assert app.exports == 1
        copied = app.traffic.copyable()
        assert copied is not None
        assert copied.text.startswith("mini GET_ALIGNMENT: count 14, up 9 B")
        await pilot.press("j")
        assert app.table.pointed is not None
        assert app.table.pointed.command == "GET_TENSOR"
        await pilot.press("o", "o")
        assert app.table.order.column == "count"
        counts = [int(text.replace(" ", "")) for text in app.rows(2)]
        assert counts == sorted(counts, reverse=True)
        assert app.table.pointed.command == "GET_TENSOR"
        assert "▼count" in screen_text(app)
        await pilot.press("O")
        assert [int(text.replace(" ", "")) for text in app.rows(2)] == counts[::-1]
        assert "▲count" in screen_text(app)
        await pilot.click(TrafficTable, offset=(13, 0))
        await until(pilot, lambda: app.table.order.column == "command")
        assert app.rows() == sorted(app.rows())
        await pilot.press("o")
        for counts_now in ({"A": 5, "B": 9}, {"A": 50, "B": 9, "C": 1}, {"B": 9}):
            app.traffic.show_snapshot(traffic(link_of("mini", **counts_now)))
            largest = sorted(counts_now, key=counts_now.__getitem__, reverse=True)
            await until(pilot, lambda: app.rows() == largest)  # noqa: B023


async def test_who_scrolls_away_from_the_cursor_stays_there_while_data_comes() -> None:
    """As the wheel does; a key brings the view back to the cursor."""
    names = [f"COMMAND_{n:02}" for n in range(60)]
    app = Traffic(link_of("mini", **dict.fromkeys(names, 5)))

    def shows(count: str) -> bool:
        return app.rows(2)[0] == count

    async with app.run_test(size=(120, 36)) as pilot:
        await app.fill(pilot)
        await until(pilot, lambda: app.table.max_scroll_y > 0)
        app.table.scroll_to(y=20, animate=False)
        await until(pilot, lambda: app.table.scroll_offset.y == 20)
        for count in range(6, 9):
            counts = dict.fromkeys(names, 5) | {names[0]: count, names[40]: count}
            app.traffic.show_snapshot(traffic(link_of("mini", **counts)))
            await until(pilot, partial(shows, str(count)))
            assert app.table.scroll_offset.y == 20
        await pilot.press("o", "o")
        await until(pilot, lambda: app.table.scroll_offset.y == 0)
        app.table.scroll_to(y=20, animate=False)
        await until(pilot, lambda: app.table.scroll_offset.y == 20)
        await pilot.press("j")
        await until(pilot, lambda: app.table.scroll_offset.y < 20)


def test_the_figures_of_links_fit_where_they_appear() -> None:
    shared = Link(worker="mini", generation=Generation(tokens_per_pass=4.0))
    for link in (shared, replace(shared, wire_bytes_up=1)):
        wanted = [column for column in COLUMNS if column.needs(link)]
        for width in range(58, 220):
            cells = [c.width for c in wanted if c.from_width <= width]
            assert NAME_CELLS + sum(cells) <= width


async def test_the_filter_keeps_rows_with_every_word() -> None:
    async with filled(MINI, BOX) as (app, pilot):
        await burst(pilot, "slash", *"box graph")
        await until(pilot, lambda: app.table.row_count == 2)
        assert app.rows() == ["GRAPH_COMPUTE", "GRAPH_RECOMPUTE"]
        assert "2 of 10 rows" in screen_text(app)
        assert "frozen" not in screen_text(app)
        await pilot.press("enter")
        assert app.focused is app.table
        await pilot.press("escape")
        assert app.table.row_count == 10
        assert not app.traffic.query_one(FilterBar).has_class("-open")
        await burst(pilot, "slash", *"[zz")
        await until(pilot, lambda: "No row has “[zz”" in screen_text(app))
        await pilot.press("escape", "w")
        odd = replace(link_of("[red]x", **{"[/]": 3}), refused=2)
        app.traffic.show_snapshot(traffic(odd))
        await until(pilot, lambda: "[red]x: 2 refused" in screen_text(app))
        assert app.rows() == ["[/]"], "names are no markup"


async def test_the_detail_follows_the_cursor_and_the_figures() -> None:
    async with filled(MINI) as (app, pilot):
        detail = app.traffic.query_one(TrafficDetail)
        await pilot.press("j")
        await until(pilot, lambda: "mini GET_TENSOR" in text_of(detail))
        lines = text_of(detail).splitlines()
        assert "p50 9.80 ms" in lines[1]
        marks, labels = lines[-2:]
        assert marks.index("●") < marks.index("◆") < marks.index("▲")
        assert labels.index("1 ms") < marks.index("●") <= labels.index("10 ")
        assert len(lines) == detail.content_size.height == 8
        slower = LinkCommand(count=1, p50_us=20_000, p99_us=20_000, max_us=20_000)
        commands = MINI.commands | {"GET_TENSOR": slower}
        link = replace(MINI, commands=commands)
        app.traffic.show_snapshot(traffic(link))
        await until(pilot, lambda: "p50 20.0 ms" in text_of(detail))
        await pilot.press("j")
        await until(pilot, lambda: NO_TIMES in text_of(detail))


async def test_a_pair_tells_what_stayed_home_and_what_crossed() -> None:
    paired = replace(
        MINI,
        mode="pair",
        way="direct",
        why="mini has the model on disk",
        bytes_up=1 << 30,
        bytes_down=10 << 20,
        wire_bytes_up=3 << 20,
        wire_bytes_down=11 << 20,
        weight_bytes_home=1 << 29,
        weight_bytes_sent=0,
    )
    async with filled(paired, PLAIN, width=190) as (app, pilot):
        await until(pilot, lambda: "crossed up" in screen_text(app))
        head, mini, _ = text_of(app.traffic.query_one(LinkFigures)).splitlines()
        assert head.split()[-7:-2] == ["home", "crossed", "up", "crossed", "down"]
        assert "512 MiB" in mini
        assert "3.0 MiB of 1.0 GiB" in mini
        assert "11.0 of 10.0 MiB" in mini
        assert mini.split()[1:3] == ["pair", "direct"]
        assert mini.rstrip().endswith("mini has the model on disk")
        moving = replace(MINI, bytes_per_s_up=400_000.0, bytes_per_s_down=100_000.0)
        still = replace(PLAIN, bytes_per_s_up=0, bytes_per_s_down=0)
        app.traffic.show_snapshot(traffic(moving, still))
        await until(pilot, lambda: "crossed up" not in screen_text(app))
        _, mini, attic = text_of(app.traffic.query_one(LinkFigures)).splitlines()
        assert mini.split()[:5] == ["mini", "metered", "8.0.0", "3.10", "ms"]
        assert "0.50" in mini.split()
        assert "plain  command 23 is unknown · 0.00 MB/s" in attic
        assert "attic: 1 waiting" in screen_text(app)


async def test_each_command_tells_what_crossed_for_it() -> None:
    said = {
        "GRAPH_COMPUTE": LinkCommand(
            count=5, bytes_up=1000, wire_bytes_up=40, wire_bytes_down=0
        ),
        "HELLO": LinkCommand(
            count=1, bytes_up=10, bytes_down=10, wire_bytes_up=17, wire_bytes_down=18
        ),
        "GET_MAX_SIZE": LinkCommand(wire_bytes_up=0, wire_bytes_down=36),
    }
    whole = {"wire_bytes_up": 60, "wire_bytes_down": 58}
    own = {"overhead_bytes_up": 3, "overhead_bytes_down": 4}
    paired = replace(MINI, commands=said, **whole, **own)
    async with filled(MINI) as (app, pilot):
        assert "crossed" not in app.table.column_keys
        app.traffic.show_snapshot(traffic(paired))
        await until(pilot, lambda: "crossed" in app.table.column_keys)
        crossed = app.table.column_keys.index("crossed")
        shown = dict(zip(app.rows(), app.rows(crossed), strict=True))
        assert shown == {
            "GET_MAX_SIZE": "36 B",
            "GRAPH_COMPUTE": "40 B   4%",
            "HELLO": "35 B ×1.8",
            "(link itself)": "7 B",
        }


def test_times_keep_three_figures() -> None:
    values = (None, 0.8, 38, 999.6, 9_800, 99_960, 1_200_000)
    texts = ["—", "0.8 µs", "38 µs", "1.00 ms", "9.80 ms", "100 ms", "1.20 s"]
    assert [us_text(value) for value in values] == texts


def test_alerts_name_what_is_wrong() -> None:
    assert alerts_of([MINI]) == ""
    link = Link(worker="a", refused=2, waiting=("x", "y"))
    assert alerts_of([link]) == "a: 2 refused · a: 2 waiting"
    assert alerts_of([Link(worker="a", unanswered_ms=3200.0)]) == "a: silent 3 s"


# --- the histogram of one command -----------------------------------------------------


SLOW = buckets(4000, 9_800.0)


def test_an_axis_is_of_whole_decades() -> None:
    axes: dict[tuple[float, ...], Axis] = {
        (): Axis(0, 6),
        (38.0, 410.0): Axis(1, 3),
        (9_800.0,): Axis(3, 5),
        (0.8, 2_000_000.0): Axis(-1, 7),
        (0.0, 3.0): Axis(-1, 1),
        (1_000.0, 1_000.0): Axis(3, 5),
    }
    assert {times_us: axis_of(times_us) for times_us in axes} == axes


def test_places_on_the_axis_are_powers_of_ten() -> None:
    axis = Axis(0, 6)
    assert [place_of(10.0**n, axis, 60) for n in range(6)] == list(range(0, 60, 10))
    assert place_of(0.01, axis, 60) == 0
    assert place_of(1e9, axis, 60) == 59


def test_every_call_is_in_some_cell() -> None:
    axis = axis_of([upper for upper, _ in SLOW])
    for room in (10, 39, 67, 240):
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


def test_labels_say_their_units_and_do_not_collide() -> None:
    for axis, room, text in (
        (Axis(0, 6), 60, "1 µs      10        100       1 ms      10        100"),
        (Axis(1, 3), 40, "10 µs               100"),
        (Axis(-1, 1), 40, "100 ns              1 µs"),
    ):
        assert labels_of(axis, room, room + 2).startswith(text)
    assert labels_of(Axis(0, 6), 12, 14) == "1 µs  1 ms 1 s"


class DetailStage(Stage):
    """One row in detail."""

    def __init__(self, figures: LinkCommand, height: int) -> None:
        super().__init__()
        self.detail = TrafficDetail()
        self.detail.styles.height = height
        self.figures = figures

    def compose(self) -> ComposeResult:
        yield self.detail

    def on_mount(self) -> None:
        super().on_mount()
        self.detail.row = TrafficRow("mini", "GET_TENSOR", self.figures)


async def test_marks_stand_under_their_bars_if_there_are_any() -> None:
    app = DetailStage(MINI.commands["GET_TENSOR"], 5)
    async with app.run_test(size=(76, 24)) as pilot:

        async def shown(figures: LinkCommand, width: int, height: int) -> list[str]:
            app.detail.styles.height = height
            app.detail.row = TrafficRow("mini", "GET_TENSOR", figures)
            await resize(pilot, width, 24)
            await until(pilot, lambda: app.detail.size == (width, height))
            return text_of(app.detail).splitlines()

        for width, height in ((48, 20), (76, 5), (116, 8)):
            lines = await shown(MINI.commands["GET_TENSOR"], width, height)
            bars, marks, labels = lines[-4:-2], lines[-2], lines[-1]
            assert len(lines) == min(height, 3 + 12 + 2)
            assert bars[-1][marks.index("●")] == "█"
            assert bars[-1][marks.index("▲")] == "▁"
            assert labels.strip().startswith("1 ms")
            assert all(len(line) <= width for line in lines)
            assert any("┤" in line for line in lines)
        assert NO_TIMES in (await shown(LinkCommand(count=7), 76, 5))[0]
        assert NO_CALLS in (await shown(LinkCommand(), 76, 5))[0]
        lines = await shown(LinkCommand(count=3, p50_us=38.0, p99_us=410.0), 76, 8)
        assert lines[-2].index("●") < lines[-2].index("◆"), "without a histogram"
