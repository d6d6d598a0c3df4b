"""The strip of the Cluster screen: which figures, how wide, and the token bar."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from rich.style import Style
from textual.geometry import Region

from backends.link.figures import token_totals
from backends.state import (
    Acceptance,
    ClusterSnapshot,
    Generation,
    Link,
    Peer,
    PeerState,
    Speed,
)
from tests.kit.console import Started
from tests.tui import scenes
from tests.tui.helpers import resize, text_of, until
from tests.tui.links import BOX, MINI, PLAIN, link
from tui.model.facts import LiveFacts
from tui.model.quantities import (
    rate_text,
    rtt_text,
    totals_trips_text,
    trips_text,
)
from tui.screens.cluster.live_figures import (
    NO_TOKEN,
    NO_TOKEN_NOW,
    LiveColumn,
    LiveFigures,
    TokenBar,
    columns_of,
    columns_width,
    line_figures,
)
from tui.widgets.strips import StripWidget, changed_span, line

MANY = tuple(link(f"node{n}", 2.0 + n / 3, n / 3) for n in range(1, 8))


def serving(*links: Link, **facts: object) -> ClusterSnapshot:
    return replace(scenes.homelab_serving(), links=links, **facts)


def serving_many() -> ClusterSnapshot:
    """Seven workers, a few layers each."""
    peers = scenes.homelab_peers(PeerState.SERVING)[0], *(node(m.worker) for m in MANY)
    return replace(scenes.homelab_over(7, links=MANY), peers=peers)


def node(name: str) -> Peer:
    """A machine with one GPU that serves."""
    device = replace(scenes.BOX, id=f"{name}/CUDA0")
    return Peer(
        name=name,
        state=PeerState.SERVING,
        transport="ssh",
        rtt_ms=1.2,
        devices=(device,),
    )


def columns(snapshot: ClusterSnapshot, room: int, rows: int = 3) -> list[LiveColumn]:
    return columns_of(LiveFacts.of(snapshot), room, rows)


def labels(snapshot: ClusterSnapshot, room: int, rows: int = 3) -> list[list[str]]:
    found = columns(snapshot, room, rows)
    return [[figure.label for figure in column.figures] for column in found]


# --- which figures ------------------------------------------------------------------


def test_trips_and_bytes_are_of_all_workers_together() -> None:
    assert columns(serving(MINI, BOX), 116)[1].figures == (
        ("trips/tok", "2.0", False),
        ("up/tok", "23.8 KiB", False),
        ("down/tok", "16.4 KiB", False),
    )


SHARED = Generation(tokens_per_pass=18.2, trips_per_pass=5.1)
"""Four slots at work, and a draft that is mostly accepted."""
SHARING = tuple(
    replace(one, round_trips_per_token=0.28, generation=SHARED) for one in (MINI, BOX)
)


def test_trips_of_a_token_and_of_its_pass_have_room() -> None:
    for speed in (Speed(slots=4), Speed(slots=1, speculative=True)):
        for room in (56, 76, 116, 156):
            wire = columns(serving(*SHARING, speed=speed), room)[1]
            expected = ("0.56, 10.2/pass", 16) if room > 56 else ("0.56", 8)
            assert (wire.figures[0].value, wire.value_cells) == expected
    assert columns(serving(*SHARING), 116)[1].value_cells == 8


def test_the_less_room_the_fewer_figures_and_the_wire_goes_last() -> None:
    snapshot = serving(MINI, BOX)
    speed, wire = ["generate", "prompt", "context"], ["trips/tok", "up/tok", "down/tok"]
    links, house = ["mini", "box"], ["in flight", "memory", "up since"]
    processes = ["llama-server", "mini", "box"]
    assert labels(snapshot, 156) == [speed, wire, links, house, processes]
    assert labels(snapshot, 116) == [speed, wire, links, house]
    assert labels(snapshot, 76) == labels(snapshot, 56) == [speed, wire, links]
    assert labels(snapshot, 50) == [speed, wire]
    assert labels(snapshot, 30) == [speed]


def test_columns_leave_room_for_the_graph_or_count_links_or_say_all() -> None:
    for room in (56, 76, 96, 116, 156):
        taken = columns_width(columns(serving(*MANY), room)) - 2
        assert taken <= room
        assert room < 76 or taken <= room - 14
    for room, rows, shown in (
        (76, 3, [["node1", "node2", "+5"]]),
        (116, 3, [["node1", "node2", "node3"], ["node4", "node5", "+2"]]),
        (116, 9, [[f"node{n}" for n in range(1, 8)]]),
    ):
        found = labels(serving(*MANY), room, rows)
        assert [column for column in found if column[0].startswith("node")] == shown


def test_figures_keep_their_width() -> None:
    quiet = Link(worker="mini")
    fast = replace(MINI, bytes_per_s_up=1e9, bytes_per_s_down=2e9, rtt_ms=412.6)
    silent = replace(MINI, unanswered_ms=12_400.0)
    for room in (56, 76, 116, 156):
        widths = set()
        for one in (quiet, MINI, fast, silent, SHARING[0]):
            for speed in (Speed(), Speed(tok_per_s=213.2, ctx_used=130_000)):
                shown = columns(serving(one, speed=speed), room)
                widths.add(tuple((c.label_cells, c.value_cells) for c in shown))
                for column in shown:
                    for figure in column.figures:
                        assert len(figure.value) <= column.value_cells, figure
        assert len(widths) == 1


def test_what_is_not_known_is_a_dash() -> None:
    new = Link(worker="a")
    assert rtt_text(None) == rate_text(new) == trips_text(new) == "—"
    wire = columns(serving(MINI, PLAIN), 116)[1]
    assert {figure.value for figure in wire.figures} == {"—"}


def test_a_worker_without_an_answer_is_shown_as_silent() -> None:
    silent = replace(MINI, unanswered_ms=12_400.0)

    def shown(room: int) -> list[str]:
        found = columns(serving(silent), room)
        return [f.value.strip() for c in found for f in c.figures if f.warn]

    assert shown(156) == ["silent 12 s"]
    assert shown(56) in ([], ["12 s"])


# --- on the screen ----------------------------------------------------------------


FOUR = Generation(tokens_per_pass=4.0, trips_per_pass=1.1)
"""Of four slots."""


async def test_the_strip_says_what_a_token_costs(started: Started) -> None:
    async with started(serving(MINI, BOX)) as (pilot, app, cluster):
        bar, live = app.query_one(TokenBar), app._home.live
        await until(pilot, lambda: bar.size.width)
        figures = text_of(app.query_one(LiveFigures)).splitlines()
        speed, prompt, context = figures
        assert " ".join(speed.split()) == (
            "generate 21.3 tok/s trips/tok 2.0 mini RTT 3.10 ms 0.44 MB/s in flight 1"
        )
        assert prompt.split()[3:9] == ["up/tok", "23.8", "KiB", "box", "RTT", "420"]
        said = ["context", "1204/8192", "down/tok", "16.4", "KiB"]
        assert context.split()[:5] == said
        assert text_of(bar).endswith("p50   46.0 ms   p99   61.2 ms")
        app._home.go_to("split")
        await pilot.press("greater_than_sign")
        await pilot.pause()
        assert "B mini" in text_of(bar), "in the colours of the split"
        four = [replace(one, generation=FOUR) for one in (MINI, BOX)]
        cluster.push(serving(*four, seq=8))
        shared = "4.0 tok/pass   p50   46.0 ms   p99   61.2 ms"
        await until(pilot, lambda: text_of(bar).endswith(shared))
        cluster.push(serving(MINI, PLAIN, seq=9))
        # Time that nobody reads is not given to the head alone.
        await until(pilot, lambda: "A head + attic 32.6" in text_of(bar))
        paired = replace(
            MINI, mode="pair", wire_bytes_up=1 << 20, wire_bytes_down=1 << 20
        )
        drafted = Acceptance(drafted=8, accepted=6, passes=1)
        accepting = Speed(tok_per_s=40.0, acceptance=drafted)
        cluster.push(serving(paired, BOX, speed=accepting, seq=10))
        frame = "75 % of the draft accepted · 1 pair · crossed"
        await until(pilot, lambda: str(live.border_subtitle).startswith(frame))


async def test_the_bar_is_the_head_then_each_worker(started: Started) -> None:
    async with started(serving(MINI, BOX), size=(160, 36)) as (pilot, app, cluster):
        shown = app.query_one(TokenBar)
        await until(pilot, lambda: shown.size.width)
        bar = text_of(shown)
        parts = ("A head 26.5", "B mini 9.80", "C box 5.20")
        order = [bar.index(text) for text in parts]
        assert order == sorted(order)
        marks = [bar.index(text) for text in ("A head", "░", "B mini", "▒")]
        assert marks == sorted(marks)
        assert bar.rindex("C box") < bar.rindex("─")
        cluster.push(replace(serving_many(), seq=9))
        await until(pilot, lambda: "H" in text_of(shown))
        for width in (60, 80, 100, 120, 160):
            await resize(pilot, width, 36)
            bar = text_of(shown)
            assert len(bar) == width - 4
            assert bar.index("A") < bar.index("B") < bar.index("H") < bar.index("p99")


async def test_it_says_why_there_is_no_bar(started: Started) -> None:
    off = replace(scenes.HOMELAB_PLAN, relay=False)
    before = Link(worker="mini", round_trips_per_token=1.0)
    reasons = (
        (serving(Link(worker="mini"), seq=11), NO_TOKEN),
        (serving(PLAIN, seq=12), "not metered: command 23 is unknown"),
        (serving(before, seq=13), NO_TOKEN_NOW),
    )
    async with started(serving(plan=off), size=(80, 36)) as (pilot, app, cluster):
        bar, figures = app.query_one(TokenBar), app.query_one(LiveFigures)
        await until(pilot, lambda: "with --relay off" in text_of(bar))
        assert "trips/tok" not in text_of(figures)
        for snapshot, said in reasons:
            cluster.push(snapshot)
            await until(pilot, lambda: said in text_of(bar))  # noqa: B023


async def test_everything_shows_whole_at_the_least_sizes(started: Started) -> None:
    async with started(serving(MINI, BOX), size=(80, 24)) as (pilot, app, cluster):
        bar, live = app.query_one(TokenBar), app._home.live
        app._home.go_to("live")
        for seq, size in ((10, (80, 24)), (12, (60, 18))):
            await resize(pilot, *size)
            cluster.push(serving(MINI, BOX, seq=seq))
            await until(pilot, lambda: live.has_focus and "p99" in text_of(bar))
            assert live.content_region.contains_region(bar.region)
            assert live.max_scroll_y == 0
            assert "…" not in text_of(app.query_one(LiveFigures)) + text_of(bar)
            cluster.push(serving(seq=seq + 1))
            # The graph takes the room of the links.
            await until(pilot, lambda: live.graph.size.width > 30)


# --- what is painted ----------------------------------------------------------------


def test_a_span_is_where_lines_differ() -> None:
    old = line([("ab 日 cd", Style())], 8)
    for text, span in (("ab 日 cd", None), ("ab 日 cx", (7, 8)), ("xb 日 cx", (0, 8))):
        assert changed_span(old, line([(text, Style())], 8)) == span


async def test_only_changed_cells_are_painted(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    painted: list[tuple[str, tuple[Region, ...]]] = []
    refresh = StripWidget.refresh

    def spy(self: StripWidget, *regions: Region, **options: bool) -> StripWidget:
        painted.append((type(self).__name__, regions))
        return refresh(self, *regions, **options)

    async with started(serving(MINI, BOX)) as (pilot, app, cluster):
        monkeypatch.setattr(StripWidget, "refresh", spy)
        slower = replace(MINI, rtt_ms=3.4)
        cluster.push(serving(slower, BOX, seq=9))
        await until(pilot, lambda: "3.40" in text_of(app.query_one(LiveFigures)))
        of_strip = [one for one in painted if one[0] in {"LiveFigures", "TokenBar"}]
        assert [name for name, _ in of_strip] == ["LiveFigures"]
        (region,) = of_strip[0][1]
        assert (region.y, region.height) == (0, 1)
        assert region.width <= 2


def test_trips_of_a_token_and_of_a_pass_where_they_differ() -> None:
    for tokens_per_pass, of_all, of_one in (
        (None, "2.0", "1.0"),
        (1.0, "2.0", "1.0"),
        (4.0, "0.50, 2.0/pass", "0.25, 1.0/pass"),
    ):
        made = {
            "round_trips_per_token": 1.0 / (tokens_per_pass or 1.0),
            "generation": Generation(
                tokens_per_pass=tokens_per_pass, trips_per_pass=1.0
            ),
        }
        links = [replace(one, **made) for one in (MINI, BOX)]
        snapshot = serving(*links, speed=Speed(slots=4))
        assert totals_trips_text(token_totals(links)) == of_all
        assert of_all in {figure.value for figure in columns(snapshot, 118)[1].figures}
        figures = dict(line_figures(LiveFacts.of(snapshot)))
        assert figures["trips/tok"].strip() == of_all
        assert trips_text(links[0]) == of_one


def test_each_link_says_how_data_go_where_some_go_elsewhere() -> None:
    far = replace(MINI, way="direct")
    by_ssh = replace(BOX, way="tunnel")
    for room in (156, 116, 96):
        assert ["mini direct", "box  tunnel"] in labels(serving(far, by_ssh), room)
    assert ["mini", "box"] in labels(serving(far, by_ssh), 76)
    here = [replace(link, way="local") for link in (MINI, BOX)]
    assert labels(serving(*here), 116) == labels(serving(MINI, BOX), 116)
    down = replace(far, way="")
    assert ["mini ", "box  tunnel"] in labels(serving(down, by_ssh), 116)


def test_a_short_round_trip_keeps_its_figures() -> None:
    told = {0.0421: "42 µs", 0.0994: "99 µs", 0.11: "110 µs", 3.1: "3.10 ms"}
    assert {rtt_ms: rtt_text(rtt_ms) for rtt_ms in told} == told


def test_throughput_keeps_three_figures() -> None:
    def text(up: float, down: float) -> str:
        return rate_text(Link(worker="a", bytes_per_s_up=up, bytes_per_s_down=down))

    assert text(0, 0) == "0.00 MB/s"
    assert text(250_000, 170_000) == "0.42 MB/s"
    assert text(20e6, 4e6) == "24.0 MB/s"
    assert text(900e6, 400e6) == "1300 MB/s"
    assert rate_text(MINI, each_way=True) == "↑0.26 ↓0.18 MB/s"
