"""A user with nothing of their own: private directories, no engine, no peers."""

from __future__ import annotations

import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backends.paths import Paths, user_paths
from tests.kit.processes import kill_until_none, processes_of, with_word

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psutil


def controllers_of(home: Path) -> list[psutil.Process]:
    """Those of them that are controllers."""
    return with_word(processes_of(home), "backends.controller")


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
        kill_until_none(partial(processes_of, home))
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def paths(home: Path) -> Paths:
    """The directories of that user."""
    return user_paths()
