"""The log screen: following, filtering, wrapping, and processes that come and go."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from textual.geometry import Offset
from textual.pilot import Pilot
from textual.selection import Selection
from textual.widgets import Tab

from backends.errors import DllmError
from backends.state import (
    ClusterSnapshot,
    ClusterState,
    LogChunk,
    ProcessInfo,
    ProcessRole,
    ProcessState,
)
from tests.kit.full_disk import LIMIT_BYTES, little_room
from tests.tui import scenes
from tests.tui.helpers import burst, resize, screen_text, until
from tests.tui.scripted import ScriptedCluster
from tests.tui.stages import ScreenStage
from tui.model.log_levels import LogLevel
from tui.model.merged_log import PAGE_BYTES, TAIL_BYTES
from tui.screens.logs import feed
from tui.screens.logs.feed import (
    PAGES_BEHIND_MAX,
    log_pages,
    save_log,
)
from tui.screens.logs.lines import LogRows
from tui.screens.logs.screen import GONE_LIMIT, LogsScreen
from tui.screens.logs.view import LINES_AT_ONCE, SIDE_STEP, LogView
from tui.screens.models.screen import ModelsScreen
from tui.widgets.inputs import FilterBar


def line(number: int) -> str:
    level = "E" if number % 50 == 13 else "I"
    return f"0.{number // 60:02d}.{number % 60:03d}.000 {level} line {number} of it\n"


def lines(first: int, last: int) -> str:
    return "".join(line(number) for number in range(first, last))


def process(name: str, **facts: object) -> ProcessInfo:
    """A process that runs, unless the facts differ."""
    info = ProcessInfo(
        name=name,
        role=ProcessRole.WORKER,
        state=ProcessState.RUNNING,
        started_at=scenes.NOW,
        log_path=f"/run/dllm/{name}/log",
    )
    return replace(info, **facts)


def snapshot(*processes: ProcessInfo) -> ClusterSnapshot:
    return ClusterSnapshot(state=ClusterState.SERVING, processes=processes)


SERVER, WORKER = process("llama-server"), process("worker1")


class LogCluster(ScriptedCluster):
    """Counts reads, and says when a log became shorter."""

    def __init__(self) -> None:
        super().__init__()
        self.logs = {"llama-server": lines(0, 200), "worker1": "Starting RPC server\n"}
        self.logs["controller"] = ""
        self.reads: list[tuple[str, int, int]] = []

    async def read_log(
        self, name: str, offset: int, limit_bytes: int = 65536
    ) -> LogChunk:
        self.reads.append((name, offset, limit_bytes))
        self._fail("read_log")
        restarted = offset > len(self.logs[name].encode())
        chunk = await super().read_log(name, 0 if restarted else offset, limit_bytes)
        return replace(chunk, restarted=restarted)


class Logs(ScreenStage):
    """The Logs screen on a scripted cluster."""

    cluster: LogCluster

    def __init__(self, cluster: LogCluster, save_folder: Path | None = None) -> None:
        self.cluster = cluster
        self.logs = LogsScreen(cluster, poll_s=0.05, save_folder=save_folder)
        super().__init__(self.logs)

    @property
    def view(self) -> LogView:
        return next(view for view in self.logs.query(LogView) if view.display)

    def labels(self) -> list[str]:
        """Of the processes' tabs; the first is of all."""
        return [tab.label_text for tab in self.logs.query(Tab)][1:]


def reading(app: Logs) -> bool:
    return any(w.group == "logs" and not w.is_finished for w in app.workers)


async def opened(app: Logs, pilot: Pilot[None], *processes: ProcessInfo) -> LogView:
    await until(pilot, lambda: app.logs.is_mounted)
    app.logs.show_snapshot(snapshot(*(processes or (SERVER, WORKER))))
    views = app.logs.query
    await until(pilot, lambda: [v for v in views(LogView) if v.display and v.lines])
    return app.view


@asynccontextmanager
async def shown(
    cluster: LogCluster,
) -> AsyncIterator[tuple[Logs, Pilot[None], LogView]]:
    app = Logs(cluster)
    async with app.run_test(size=(80, 24)) as pilot:
        yield app, pilot, await opened(app, pilot)


