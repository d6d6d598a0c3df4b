"""A local host over a temporary run directory; nothing survives a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from backends.peers.local import LocalHost
from tests.unit.peers.local_processes import kill_family_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    """The run directory; what still runs under it afterwards is killed."""
    directory = tmp_path / "run"
    yield directory
    kill_family_of(directory)


@pytest.fixture
def host(run_dir: Path) -> LocalHost:
    """The machine under test."""
    return LocalHost(run_dir)
