"""The same machine seen through a shell, with the tools of different systems."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from backends.paths import relay_binary
from backends.peers.remote_host import RemoteHost
from tests.unit.peers.remote.local_shell import LocalShell, busybox_tools

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def busybox_path(tmp_path_factory: pytest.TempPathFactory) -> str | None:
    """Where busybox stands for every tool; None where it is not installed."""
    return busybox_tools(tmp_path_factory.mktemp("busybox"))


@pytest.fixture(params=["sh", "busybox"])
def shell(request: pytest.FixtureRequest, busybox_path: str | None) -> LocalShell:
    """The shell and tools of this machine, then those of a small one."""
    if request.param == "sh":
        return LocalShell()
    if busybox_path is None:
        pytest.skip("busybox is not installed")
    return LocalShell(path=busybox_path)


@pytest.fixture
def host(shell: LocalShell, run_dir: Path) -> RemoteHost:
    """The machine under test."""
    return RemoteHost(shell, run_dir=str(run_dir), relay=str(relay_binary()))
