"""Each widget alone: what it shows of a snapshot, at any width."""

from __future__ import annotations

from msgspec.structs import replace
from textual.pilot import Pilot

from backends.state import (
    ClusterSnapshot,
    ClusterState,
    Failure,
    MeasuredSplit,
    PeerState,
    RolledBack,
    Speed,
    StepState,
)
from tests.kit.console import Started
from tests.tui import scenes
from tests.tui.helpers import resize, screen_text, settled, text_of, until
from tui.model.edit import marks_for
from tui.model.editor import PlanEditor
from tui.model.facts import LiveFacts
from tui.model.names import letter
from tui.model.plan_words import verdict
from tui.model.quantities import common_unit, in_unit, part_of, short_part_of
from tui.model.trends import RateHistory
from tui.screens.cluster.live_figures import LiveFigures, TokenBar
from tui.screens.cluster.live_pane import StepList, evidence_text, exit_text
from tui.screens.cluster.peers_pane import PeerList
from tui.screens.cluster.split_pane import LoadTable, Standing
from tui.screens.lab.links import LinkHeading
from tui.screens.traffic.detail import TrafficDetail
from tui.screens.traffic.screen import LinkFigures
from tui.widgets.rate_graph import axis_top
from tui.widgets.strips import StripWidget, bar_cells, clip, fitting

GIB, MIB = scenes.GIB, scenes.MIB


# --- numbers -------------------------------------------------------------------


def test_parts_of_memory() -> None:
    for part, whole, text, short in (
        (9.7 * GIB, 55 * GIB, "9.7 of 55.0 GiB", "9.7/55 GiB"),
        (36.1 * MIB, 11 * GIB, "36.1 MiB of 11.0 GiB", "36 MiB/11 GiB"),
        (0, 11 * GIB, "0.0 of 11.0 GiB", "0/11 GiB"),
        (180 * GIB, 512 * GIB, "180 of 512 GiB", "180/512 GiB"),
        (100, 900, "0.1 of 0.9 KiB", "0.1/0.9 KiB"),
    ):
        assert (part_of(part, whole), short_part_of(part, whole)) == (text, short)
    assert [common_unit(n * GIB) for n in (0.6, 0.4)] == ["GiB", "MiB"]
    assert in_unit(0.4 * GIB, "MiB") == "410"


def test_bars_are_full_only_when_memory_is() -> None:
    cells = {0: 0, 0.001: 1, 9.99: 7, 10: 8, 12: 8}
    assert {part: bar_cells(part, 10, 8) for part in cells} == cells
    assert bar_cells(1, 0, 8) == 0


def test_texts_are_cut_to_columns() -> None:
    assert [clip(text, 4) for text in ("abcdef", "ab", "日本語")] == [
        "abc…",
        "ab  ",
        "日 …",
    ]
    assert clip("x", 0) == ""
    assert fitting(("long one", "short"), 6) == "short"
    assert fitting(("long one",), 3) == ""


def test_letters_stay_with_their_devices() -> None:
    assert [letter(n) for n in (0, 25, 26)] == ["A", "Z", "a"]
    split = scenes.HOMELAB_PLAN.split
    turned = replace(split, shares=split.shares[::-1])
    marks = marks_for((), split)
    assert marks_for(marks, turned) == marks
    assert marks_for(marks, scenes.DEMO_PLAN.split)[0] == "local/CPU"


# --- editor and verdict ------------------------------------------------------------


def editor_of(snapshot: ClusterSnapshot) -> PlanEditor:
    editor = PlanEditor()
    editor.take(snapshot)
    return editor


def test_the_draft_stays_the_same_object_while_nothing_changes() -> None:
    editor = editor_of(scenes.homelab_serving())
    first = editor.edit
    editor.take(replace(scenes.homelab_serving(), seq=9))
    assert editor.edit is first


def test_workers_to_be_started_show_as_peers_with_this_machines_memory() -> None:
    editor = editor_of(scenes.idle())
    editor.put(scenes.DEMO_PLAN, scenes.DEMO)
    assert [peer.name for peer in editor.peers] == ["local", "worker1", "worker2"]
    assert editor.devices[1].free_bytes == scenes.CPU.free_bytes
    assert editor.devices[1].memory_pool == "local"


MISMATCH = "mini/MTL0 holds 26–32, planned 26–33"
WRONG = replace(
    scenes.homelab_serving(), measured=MeasuredSplit(layers=(), mismatches=(MISMATCH,))
)

