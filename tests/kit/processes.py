"""Processes of a test: found, looked at and killed, even if they end meanwhile."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psutil

from tests.kit.waiting import wait_until


def processes_of(home: Path) -> list[psutil.Process]:
    """Every other process whose state lives below a directory; no zombies."""
    found = []
    for process in psutil.process_iter():
        try:
            state = process.environ().get("XDG_STATE_HOME", "")
            dead = process.status() == psutil.STATUS_ZOMBIE
        except psutil.Error:
            continue
        if state.startswith(str(home)) and not dead and process.pid != os.getpid():
            found.append(process)
    return found


def name_of(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""


def words_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def is_agent(process: psutil.Process) -> bool:
    return words_of(process)[1:2] == ["agent"]


def with_word(
    processes: Iterable[psutil.Process], word: str, name: str = ""
) -> list[psutil.Process]:
    return [
        process
        for process in processes
        if word in words_of(process) and (not name or name_of(process) == name)
    ]


def kill_all(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def kill_until_none(find: Callable[[], list[psutil.Process]]) -> None:
    """kill -9 whatever is found until nothing is: one may just have begun another."""

    def none_is_left() -> bool:
        found = find()
        kill_all(found)
        return not found

    wait_until(none_is_left, "the end of all that was killed")


def exists(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill_family_of(run_dir: Path) -> None:
    kill_all(family_of(run_dir))


def family_of(run_dir: Path) -> Iterator[psutil.Process]:
    """Processes that carry a directory of this folder in their environment."""
    for process in psutil.process_iter():
        try:
            mark = process.environ().get("DLLM_PROCESS_DIR", "")
        except (psutil.Error, OSError):
            continue
        if mark.startswith(f"{run_dir}{os.sep}"):
            yield process
