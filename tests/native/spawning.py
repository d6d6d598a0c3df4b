"""Driving ``dllm-relay spawn`` and looking at what it left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.kit.waiting import PATIENCE_S, wait_until
from tests.native.identity import start_id


@dataclass(frozen=True)
class Spawned:
    directory: Path
    pid: int
    start_id: str

    @property
    def alive(self) -> bool:
        return start_id(self.pid) == self.start_id

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text()

    @property
    def record(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(
            (self.directory / "process.json").read_text()
        )
        return value

    def wait_gone(self) -> None:
        wait_until(lambda: not self.alive, "its end")

    def ended(self) -> dict[str, Any]:
        path = self.directory / "exit.json"
        wait_until(path.exists, "exit.json")
        value: dict[str, Any] = json.loads(path.read_text())
        return value

    def output(self) -> Any:
        assert self.ended()["code"] == 0, self.log
        return json.loads(self.log)


class Spawner:
    """Runs ``dllm-relay spawn`` with directories under one folder."""

    def __init__(self, relay: Path, folder: Path) -> None:
        self.relay = relay
        self.folder = folder

    def argv(
        self, command: Sequence[str], name: str, options: Sequence[str]
    ) -> list[str]:
        directory = str(self.folder / name)
        return [str(self.relay), "spawn", "--dir", directory, *options, "--", *command]

    def run(
        self,
        *command: str,
        name: str = "p",
        options: Sequence[str] = (),
        **settings: Any,
    ) -> subprocess.CompletedProcess[str]:
        settings = {"capture_output": True, "timeout": PATIENCE_S, **settings}
        return subprocess.run(
            self.argv(command, name, options), text=True, check=False, **settings
        )

    def start(
        self,
        *command: str,
        name: str = "p",
        options: Sequence[str] = (),
        **settings: Any,
    ) -> Spawned:
        done = self.run(*command, name=name, options=options, **settings)
        assert (done.returncode, done.stderr) == (0, "")
        printed = json.loads(done.stdout)
        return Spawned(self.folder / name, printed["pid"], printed["start_id"])


def marked(folder: Path) -> set[int]:
    """Processes that carry a directory of this folder in their environment."""
    found = set()
    for process in psutil.process_iter():
        try:
            mark = process.environ().get("DLLM_PROCESS_DIR", "")
        except (psutil.Error, OSError):
            continue
        if mark.startswith(f"{folder}{os.sep}"):
            found.add(process.pid)
    return found


def kill_marked(folder: Path) -> None:
    for pid in marked(folder):
        with contextlib.suppress(ProcessLookupError):  # It ended since it was found.
            os.kill(pid, signal.SIGKILL)
