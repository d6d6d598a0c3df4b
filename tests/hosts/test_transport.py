"""Ways between head and worker through real sshds: private, watched, replaced."""

from __future__ import annotations

import asyncio
import contextlib
import stat
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import psutil
from msgspec.structs import replace

from backends.link.transport import (
    LinkTransport,
    TransportKind,
    TransportSpec,
    path_of,
    port_of,
)
from backends.machines.machine import LocalMachine, open_way
from tests.hosts.reaching import reached, until
from tests.hosts.test_tunnels import both_ways, echo
from tests.kit.clusters import paths_in
from tests.kit.local_peer import ssh_peer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from backends.machines.peer import SshPeer
    from tests.hosts.machine import Machine
    from tests.hosts.network import Network

SPEC = TransportSpec(cluster="default", worker="w")
_PING = """
import socket, sys
where = sys.argv[1]
unix = where.startswith("unix:")
s = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
s.connect(where[5:] if unix else ("127.0.0.1", int(where.rpartition(":")[2])))
s.sendall(b"ping")
sys.exit(s.recv(4) != b"pong")
"""


@contextlib.asynccontextmanager
async def machine(name: str, home: Path) -> AsyncIterator[SshPeer]:
    """A peer as the cluster uses it."""
    paths = paths_in(home)
    async with reached(name) as connection:
        made = ssh_peer(name, connection, paths, "cafe")
        yield made


async def ping(peer: Machine, endpoint: str) -> bool:
    """Whether somebody at the other end of a way answers a program on that peer."""
    argv = ["python3", "-c", _PING, endpoint]
    done = await asyncio.to_thread(peer.run, argv, check=False)
    return done.returncode == 0


def our_listeners() -> set[int]:
    """TCP ports at which this process listens."""
    found = psutil.Process().net_connections("tcp")
    return {each.laddr.port for each in found if each.status == psutil.CONN_LISTEN}


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def here() -> LocalMachine:
    """This machine, of which only the ways are used."""
    nothing = cast("Any", None)
    return LocalMachine(nothing, nothing, nothing, nothing)


async def test_to_a_peer_s_worker(network: Network) -> None:
    network.write_ssh_config()
    peer, before = network.peer("ada"), our_listeners()
    async with machine("ada", network.home) as ada, echo(peer) as port:
        way = await open_way(ada, here(), int(port), SPEC)
        near = path_of(way.endpoint)
        assert near == network.home / "run" / "default" / "w.sock"
        assert (mode_of(near), mode_of(near.parent)) == (0o600, 0o700)
        assert (way.kind, way.open, way.rtt_ms) == (TransportKind.TUNNEL, True, 1.5)
        await both_ways(*await asyncio.open_unix_connection(near))
        assert our_listeners() == before, "another user could connect to a port"
        await way.close()
        assert not way.open
        assert not near.exists()


async def test_from_a_head_elsewhere(network: Network) -> None:
    network.write_ssh_config()
    ada, bob = network.peer("ada"), network.peer("bob")
    before = our_listeners()
    async with (
        machine("ada", network.home) as head,
        machine("bob", network.home) as worker,
        echo(bob) as port,
    ):
        way = await open_way(worker, head, int(port), SPEC)
        far = path_of(way.endpoint)
        assert far is not None
        assert mode_of(ada.inside(str(far))) == 0o600
        assert way.rtt_ms == 3.0, "both connections lie between"
        assert way.note == ""
        assert await ping(ada, way.endpoint)
        assert ada.listening() == []
        assert our_listeners() == before
        await way.close()
        assert not await ping(ada, way.endpoint)
        again = await open_way(worker, head, int(port), SPEC)
        assert again.endpoint == way.endpoint
        assert again.incarnation != way.incarnation
        assert await ping(ada, again.endpoint)


async def test_a_worker_here_for_a_head_there(network: Network) -> None:
    network.write_ssh_config()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"pong" if await reader.readexactly(4) == b"ping" else b"what")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, machine("ada", network.home) as head:
        way = await open_way(here(), head, port, SPEC)
        assert await ping(network.peer("ada"), way.endpoint)


async def test_one_machine_needs_no_tunnel(network: Network) -> None:
    network.write_ssh_config()
    async with machine("ada", network.home) as ada:
        way = await open_way(ada, ada, 4711, SPEC)
        assert (way.kind, way.endpoint) == (TransportKind.LOCAL, "127.0.0.1:4711")
        assert way.open


async def test_without_a_relay_it_is_a_port_and_says_so(network: Network) -> None:
    network.write_ssh_config()
    peer, spec = network.peer("bob"), replace(SPEC, tcp=True)
    async with (
        machine("ada", network.home) as head,
        machine("bob", network.home) as worker,
        echo(peer) as port,
    ):
        way = await open_way(worker, here(), int(port), spec)
        await both_ways(
            *await asyncio.open_connection("127.0.0.1", port_of(way.endpoint))
        )
        assert way.note == "any user of this machine can reach the worker"
        there = await open_way(worker, head, int(port), spec)
        assert await ping(network.peer("ada"), there.endpoint)
        assert there.note == "any user of ada can reach the worker"


async def test_an_sshd_without_unix_sockets_gives_a_port_and_says_so(
    network: Network,
) -> None:
    network.write_ssh_config()
    ada, bob = network.peer("ada"), network.peer("bob")
    ada.configure(AllowStreamLocalForwarding="no")
    async with (
        machine("ada", network.home) as head,
        machine("bob", network.home) as worker,
        echo(bob) as port,
    ):
        way = await open_way(worker, head, int(port), SPEC)
        assert f"127.0.0.1:{port_of(way.endpoint)}" in ada.listening()
        assert await ping(ada, way.endpoint)
        assert "makes no Unix sockets" in way.note
        assert "any user of ada" in way.note


async def test_a_broken_way_is_seen_at_once_and_replaced(network: Network) -> None:
    network.write_ssh_config()
    ada, bob = network.peer("ada"), network.peer("bob")
    told: list[str] = []
    ways: dict[str, LinkTransport] = {}
    async with (
        machine("ada", network.home) as head,
        machine("bob", network.home) as worker,
        echo(bob) as port,
    ):
        for name, far in (("near", here()), ("far", head)):
            way = await open_way(worker, far, int(port), replace(SPEC, worker=name))
            way.on_broken = partial(told.append, name)
            ways[name] = way
        await asyncio.to_thread(ada.stop_sshd)
        await until(lambda: told == ["far"], "the one through ada is told")
        near, broken = ways["near"], ways["far"]
        assert (near.open, broken.open) == (True, False)
        await asyncio.to_thread(bob.stop_sshd)
        await until(lambda: len(told) == 2, "the one through bob alone is told")
        assert told == ["far", "near"]
        await asyncio.to_thread(ada.start_sshd)
        await asyncio.to_thread(bob.start_sshd)
        await asyncio.gather(head.connection.connect(), worker.connection.connect())
        spec = replace(SPEC, worker="far")
        way = await open_way(worker, head, int(port), spec)
        await broken.close()
        assert way.incarnation != broken.incarnation
        assert way.endpoint == broken.endpoint
        assert await ping(ada, way.endpoint), "also where the broken one left a socket"
        await way.close()
        await near.close()
        assert not way.open
        assert told == ["far", "near"], "closing is not breaking"
