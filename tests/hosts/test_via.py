"""A lent machine that only an SSH host reaches: through real sshds."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from typing import TYPE_CHECKING

import pytest

from backends.errors import MachineError
from backends.machines.ssh.lent import LentConnection, ThroughHost, pair
from backends.mesh.dialling import Dialled
from backends.state import PeerPath
from tests.engine.conftest import wait_for
from tests.hosts.reaching import until
from tests.hosts.user import HeadUser
from tests.unit.mesh.lent import LentMachine, lent
from tests.unit.mesh.test_moving import door_to

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.hosts.machine import Machine
    from tests.hosts.network import Network

_PASSES_ON = """
import asyncio, sys
async def flow(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()
async def come(reader, writer):
    there, on = await asyncio.open_connection(sys.argv[1], int(sys.argv[2]))
    await asyncio.gather(flow(reader, on), flow(there, writer))
async def main():
    server = await asyncio.start_server(come, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


@contextlib.asynccontextmanager
async def passing_on(peer: Machine, place: str) -> AsyncIterator[int]:
    """A port of the peer's loopback that leads to a place."""
    words = ["python3", "-c", _PASSES_ON, *place.split(":")]
    process = await asyncio.create_subprocess_exec(
        *peer.container.entering(words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        yield int(await process.stdout.readline())
    finally:
        await asyncio.to_thread(peer.kill_processes)
        await process.wait()


class Beyond:
    """A lent machine; ``place`` is of it on ada, and leads nowhere from here."""

    def __init__(self, machine: LentMachine, port: int) -> None:
        self.machine = machine
        self.port = port
        self.place = f"127.0.0.1:{port}"
        self.dial = ThroughHost(Dialled([self.place]), "ada", [self.place])

    async def pair(self) -> str:
        key = self.machine.console.console_key_file
        return await pair(self.machine.token(), key, "studio", self.dial)


@pytest.fixture
async def beyond(network: Network, tmp_path: Path) -> AsyncIterator[Beyond]:
    network.write_ssh_config()
    async with (
        lent(tmp_path, address=network.address) as machine,
        passing_on(
            network.peer("ada"), f"{network.address}:{machine.pairings.read().port}"
        ) as port,
    ):
        yield Beyond(machine, port)


async def test_it_is_reached_through_the_host_until_tcp_goes(
    beyond: Beyond, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FIRST_LOOK_S", "PROVE_S"):
        monkeypatch.setattr(f"backends.machines.ssh.lent.{name}", 0.2)
    assert await beyond.pair() == "nuc"
    machine = beyond.machine
    (model := machine.models / "m.gguf").touch()
    key = machine.console.console_key_file
    connection = LentConnection("nuc", beyond.dial, machine.host_key, key)
    connection.start()
    try:
        await until(lambda: connection.path, "the way through ada")
        assert connection.path == PeerPath(via="ada", address=beyond.place)
        await until(lambda: connection.state.rtt_ms, "its round trip")
        async with connection.files() as sftp:
            assert await sftp.exists(str(model))
        own = machine.pairings.read().port
        async with door_to(own, network.address, beyond.port) as door:
            door.open()
            await until(lambda: not connection.path, "TCP")
            assert connection.connected
    finally:
        await connection.stop()
    ada = network.peer("ada")
    await until(lambda: not _logins(ada), "the end of its logins")


def _logins(peer: Machine) -> bool:
    return "sshd: root@notty" in peer.run(["ps", "-eo", "args"]).stdout


async def test_a_host_that_forwards_nothing_or_asks_is_told(
    beyond: Beyond, network: Network
) -> None:
    network.peer("ada").configure(AllowTcpForwarding="no")
    with pytest.raises(MachineError, match="ada forbids forwarding to 127"):
        await beyond.pair()
    network.known_hosts.write_text("")
    with pytest.raises(MachineError, match="ada asks something before") as told:
        await beyond.pair()
    assert "127.0.0.1" in str(told.value)


def test_a_token_is_taken_through_a_host(network: Network, user: HeadUser) -> None:
    owner = HeadUser(network, user.cache, state=network.home / "owner")
    inside = ["nsenter", "-t", str(network.peer("ada").container.pid), "-n", "--"]
    # The loopback of ada, which nobody else reaches.
    lends = ("run", "--headless", "--name", "nuc", "--listen", "127.0.0.1:51080")
    words = [*inside, "dllm-tui", "worker"]
    worker = subprocess.Popen([*words, *lends], env=owner.env)

    def token() -> str:
        asked = [*words, "invite"]
        done = subprocess.run(asked, env=owner.env, stdout=subprocess.PIPE, text=True)
        return done.stdout.strip()

    try:
        user.run("peers", "add", wait_for(token, "a token"), "--via", "ada")
        shown = user.run("peers", "show", "nuc").stdout
        assert "SSH through ada to 127.0.0.1:51080" in shown
        assert " via " in user.run("peers", "list").stdout
        user.run("peers", "remove", "nuc")
    finally:
        user.run("stop")
        worker.terminate()
        worker.wait()