WITHOUT_IT = "mini is gone: went on without it"
BACK = replace(
    scenes.homelab_serving(),
    message="The launch failed (no memory): back to the plan before it",
    rolled_back=RolledBack(generation=2, failure=Failure(what="no memory")),
)


def test_verdicts() -> None:
    for snapshot, tone, part in (
        (scenes.homelab_serving(), "ok", "✓ layers as planned"),
        (scenes.demo_starting(), "dim", "launching"),
        (scenes.demo_failed(), "warn", "not running yet"),
        (WRONG, "bad", MISMATCH),
        (replace(WRONG, message=WITHOUT_IT), "bad", MISMATCH),
        (replace(scenes.homelab_serving(), message=WITHOUT_IT), "warn", WITHOUT_IT),
        (BACK, "warn", "launch failed, back to this: no memory"),
    ):
        editor = editor_of(snapshot)
        found = verdict(editor.edit, editor.plan, editor.snapshot)
        assert found.tone == tone
        assert part in found.text
    editor.put(scenes.DEMO_PLAN, scenes.DEMO)
    found = verdict(editor.edit, editor.plan, editor.snapshot)
    assert "another model runs" in found.text


# --- live ---------------------------------------------------------------------------


def test_the_live_pane_shows_what_the_state_calls_for() -> None:
    views = dict.fromkeys(ClusterState, "busy")
    views |= {ClusterState.IDLE: "idle", ClusterState.SERVING: "serving"}
    views |= {ClusterState.FAILED: "idle"}
    for state, view in views.items():
        snapshot = replace(scenes.idle(), state=state)
        assert LiveFacts.of(snapshot).view == view
        failed = replace(snapshot, failure=Failure(what="x"))
        assert LiveFacts.of(failed).view == view.replace("idle", "failed")


def test_one_column_per_second_and_one_gap_per_pause() -> None:
    history = RateHistory()
    for at, rate in [(10.0, 5.0), (10.5, 6.0), (11.0, 7.0)]:
        assert history.push(at, rate)
    assert not history.push(11.2, 7.0)
    assert history.push(12.0, None)
    for at in (13.0, 14.0, 60.0):
        assert not history.push(at, None)
    assert history.push(61.0, 8.0)
    assert list(history.columns) == [6.0, 7.0, None, 8.0]
    for second in range(10_000):
        history.push(second, 1.0)
    assert len(history.columns) == 400


def test_the_axis_ends_at_a_round_number() -> None:
    tops = {0: 5, 5: 5, 5.1: 10, 21: 30, 75: 75, 76: 100, 180: 200, 990: 1000}
    assert {largest: axis_top(largest) for largest in tops} == tops


def test_how_a_process_ended() -> None:
    assert exit_text(Failure(what="x")) == ""
    assert exit_text(Failure(what="x", exit_code=0)) == "exit code 0"
    words = {9: "killed by SIGKILL", 999: "killed by signal 999"}
    for signal, text in words.items():
        assert exit_text(Failure(what="x", exit_signal=signal)) == text


def test_a_failure_is_copied_whole() -> None:
    failure = scenes.demo_failed().failure
    assert failure is not None
    text = evidence_text(failure)
    assert text.splitlines()[0] == failure.what
    assert "exit code 1" in text
    assert text.endswith("[Address already in use]")


async def test_the_controller_is_quoted_while_nothing_runs(started: Started) -> None:
    text = "No llama.cpp found. dllm-tui engine build makes one."
    snapshot = replace(scenes.idle(), message=text)
    async with started(snapshot, size=(80, 24), wait=False) as (pilot, app, _):
        await until(pilot, lambda: text in screen_text(app))


# --- on a screen --------------------------------------------------------------------


async def test_lines_are_as_wide_as_their_pane(started: Started) -> None:
    async with started() as (pilot, app, _):
        rows = text_of(app.query_one(LoadTable)).splitlines()
        assert rows[0].index("buffers") + len("buffers") == rows[1].index(" = ")
        await resize(pilot, 120, 28)
        await until(pilot, lambda: "0.5 KV" in text_of(app.query_one(LoadTable)))
        for width in (60, 80, 100, 120, 160, 200):
            await resize(pilot, width, 36)
            for widget in app.screen.query("LoadTable, PeerList, StatusLine, KeyBar"):
                if not widget.display or not widget.content_size.width:
                    continue
                for strip in widget.lines():  # type: ignore[attr-defined]
                    assert strip.cell_length == widget.content_size.width, widget


