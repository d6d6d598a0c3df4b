"""A user with nothing of their own: private directories, no engine, no peers."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from backends.paths import Paths, user_paths
from tests.killing import kill_all

if TYPE_CHECKING:
    from collections.abc import Iterator


def processes_of(home: Path) -> list[psutil.Process]:
    """Every process whose state lives below a directory."""
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


def controllers_of(home: Path) -> list[psutil.Process]:
    """Those of them that are controllers."""
    return [p for p in processes_of(home) if "backends.controller" in p.cmdline()]


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short path, for sockets; what runs for it is killed afterwards."""
    home = Path(tempfile.mkdtemp(prefix="dllm-"))
    for name in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(home / name.lower()))
    (home / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home / "run"))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("DLLM_CLUSTER", raising=False)
    try:
        yield home
    finally:
        kill_all(processes_of(home))
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def paths(home: Path) -> Paths:
    """The directories of that user."""
    return user_paths()