@pytest.fixture
def cluster() -> LogCluster:
    return LogCluster()


async def test_a_log_opens_at_its_end_and_follows(cluster: LogCluster) -> None:
    app = Logs(cluster)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "No process has run yet." in screen_text(app))
        view = await opened(app, pilot)
        await until(pilot, lambda: "line 199 of it" in screen_text(app))
        assert "● following  200 lines" in screen_text(app)
        assert "/run/dllm/llama-server/log" in screen_text(app)
        assert app.labels() == ["llama-server ●", "worker1 ●"]
        assert {name for name, _, _ in cluster.reads} == {"llama-server"}
        await app.push_screen(ModelsScreen(cluster))
        await until(pilot, lambda: not reading(app))
        await app.pop_screen()
        await until(pilot, lambda: reading(app))
        feed = app.logs._active
        assert feed is not None
        feed._pages_behind = PAGES_BEHIND_MAX
        cluster.logs["llama-server"] += lines(200, 260)
        await until(pilot, lambda: "line 259 of it" in screen_text(app))
        assert view.lines == tuple(lines(0, 260).splitlines()), "nothing twice"
        await pilot.press("right_square_bracket")
        await until(pilot, lambda: "Starting RPC server" in screen_text(app))
        await pilot.press("right_square_bracket")
        await until(pilot, lambda: "line 259 of it" in screen_text(app))
        await pilot.press("escape")
        assert app.backs == 1


async def test_only_the_tail_of_a_long_log_is_read(cluster: LogCluster) -> None:
    cluster.logs["llama-server"] = lines(0, 100_000)
    async with shown(cluster) as (_, _, view):
        assert cluster.reads[0] == ("llama-server", -TAIL_BYTES, TAIL_BYTES)
        assert len(view.lines) < 3000
        assert "before this are not shown · S saves all" in view.lines[0]
        assert view.lines[1].startswith("0.")


async def test_scrolling_up_stops_following_though_old_lines_are_dropped(
    cluster: LogCluster,
) -> None:
    async with shown(cluster) as (app, pilot, view):
        await pilot.press("pageup")
        await until(pilot, lambda: not view.following)
        before = view.scroll_y
        cluster.logs["llama-server"] += lines(200, 237)
        await until(pilot, lambda: "↓ 37 new lines, End follows" in screen_text(app))
        assert view.scroll_y == before
        await pilot.press("end")
        await until(pilot, lambda: "line 236 of it" in screen_text(app))
        assert view.following
        view._buffer.limit = 250
        await pilot.press("pageup", "pageup", "pageup")
        await until(pilot, lambda: not view.following)
        top = view.lines[int(view.scroll_y)]
        cluster.logs["llama-server"] += lines(237, 287)
        await until(pilot, lambda: len(view.lines) == 250)
        assert view.lines[int(view.scroll_y)] == top


async def test_a_filter_keeps_and_counts_matching_lines(cluster: LogCluster) -> None:
    async with shown(cluster) as (app, pilot, view):
        await burst(pilot, "slash", *"line 19")
        await until(pilot, lambda: "11 of 200" in screen_text(app))
        assert "line 18 of it" not in screen_text(app)
        await pilot.press("enter")
        assert app.focused is view
        cluster.logs["llama-server"] += "more of line 19!\nand other things\n"
        await until(pilot, lambda: "12 of 202" in screen_text(app))
        await pilot.press("escape")
        await until(pilot, lambda: view.filter is None)
        assert "and other things" in screen_text(app)
        assert not app.logs.query_one(FilterBar).display
        await burst(pilot, "slash", *"line 19 ", "enter")
        await until(pilot, lambda: view.standing.matching == 1)
        await pilot.press("y")
        assert app.clipboard == line(19).rstrip()
        await pilot.press("escape")
        picked = Selection(Offset(15, 3), Offset(21, 3))
        app.logs.selections = {view: picked}
        await pilot.press("y")
        assert app.clipboard == line(3)[15:21]