async def test_the_selected_peer_scrolls_into_view(started: Started) -> None:
    peers = tuple(
        replace(peer, name=f"{peer.name}{n}")
        for n in range(5)
        for peer in scenes.homelab_peers(PeerState.SERVING)
    )
    snapshot = replace(scenes.homelab_serving(), peers=peers)
    async with started(snapshot) as (pilot, app, _):
        app._home.go_to("peers")
        await pilot.press("G")
        await until(pilot, lambda: app._home.peers.scroll_y > 0)
        assert app.query_one(PeerList).selected == len(app.editor.peers) - 1
        await pilot.press("k", "up", "g")
        await until(pilot, lambda: app._home.peers.scroll_y == 0)


async def test_a_failure_can_be_selected_with_the_mouse(started: Started) -> None:
    async with started(scenes.demo_failed(), wait=False) as (pilot, app, _):
        panel = app._home.live._failure
        await until(pilot, lambda: panel.size.height > 1)
        first, second = text_of(panel).splitlines()[:2]
        await pilot.mouse_down(panel, offset=(2, 0))
        await pilot.hover(panel, offset=(4, 1))
        await pilot.mouse_up(panel, offset=(4, 1))
        selected = app.screen.get_selected_text()
        assert selected is not None
        assert selected.startswith(f"{first[2:]}\n{second[:4]}")
        look = app.screen.get_component_rich_style("screen--selection")
        grounds = [s.style.bgcolor for s in panel.render_line(0) if s.style]
        assert look.bgcolor in grounds
        await pilot.press("ctrl+c")
        assert app.clipboard == selected


async def test_text_to_read_can_be_selected(started: Started) -> None:
    widgets: dict[str, list[type[StripWidget]]] = {
        "cluster": [Standing, LiveFigures],
        "traffic": [LinkFigures, TrafficDetail],
        "lab": [LinkHeading],
    }
    async with started() as (pilot, app, _):
        for mode, kinds in widgets.items():
            await app.action_show_mode(mode)
            await settled(pilot)
            for kind in kinds:
                await select_in(pilot, app.screen.query(kind).first())


async def select_in(pilot: Pilot[None], shown: StripWidget) -> None:
    """Select the first five signs of the first line with text."""
    lines = enumerate(text_of(shown).splitlines())
    y, text = next((y, line) for y, line in lines if line.strip())
    begin = len(text) - len(text.lstrip())
    await pilot.mouse_down(shown, offset=(begin, y))
    await pilot.hover(shown, offset=(begin + 5, y))
    await pilot.mouse_up(shown, offset=(begin + 5, y))
    selected = pilot.app.screen.get_selected_text()
    assert selected is not None
    assert text[begin:].startswith(selected)
    assert len(selected) >= 5


async def test_running_steps_count_on_and_pending_ones_wait(started: Started) -> None:
    starting = scenes.demo_starting()
    async with started(starting) as (pilot, app, cluster):
        steps = app.query_one(StepList)
        rows = text_of(steps).splitlines()
        assert rows[0].startswith("✓ engine b6500 found")
        assert "8.20 s" in rows[4]
        assert "61 %" in rows[4]
        assert rows[5].startswith("· split checked")
        failed = replace(starting.steps[1], state=StepState.FAILED)
        cluster.push(replace(starting, seq=9, steps=(failed,)))
        await until(pilot, lambda: text_of(steps).startswith("✗ worker1 listens"))
        await select_in(pilot, steps)


async def test_an_equal_snapshot_draws_nothing(started: Started) -> None:
    async with started(scenes.demo_serving()) as (pilot, app, cluster):
        home = app._home
        drawn = (
            home.split.bar,
            home.status_line,
            home.key_bar,
            home.live.graph,
            home.live.query_one(LiveFigures),
            home.live.query_one(TokenBar),
            app.query_one(LoadTable),
            app.query_one(PeerList),
        )
        before = [widget.lines() for widget in drawn]
        later = replace(scenes.demo_serving(), seq=9, at=scenes.NOW + 5)
        cluster.push(later)
        await until(pilot, lambda: app.editor.snapshot == later)
        for widget, lines in zip(drawn, before, strict=True):
            assert widget.lines() is lines, widget
        graph = home.live.graph
        assert not graph.history.columns
        speed = Speed(last_tok_per_s=345.0)
        cluster.push(replace(later, seq=10, speed=speed))
        # An answer too short to sample still shows.
        await until(pilot, lambda: list(graph.history.columns) == [345.0])
