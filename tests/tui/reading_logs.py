"""The log screen alone, on logs that a test writes."""

from __future__ import annotations

from pathlib import Path

import msgspec
from textual.pilot import Pilot
from textual.widgets import Tab

from backends.state import (
    ClusterSnapshot,
    ClusterState,
    LogChunk,
    ProcessInfo,
    ProcessRole,
    ProcessState,
)
from tests.tui import scenes
from tests.tui.helpers import until
from tests.tui.scripted import ScriptedCluster
from tests.tui.stages import ScreenStage
from tui.screens.logs.screen import LogsScreen
from tui.screens.logs.view import LogView


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
    return msgspec.structs.replace(info, **facts)


def snapshot(*processes: ProcessInfo) -> ClusterSnapshot:
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
        return next(view for view in self.logs.query(LogView) if view.display)

    def labels(self) -> list[str]:
        return [tab.label_text for tab in self.logs.query(Tab)]


def reading(app: Logs) -> bool:
    return any(w.group == "logs" and not w.is_finished for w in app.workers)


async def opened(app: Logs, pilot: Pilot[None], *processes: ProcessInfo) -> LogView:
    await until(pilot, lambda: app.logs.is_mounted)
    app.logs.show_snapshot(snapshot(*(processes or (SERVER, WORKER))))
    await until(pilot, lambda: app.logs.query(LogView) and app.view.lines)
    return app.view