async def test_levels_leave_out_lines_in_every_log(cluster: LogCluster) -> None:
    """The text's filter holds beside it; Esc takes away one after the other."""
    cluster.logs["worker1"] += "error: out of memory\n"
    async with shown(cluster) as (app, pilot, view):
        await pilot.press("v", "v")
        await until(pilot, lambda: "warnings and errors  4 of 200" in screen_text(app))
        assert "E line 63 of it" in screen_text(app)
        await burst(pilot, "slash", *"line 6", "enter")
        await until(pilot, lambda: view.standing.matching == 1)
        await pilot.press("right_square_bracket", "escape")
        await until(pilot, lambda: app.view is not view and app.view.lines)
        await until(pilot, lambda: app.view.standing.matching == 1)
        assert "Starting RPC server" not in screen_text(app)
        await pilot.press("v", "escape")
        await until(pilot, lambda: "Starting RPC server" in screen_text(app))
        assert "errors" not in screen_text(app)


async def test_a_pattern_a_broken_one_and_a_level_beside_it(
    cluster: LogCluster,
) -> None:
    async with shown(cluster) as (app, pilot, view):
        await burst(pilot, "slash", *r"/line 1[78]\b")
        await until(pilot, lambda: view.standing.matching == 2)
        await pilot.press("left_square_bracket")
        await until(pilot, lambda: "Not a pattern" in screen_text(app))
        assert view.standing.matching == 2
        await pilot.press("enter")
        before = view.filter
        await pilot.press("v", "v", "v")
        await until(pilot, lambda: view.level is LogLevel.ERROR)
        assert view.filter is before


async def test_long_lines_are_moved_wrapped_and_selected(cluster: LogCluster) -> None:
    cluster.logs["llama-server"] = "alpha beta\ngamma delta\n"
    async with shown(cluster) as (app, pilot, view):
        await pilot.mouse_down(view, offset=(1, 0))
        await pilot.hover(view, offset=(6, 1))
        await pilot.mouse_up(view, offset=(6, 1))
        selected = app.logs.get_selected_text()
        assert selected is not None
        assert selected.startswith("alpha beta\ngamma")
        cluster.logs["llama-server"] += "x" * 100 + "END\n"
        await until(pilot, lambda: "x…" in screen_text(app))
        assert "END" not in screen_text(app)
        await pilot.press("l")
        await until(pilot, lambda: view.scroll_x == SIDE_STEP)
        await pilot.press("h")
        await until(pilot, lambda: view.scroll_x == 0)
        await pilot.press("right", "right", "right", "right")
        await until(pilot, lambda: "END" in screen_text(app))
        await pilot.press("w")
        await until(pilot, lambda: "…" not in screen_text(app))
        assert "END" in screen_text(app)
        await resize(pilot, 70, 24)
        await until(pilot, lambda: app.view.virtual_size.height == 4)


async def test_a_line_is_selected_copied_and_shown_whole(cluster: LogCluster) -> None:
    cluster.logs["llama-server"] = lines(0, 200) + "x" * 100 + " the end\n"
    async with shown(cluster) as (app, pilot, view):
        await until(pilot, lambda: view.following and len(view.lines) == 201)
        await pilot.press("down")
        assert view.pointed is None, "there is none below the newest"
        await pilot.press("up")
        assert view.pointed == view.lines[200]
        assert not view.following
        await until(pilot, lambda: "▸x" in screen_text(app))
        assert "the end" not in screen_text(app)
        await pilot.press("enter")
        await until(pilot, lambda: "the end" in screen_text(app))
        await pilot.press("escape")
        await until(pilot, lambda: not app.screen.is_modal)
        await pilot.press(*["k"] * 30, "y")
        assert app.clipboard == line(170).rstrip()
        await until(pilot, lambda: "▸0.02.050.000 I line 170" in screen_text(app))
        # New lines do not move it; a line out of sight is left for one in sight.
        cluster.logs["llama-server"] += lines(201, 210)
        await until(pilot, lambda: len(view.lines) == 210)
        assert view.pointed == line(170).rstrip()
        view.scroll_home(animate=False, immediate=True)
        await pilot.press("j")
        assert view.pointed == line(0).rstrip()
        await pilot.press("escape")
        assert (view.pointed, app.backs) == (None, 0)
        view.scroll_end(animate=False, immediate=True)
        await pilot.press("up", "down")
        assert (view.pointed, view.following) == (None, True)


