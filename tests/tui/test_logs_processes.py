"""The log screen while processes come, end and start anew."""

from __future__ import annotations

import pytest

from backends.errors import DllmError
from backends.state import (
    ProcessState,
)
from tests.tui import scenes
from tests.tui.helpers import screen_text, until
from tests.tui.reading_logs import (
    SERVER,
    WORKER,
    LogCluster,
    Logs,
    lines,
    opened,
    process,
    reading,
    snapshot,
)
from tui.screens.logs.screen import GONE_LIMIT
from tui.screens.models.screen import ModelsScreen


@pytest.fixture
def cluster() -> LogCluster:
    return LogCluster()


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
