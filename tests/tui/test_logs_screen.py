"""The Logs screen: tabs, following, filtering, restarting, saving."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from textual.geometry import Offset
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
from tests.tui import scenes
from tests.tui.helpers import screen_text, until
from tests.tui.scripted import ScriptedCluster
from tests.tui.stages import ScreenStage
from tui.screens.logs import GONE_LIMIT, LogsScreen
from tui.screens.models import ModelsScreen
from tui.widgets.filter_bar import FilterBar
from tui.widgets.log_feed import TAIL_BYTES
from tui.widgets.log_view import LogView

if TYPE_CHECKING:
    from pathlib import Path

    from textual.pilot import Pilot


def line(number: int) -> str:
    """One line as llama-server writes it."""
    level = "E" if number % 50 == 13 else "I"
    return f"0.{number // 60:02d}.{number % 60:03d}.000 {level} line {number} of it\n"


def lines(first: int, last: int) -> str:
    """Some lines, the last one excluded."""
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
    return msgspec.structs.replace(info, **facts)


def snapshot(*processes: ProcessInfo) -> ClusterSnapshot:
    """A cluster that consists of these."""
    return ClusterSnapshot(state=ClusterState.SERVING, processes=processes)


SERVER, WORKER = process("llama-server"), process("worker1")


class LogCluster(ScriptedCluster):
    """Counts reads, and says when a log became shorter."""

    def __init__(self) -> None:
        super().__init__()
        self.logs = {"llama-server": lines(0, 200), "worker1": "Starting RPC server\n"}
        self.reads: list[tuple[str, int, int]] = []

    async def read_log(
        self, name: str, offset: int, limit_bytes: int = 65536
    ) -> LogChunk:
        """The text, from the start again where it is shorter than the offset."""
        self.reads.append((name, offset, limit_bytes))
        self._fail("read_log")
        restarted = offset > len(self.logs[name].encode())
        chunk = await super().read_log(name, 0 if restarted else offset, limit_bytes)
        return msgspec.structs.replace(chunk, restarted=restarted)


class Logs(ScreenStage):
    """The Logs screen on a scripted cluster."""

    def __init__(self, cluster: LogCluster, save_folder: Path | None = None) -> None:
        self.cluster = cluster
        self.logs = LogsScreen(cluster, poll_s=0.01, save_folder=save_folder)
        super().__init__(self.logs)

    @property
    def view(self) -> LogView:
        """The log shown."""
        return next(view for view in self.logs.query(LogView) if view.display)

    def labels(self) -> list[str]:
        """What stands on the tabs."""
        return [tab.label_text for tab in self.logs.query(Tab)]


def reading(app: Logs) -> bool:
    """A log is being read again and again."""
    return any(w.group == "logs" and not w.is_finished for w in app.workers)


async def opened(app: Logs, pilot: Pilot[None], *processes: ProcessInfo) -> LogView:
    """Wait until the first log shows its end."""
    await until(pilot, lambda: app.logs.is_mounted)
    app.logs.show_snapshot(snapshot(*(processes or (SERVER, WORKER))))
    await until(pilot, lambda: app.logs.query(LogView) and app.view.lines)
    return app.view


@pytest.fixture
def cluster() -> LogCluster:
    """Two logs."""
    return LogCluster()


async def test_without_processes_it_says_what_will_be_here(cluster: LogCluster) -> None:
    app = Logs(cluster)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "No process has run yet." in screen_text(app))


async def test_a_log_opens_at_its_end_and_follows(cluster: LogCluster) -> None:
    app = Logs(cluster)
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(app, pilot)
        await until(pilot, lambda: "line 199 of it" in screen_text(app))
        assert "● following  200 lines" in screen_text(app)
        assert "/run/dllm/llama-server/log" in screen_text(app)
        cluster.logs["llama-server"] += lines(200, 260)
        await until(pilot, lambda: "line 259 of it" in screen_text(app))
        assert app.labels() == ["llama-server ●", "worker1 ●"]


async def test_only_the_tail_of_a_long_log_is_read(cluster: LogCluster) -> None:
    app = Logs(cluster)
    cluster.logs["llama-server"] = lines(0, 100_000)
    async with app.run_test(size=(80, 24)) as pilot:
        view = await opened(app, pilot)
        assert cluster.reads[0] == ("llama-server", -TAIL_BYTES, TAIL_BYTES)
        assert len(view.lines) < 3000
        assert "before this are not shown · S saves all" in view.lines[0]
        assert view.lines[1].startswith("0.")


async def test_scrolling_up_stops_following_and_end_resumes(
    cluster: LogCluster,
) -> None:
    app = Logs(cluster)
    async with app.run_test(size=(80, 24)) as pilot:
        view = await opened(app, pilot)
        await pilot.press("pageup")
        await until(pilot, lambda: not view.following)
        before = view.scroll_y
        cluster.logs["llama-server"] += lines(200, 237)
        await until(pilot, lambda: "↓ 37 new lines, End follows" in screen_text(app))
        assert view.scroll_y == before
        await pilot.press("end")
        await until(pilot, lambda: "line 236 of it" in screen_text(app))
        assert view.following


async def test_the_text_stays_while_old_lines_are_dropped() -> None:
    app = Logs(LogCluster())
    async with app.run_test(size=(80, 24)) as pilot:
        view = await opened(app, pilot)
        view._buffer.limit = 220
        await pilot.press("pageup", "pageup", "pageup")
        await until(pilot, lambda: not view.following)
        top = view.lines[int(view.scroll_y)]
        app.cluster.logs["llama-server"] += lines(200, 250)
        await until(pilot, lambda: len(view.lines) == 220)
        assert view.lines[int(view.scroll_y)] == top


async def test_a_filter_keeps_matching_lines_and_counts_them(
    cluster: LogCluster,
) -> None:
    app = Logs(cluster)
    async with app.run_test(size=(80, 24)) as pilot:
        view = await opened(app, pilot)
        await pilot.press("slash", *"line 19")
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


async def test_a_pattern_and_a_broken_one(cluster: LogCluster) -> None:
    app = Logs(cluster)
    async with app.run_test(size=(80, 24)) as pilot:
        view = await opened(app, pilot)
        await pilot.press("slash", "slash", *r"line 1[78]\b")
        await until(pilot, lambda: view.standing.matching == 2)
        await pilot.press("left_square_bracket")
        await until(pilot, lambda: "Not a pattern" in screen_text(app))
        assert view.standing.matching == 2


async def test_escape_without_a_filter_goes_back(cluster: LogCluster) -> None:
    app = Logs(cluster)
    async with app.run_test() as pilot:
        await opened(app, pilot)
        await pilot.press("escape")
        assert app.backs == 1


async def test_wrapping_shows_whole_lines(cluster: LogCluster) -> None:
    app = Logs(cluster)
    cluster.logs["llama-server"] = "x" * 100 + "END\n"
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(app, pilot)
        await until(pilot, lambda: "x…" in screen_text(app))
        assert "END" not in screen_text(app)
        await pilot.press("right", "right", "right", "right")
        await until(pilot, lambda: "END" in screen_text(app))
        await pilot.press("w")
        await until(pilot, lambda: "…" not in screen_text(app))
        assert "END" in screen_text(app)
        await pilot.resize_terminal(70, 24)
        await until(pilot, lambda: app.view.virtual_size.height == 2)


async def test_brackets_go_through_the_tabs(cluster: LogCluster) -> None:
    app = Logs(cluster)
    async with app.run_test() as pilot:
        await opened(app, pilot)
        await pilot.press("right_square_bracket")
        await until(pilot, lambda: "Starting RPC server" in screen_text(app))
        await pilot.press("right_square_bracket")
        await until(pilot, lambda: "line 199 of it" in screen_text(app))


async def test_only_the_log_shown_is_read(cluster: LogCluster) -> None:
    app = Logs(cluster)
    async with app.run_test() as pilot:
        await opened(app, pilot)
        assert {name for name, _, _ in cluster.reads} == {"llama-server"}
        await app.push_screen(ModelsScreen(cluster))
        await until(pilot, lambda: not reading(app))
        await app.pop_screen()
        await until(pilot, lambda: reading(app))


async def test_an_ended_process_keeps_its_tab_with_its_status(
    cluster: LogCluster,
) -> None:
    app = Logs(cluster)
    async with app.run_test() as pilot:
        await opened(app, pilot)
        killed = process("worker1", state=ProcessState.EXITED, exit_signal=9)
        app.logs.show_snapshot(snapshot(SERVER, killed))
        await until(pilot, lambda: "worker1 SIGKILL" in app.labels())
        app.logs.show_snapshot(snapshot(SERVER))
        await pilot.pause()
        assert "worker1 SIGKILL" in app.labels()


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
    app = Logs(cluster)
    async with app.run_test(size=(80, 24)) as pilot:
        view = await opened(app, pilot)
        cluster.logs["llama-server"] = "fresh\n"
        await until(pilot, lambda: view.lines[-1] == "fresh")
        assert view.lines[-2] == "── started again ──"
        assert view.lines[-3].endswith("line 199 of it")
        again = process("llama-server", started_at=scenes.NOW + 5)
        app.logs.show_snapshot(snapshot(again))
        cluster.logs["llama-server"] += "on\n"
        await until(pilot, lambda: view.lines[-1] == "on")
        assert view.lines.count("fresh") == 1


async def test_another_start_is_noticed_though_the_log_is_longer(
    cluster: LogCluster,
) -> None:
    app = Logs(cluster)
    async with app.run_test(size=(80, 24)) as pilot:
        view = await opened(app, pilot)
        cluster.logs["llama-server"] = "fresh\n" + lines(0, 200)
        app.logs.show_snapshot(
            snapshot(process("llama-server", started_at=scenes.NOW + 5))
        )
        await until(pilot, lambda: "fresh" in view.lines)
        assert view.lines[view.lines.index("fresh") - 1] == "── started again ──"


async def test_a_log_that_cannot_be_read_is_reported_once(cluster: LogCluster) -> None:
    app = Logs(cluster)
    async with app.run_test() as pilot:
        await opened(app, pilot)
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


async def test_copying_takes_the_selection_or_all_that_is_shown(
    cluster: LogCluster,
) -> None:
    app = Logs(cluster)
    async with app.run_test(size=(80, 24)) as pilot:
        view = await opened(app, pilot)
        await pilot.press("slash", *"line 19 ", "enter")
        await until(pilot, lambda: view.standing.matching == 1)
        await pilot.press("y")
        assert app.clipboard == line(19).rstrip()
        await pilot.press("escape")
        picked = Selection(Offset(15, 3), Offset(21, 3))
        app.logs.selections = {view: picked}
        await pilot.press("y")
        assert app.clipboard == line(3)[15:21]


async def test_text_can_be_selected_with_the_mouse(cluster: LogCluster) -> None:
    app = Logs(cluster)
    cluster.logs["llama-server"] = "alpha beta\ngamma delta\n"
    async with app.run_test(size=(80, 24)) as pilot:
        view = await opened(app, pilot)
        await pilot.mouse_down(view, offset=(1, 0))
        await pilot.hover(view, offset=(6, 1))
        await pilot.mouse_up(view, offset=(6, 1))
        selected = app.logs.get_selected_text()
        assert selected is not None
        assert selected.startswith("alpha beta\ngamma")


async def test_a_hundred_thousand_lines_cost_little_to_draw(
    cluster: LogCluster,
) -> None:
    app = Logs(cluster)
    async with app.run_test(size=(120, 36)) as pilot:
        view = await opened(app, pilot)
        text = lines(0, 100_000)
        for at in range(0, len(text), 262_144):
            view.feed(text[at : at + 262_144])
        await until(pilot, lambda: "line 99999 of it" in screen_text(app))
        assert len(view.lines) == 20_000
        view.folded = True
        await pilot.pause()
        await pilot.press("home")
        await until(pilot, lambda: "line 80000 of it" in screen_text(app))