async def test_saving_writes_the_whole_log_and_says_where(
    cluster: LogCluster, tmp_path: Path
) -> None:
    app = Logs(cluster, save_folder=tmp_path)
    cluster.logs["llama-server"] = lines(0, 30_000)
    async with app.run_test() as pilot:
        await opened(app, pilot)
        await pilot.press("S")
        await until(pilot, lambda: app.said)
        path = tmp_path / "dllm-llama-server.log"
        assert app.said == [f"Saved the llama-server log to {path}"]
        assert path.read_text() == cluster.logs["llama-server"]
        await pilot.press("S")
        await until(pilot, lambda: len(app.said) == 2)
        assert (tmp_path / "dllm-llama-server-2.log").exists()


async def test_a_log_that_finds_no_room_leaves_no_half(
    cluster: LogCluster, tmp_path: Path
) -> None:
    cluster.logs["llama-server"] = lines(0, 40_000)
    assert len(cluster.logs["llama-server"]) > LIMIT_BYTES
    pages = log_pages(cluster, "llama-server")
    with little_room(), pytest.raises(DllmError) as raised:
        await save_log(pages, "llama-server", tmp_path)
    assert (
        raised.value.what
        == f"Cannot save the log in {tmp_path} (File too large): nothing was written"
    )
    assert not os.listdir(tmp_path)


async def test_a_hundred_thousand_lines(cluster: LogCluster) -> None:
    app = Logs(cluster)
    async with app.run_test(size=(120, 36)) as pilot:
        view = await opened(app, pilot)
        text = lines(0, 100_000)
        for at in range(0, len(text), 262_144):
            view.feed(text[at : at + 262_144])
        await until(pilot, lambda: "line 99999 of it" in screen_text(app))
        assert len(view.lines) == 20_000
        view.folded = True
        # What is laid out in parts goes to its end once more.
        await until(pilot, lambda: view._rows.width)
        await pilot.press("home")
        await until(pilot, lambda: "line 80000 of it" in screen_text(app))


async def test_a_log_far_behind_goes_on_at_its_end(cluster: LogCluster) -> None:
    app = Logs(cluster)
    app.logs._poll_s = 0.5
    async with app.run_test(size=(80, 24)) as pilot:
        view = await opened(app, pilot)
        n_reads = len(cluster.reads)
        cluster.logs["llama-server"] += lines(200, 300_000)
        size = len(cluster.logs["llama-server"])
        assert size > 3 * PAGES_BEHIND_MAX * PAGE_BYTES
        await until(pilot, lambda: "line 299999 of it" in screen_text(app))
        assert len(cluster.reads) - n_reads <= PAGES_BEHIND_MAX + 4
        marks = [line for line in view.lines if "before this are not shown" in line]
        assert len(marks) == 1


