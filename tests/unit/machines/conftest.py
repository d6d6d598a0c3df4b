"""A machine over a temporary run directory; nothing survives a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from backends.machines.host import local_host
from tests.unit.machines.processes import kill_family_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from backends.machines.host import AgentHost


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    """The run directory; what still runs under it afterwards is killed."""
    directory = tmp_path / "run"
    yield directory
    kill_family_of(directory)


@pytest.fixture
async def open_host() -> AsyncIterator[Callable[..., AgentHost]]:
    """Makes hosts over run directories; their agents end with the test."""
    hosts: list[AgentHost] = []

    def make(directory: Path, **options: Path) -> AgentHost:
        hosts.append(local_host(directory, **options))  # type: ignore[arg-type]
        return hosts[-1]

    yield make
    for host in hosts:
        await host.close()


@pytest.fixture
def host(open_host: Callable[..., AgentHost], run_dir: Path) -> AgentHost:
    """The machine under test."""
    return open_host(run_dir)
