"""A user with nothing of their own: private directories, no engine, no peers."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest

from backends.paths import Paths, user_paths
from tests.kit.processes import kill_until_none, processes_of, with_word


def controllers_of(home: Path) -> list[psutil.Process]:
    return with_word(processes_of(home), "backends.controller")


@contextmanager
def new_home(patch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short path, for sockets; what runs for it is killed afterwards."""
    home = Path(tempfile.mkdtemp(prefix="dllm-"))
    for name in ("CONFIG", "STATE", "CACHE", "DATA"):
        patch.setenv(f"XDG_{name}_HOME", str(home / name.lower()))
    (home / "run").mkdir(mode=0o700)
    patch.setenv("XDG_RUNTIME_DIR", str(home / "run"))
    patch.setenv("NO_COLOR", "1")
    patch.delenv("DLLM_CLUSTER", raising=False)
    try:
        yield home
    finally:
        kill_until_none(partial(processes_of, home))
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def home(forking: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with new_home(monkeypatch) as home:
        yield home


@pytest.fixture
def paths(home: Path) -> Paths:
    return user_paths()