async def test_a_filter_lays_a_long_log_out_in_parts(
    cluster: LogCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[int] = []
    lay_out = LogRows.lay_out

    def counted(rows: LogRows, n_lines: int) -> bool:
        parts.append(n_lines)
        return lay_out(rows, n_lines)

    async with shown(cluster) as (_, pilot, view):
        view.feed(lines(200, 19_000))
        await pilot.pause()
        monkeypatch.setattr(LogRows, "lay_out", counted)
        await burst(pilot, "slash", *"18999")
        await until(pilot, lambda: view.standing.matching == 1)
        assert max(parts) <= LINES_AT_ONCE
        view.feed("more of 18999\n")
        await until(pilot, lambda: view.standing.matching == 2)


async def test_a_pager_gets_the_end_of_a_log(
    cluster: LogCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "PAGER_BYTES", 1000)
    text = await feed.end_of_log(cluster, "llama-server")
    assert text.startswith("── 4.8 KiB before this are not shown ──\n")
    assert text.endswith(cluster.logs["llama-server"][-1000:])


# --- processes that come, end and start anew ------------------------------------------


async def test_an_ended_process_keeps_tab_and_status(cluster: LogCluster) -> None:
    cluster.logs["worker9"] = "Starting RPC server\n"
    async with shown(cluster) as (app, pilot, view):
        killed = process("worker1", state=ProcessState.EXITED, exit_signal=9)
        app.logs.show_snapshot(snapshot(SERVER, killed))
        await until(pilot, lambda: "worker1 SIGKILL" in app.labels())
        app.logs.show_snapshot(snapshot(SERVER))
        await pilot.pause()
        assert "worker1 SIGKILL" in app.labels()
        app.logs.show_process("worker9")
        await until(pilot, lambda: app.said)
        assert app.said == ["There is no log of worker9 any more"]
        app.logs.show_snapshot(snapshot(SERVER, WORKER, process("worker9")))
        await until(pilot, lambda: len(app.labels()) == 3)
        await pilot.pause()
        assert app.view is view, "it takes no focus later"


async def test_tabs_of_processes_long_gone_are_dropped(cluster: LogCluster) -> None:
    app = Logs(cluster)
    many = [process(f"run{number}") for number in range(GONE_LIMIT + 3)]
    cluster.logs |= {info.name: "log\n" for info in many}
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(app, pilot, *many, SERVER)
        app.logs.show_snapshot(snapshot(SERVER))
        await until(pilot, lambda: len(app.labels()) == GONE_LIMIT + 1)
        assert app.labels()[0] == "run3 gone"


async def test_a_shorter_log_is_a_new_start(cluster: LogCluster) -> None:
    async with shown(cluster) as (app, pilot, view):
        cluster.logs["llama-server"] = "fresh\n"
        await until(pilot, lambda: view.lines[-1] == "fresh")
        assert view.lines[-2] == "── started again ──"
        assert view.lines[-3].endswith("line 199 of it")
        again = process("llama-server", started_at=scenes.NOW + 5)
        app.logs.show_snapshot(snapshot(again))
        cluster.logs["llama-server"] += "on\n"
        await until(pilot, lambda: view.lines[-1] == "on")
        assert view.lines.count("fresh") == 1
        cluster.logs["llama-server"] = "longer\n" + lines(0, 200)
        again = process("llama-server", started_at=scenes.NOW + 9)
        app.logs.show_snapshot(snapshot(again))
        await until(pilot, lambda: "longer" in view.lines)
        assert view.lines[view.lines.index("longer") - 1] == "── started again ──"


async def test_a_log_that_cannot_be_read_is_reported_once(cluster: LogCluster) -> None:
    async with shown(cluster) as (app, pilot, _):
        cluster.errors["read_log"] = DllmError("The log is gone")
        reads = len(cluster.reads)
        await until(pilot, lambda: len(cluster.reads) > reads + 5)
        assert app.troubles == ["The log is gone"]
        del cluster.errors["read_log"]
        cluster.logs["llama-server"] += "back\n"
        await until(pilot, lambda: app.view.lines[-1] == "back")


async def test_show_process_may_come_before_anything_else(cluster: LogCluster) -> None:
    app = Logs(cluster)
    app.logs.show_process("worker1")
    async with app.run_test() as pilot:
        await until(pilot, lambda: app.logs.is_mounted)
        app.logs.show_snapshot(snapshot(SERVER, WORKER))
        await until(pilot, lambda: "Starting RPC server" in screen_text(app))
        app.logs.show_process("llama-server")
        await until(pilot, lambda: "line 199 of it" in screen_text(app))


async def test_all_logs_are_one_and_a_process_of_it_is_filtered(
    cluster: LogCluster,
) -> None:
    async with shown(cluster) as (app, pilot, one):
        await pilot.press("a")
        await until(
            pilot, lambda: app.view is not one and app.view.standing.lines > 200
        )
        everything = app.view
        assert everything.lines[0].endswith(" llama-server  │ I line 0 of it")
        assert everything.lines[1].endswith(" worker1       │ Starting RPC server")
        await burst(pilot, "slash", *"@worker", "enter")
        await until(pilot, lambda: everything.standing.matching == 1)
        cluster.logs["worker1"] += "Accepted client connection\n"
        await until(pilot, lambda: everything.standing.matching == 2)
        assert "Accepted client connection" in screen_text(app)
        await pilot.press("escape", "a")
        await until(pilot, lambda: app.view is one)
        await pilot.press("a")
        app.logs._before_all = "log-tab-of-one-that-is-gone"
        await pilot.press("a")
        assert app.view is everything
