"""Copying models over real SSH: whole, resumed, never mixed up."""

from __future__ import annotations

import asyncio
import gc
import random
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from backends.errors import PeerUnreachable
from backends.machines.peer_downloads import FromHere, deliver_model, whole_files
from backends.machines.ssh.config import Destination
from backends.machines.ssh.connection import Connection
from backends.models.identity import full_sha256
from tests.kit.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from backends.state import PeerWork
    from tests.hosts.machine import Machine
    from tests.hosts.network import Network

SIZE = 16 << 20
NAME = 'it\'s a "model" $HOME `id`.gguf'


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model on the head, with a name that breaks careless scripts."""
    path = tmp_path / NAME
    path.write_bytes(random.Random(1).randbytes(SIZE))
    return path


@pytest.fixture
def peer(network: Network) -> Machine:
    """A peer with an empty home."""
    network.write_ssh_config()
    return network.peer("bob")


class Copier:
    """Copies to one peer and keeps what is reported."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.works: list[PeerWork] = []

    async def __call__(self, model: Path) -> str:
        if not self.connection.connected:
            await self.connection.connect()
        ways, wanted = [FromHere([model])], whole_files([model])
        got = await deliver_model(
            self.connection, wanted, ways, report=self.works.append
        )
        return got.path

    async def half(self, model: Path) -> asyncio.Task[str]:
        """Begin, and return once some of it was sent."""
        self.works.clear()
        running = asyncio.create_task(self(model))
        while not (running.done() or any(work.progress for work in self.works)):
            await asyncio.wait([running], timeout=0.001)
        return running


@pytest_asyncio.fixture
async def copy(peer: Machine) -> AsyncIterator[Copier]:
    """Copy to the peer."""
    connection = Connection(peer.name, Destination.parse(peer.name))
    yield Copier(connection)
    await connection.close()


def same(there: Path, here: Path) -> bool:
    return full_sha256(there) == full_sha256(here)


async def test_a_cancelled_copy_goes_on_and_is_known_again(
    peer: Machine, copy: Copier, model: Path
) -> None:
    running = await copy.half(model)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    part = peer.home / ".models" / f"{NAME}.part"
    assert 0 < part.stat().st_size <= SIZE
    wait_until(lambda: not peer.processes(), "the end of everything")
    found = await copy(model)
    assert found == f"{peer.remote_home}/.models/{NAME}"
    assert same(peer.home / ".models" / NAME, model)
    assert not part.exists()
    copy.works.clear()
    assert await copy(model) == found
    assert not any(work.progress for work in copy.works)


async def test_a_cancelled_copy_leaves_nothing_on_its_way(
    peer: Machine, copy: Copier, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if the connection is closed right after it."""
    running = await copy.half(model)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await copy.connection.close()
    await asyncio.sleep(0)
    del running
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_a_copy_survives_a_broken_connection(
    peer: Machine, copy: Copier, model: Path
) -> None:
    running = await copy.half(model)
    peer.stop_sshd()
    peer.kill_processes()
    with pytest.raises(PeerUnreachable):
        await running
    peer.start_sshd()
    await copy(model)
    assert same(peer.home / ".models" / NAME, model)
