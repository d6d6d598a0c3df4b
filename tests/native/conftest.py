"""The program under test: ``$DLLM_RELAY``, else the installed one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from backends.paths import relay_binary
from tests.native.spawning import Spawner, kill_marked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def relay() -> Path:
    """The program under test."""
    return relay_binary()


@pytest.fixture
def spawner(relay: Path, tmp_path: Path) -> Iterator[Spawner]:
    """Starts processes; whatever still runs afterwards is killed."""
    yield Spawner(relay, tmp_path)
    kill_marked(tmp_path)
