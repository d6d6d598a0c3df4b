"""The network, made once and reset for every test."""

from __future__ import annotations

import contextlib
import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.engine.conftest import COMMAND_S
from tests.hosts.network import Network, missing
from tests.hosts.user import HeadUser
from tests.kit.engines import engine
from tests.kit.processes import kill_until_none
from tests.kit.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["engine"]

_FOLDER = Path(__file__).parent.name
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
LOG_CHARS = 2000
_LEFTOVER_PATIENCE_S = 20.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests and trials of other machines; skip them where they cannot run."""
    reason = missing()
    for item in items:
        if item.path.parent.name == _FOLDER:
            item.add_marker(pytest.mark.hosts)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def machines() -> Iterator[Network]:
    """The network itself, as the last test left it; empty at the end."""
    network = Network()
    try:
        yield network
        running = {p.name: p.left() for p in network.peers}
    finally:
        network.close()
    assert not any(running.values()), f"still running on peers: {running}"


@pytest.fixture
def network(machines: Network, monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    """The network as it was made, with HOME being the head's own."""
    machines.reset()
    monkeypatch.setenv("HOME", str(machines.home))
    for name in ("SSH_AUTH_SOCK", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name in ("XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    yield machines
    # Shown where the test failed.
    for peer in machines.peers:
        print(peer.name, peer.sshd_log[-LOG_CHARS:], sep=": ")
    left = _leftovers(machines)
    assert not left, f"left on peers: {left}"


@pytest.fixture(autouse=True)
def every_task_is_awaited(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """What a task ends with is heard by somebody."""
    yield
    gc.collect()
    logged = [*caplog.get_records("call"), *caplog.get_records("teardown")]
    lost = [one.getMessage() for one in logged if one.name == "asyncio"]
    assert not [text for text in lost if "never retrieved" in text], lost


@pytest.fixture
def user(network: Network) -> Iterator[HeadUser]:
    """Somebody who can ssh to every peer."""
    network.write_ssh_config()
    someone = HeadUser(network, CACHE)
    try:
        yield someone
        someone.tell_log()
    finally:
        if someone.processes() or any(peer.left() for peer in network.peers):
            # Not all of the machines need be within reach.
            someone.start("stop").communicate(timeout=COMMAND_S)
            kill_until_none(someone.processes)


def _leftovers(network: Network) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}

    def none_is_left() -> bool:
        nonlocal found
        found = {p.name: lines for p in network.peers if (lines := p.left())}
        return not found

    with contextlib.suppress(AssertionError):
        what = "the end of what the test started"
        wait_until(none_is_left, what, _LEFTOVER_PATIENCE_S)
    return found
