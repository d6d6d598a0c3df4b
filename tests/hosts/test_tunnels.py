"""Tunnels of all three kinds, through real sshds."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import os
import stat
from typing import TYPE_CHECKING

import pytest

from backends.errors import MachineError
from backends.link.transport import local_transport
from tests.hosts.reaching import reached, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.hosts.machine import Machine
    from tests.hosts.network import Network

SIZE_BYTES = 1 << 20

# Reads all, and only when that has ended answers: needs the half-close.
_ECHO = """
import socketserver, sys
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        data = b""
        while piece := self.request.recv(65536):
            data += piece
            if data == b"ping":
                self.request.sendall(b"pong")
                data = b""
        self.request.sendall(data[::-1])
where = sys.argv[1]
if where.isdigit():
    Server, place = socketserver.ThreadingTCPServer, ("127.0.0.1", int(where))
else:
    Server, place = socketserver.ThreadingUnixStreamServer, where
Server.daemon_threads = True
with Server(place, Handler) as server:
    print(server.server_address[1] if where.isdigit() else where, flush=True)
    server.serve_forever()
"""


@contextlib.asynccontextmanager
async def echo(peer: Machine, where: str = "0") -> AsyncIterator[str]:
    """An echo server on the peer: its port, or its path."""
    argv = peer.container.entering(["python3", "-c", _ECHO, where])
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip()
    finally:
        await asyncio.to_thread(peer.kill_processes)
        await process.wait()


async def both_ways(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send 1 MB, end, and only then get them back."""
    data = os.urandom(SIZE_BYTES)
    writer.write(data)
    await writer.drain()
    writer.write_eof()
    back = await reader.read(-1)
    writer.close()
    assert hashlib.sha256(back).digest() == hashlib.sha256(data[::-1]).digest()


async def test_to_a_port(network: Network) -> None:
    network.write_ssh_config()
    peer = network.peer("ada")
    async with reached("ada") as ada, echo(peer) as port:
        tunnel = await ada.forward(int(port))
        links = [await asyncio.open_connection("127.0.0.1", tunnel.port) for _ in "abc"]
        await asyncio.gather(*(both_ways(*link) for link in links))
        await until(lambda: tunnel.connections == 0, "their end")
        assert tunnel.last_error is None
        reader, writer = await asyncio.open_connection("127.0.0.1", tunnel.port)
        writer.write(b"ping")
        assert await reader.readexactly(4) == b"pong"
        await tunnel.close()
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", tunnel.port)


async def test_to_a_path(network: Network, tmp_path: Path) -> None:
    network.write_ssh_config()
    peer = network.peer("ada")
    local = network.home / "a socket"
    async with reached("ada") as ada, echo(peer, "/tmp/it's a socket") as path:
        tunnel = await ada.forward(path, local)
        assert stat.S_IMODE(local.stat().st_mode) == 0o600
        await both_ways(*await asyncio.open_unix_connection(local))
        await tunnel.close()
        assert not local.exists()
        again = await ada.forward(path, local)
        await both_ways(*await asyncio.open_unix_connection(local))
        assert again.open
    assert not local.exists()


async def test_from_a_port(network: Network) -> None:
    network.write_ssh_config()
    peer = network.peer("ada")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read(-1)
        writer.write(data[::-1])
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    ours = server.sockets[0].getsockname()[1]
    ask = (
        "import hashlib, os, socket, sys; s = socket.create_connection(('127.0.0.1',"
        " int(sys.argv[1]))); d = os.urandom(1 << 20); s.sendall(d);"
        " s.shutdown(1); b = b''.join(iter(lambda: s.recv(65536), b''));"
        " sys.exit(b != d[::-1])"
    )
    async with server, reached("ada") as ada:
        tunnels = [await ada.forward_back(local_transport(ours)) for _ in range(2)]
        assert tunnels[0].port != tunnels[1].port
        for tunnel in tunnels:
            port = str(tunnel.port)
            assert f"127.0.0.1:{port}" in await asyncio.to_thread(peer.listening)
            await ada.run('python3 -c "$1" "$2"', ask, port)
            await tunnel.close()
            await until(functools.partial(_is_free, peer, port), "its end")
        dead = await ada.forward_back(local_transport(1))
        result = await ada.run('python3 -c "$1" "$2"', ask, str(dead.port), check=False)
        assert result.code != 0
        assert "Nothing listens at our 127.0.0.1:1" in str(dead.last_error)


def _is_free(peer: Machine, port: str) -> bool:
    return not any(each.endswith(f":{port}") for each in peer.listening())


async def test_nobody_at_the_far_end(network: Network) -> None:
    network.write_ssh_config()
    async with reached("ada") as ada:
        tunnel = await ada.forward(1)
        reader, writer = await asyncio.open_connection("127.0.0.1", tunnel.port)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        assert "could not connect to its port 1" in str(tunnel.last_error)


async def test_forwarding_forbidden(network: Network) -> None:
    network.write_ssh_config()
    network.peer("ada").configure(
        AllowTcpForwarding="no", AllowStreamLocalForwarding="no"
    )
    async with reached("ada") as ada:
        tunnel = await ada.forward(80)
        reader, writer = await asyncio.open_connection("127.0.0.1", tunnel.port)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        assert "forbids forwarding" in str(tunnel.last_error)
        with pytest.raises(MachineError, match="forbids forwarding"):
            await ada.forward_back(local_transport(80))


async def test_a_taken_port_and_a_bad_path(network: Network) -> None:
    network.write_ssh_config()
    async with reached("ada") as ada:
        first = await ada.forward(1)
        with pytest.raises(MachineError, match=f"Port {first.port} of this machine"):
            await ada.forward(1, first.port)
        with pytest.raises(MachineError, match="cannot be used for a tunnel"):
            await ada.forward("/x", network.home / "no" / "socket")
        with pytest.raises(MachineError, match="cannot be used for a tunnel"):
            await ada.forward("/x", network.home / ("x" * 200))


async def test_tunnels_end_with_the_connection(network: Network) -> None:
    network.write_ssh_config()
    peer = network.peer("ada")
    async with reached("ada") as ada, echo(peer) as port:
        tunnel = await ada.forward(int(port))
        reader, writer = await asyncio.open_connection("127.0.0.1", tunnel.port)
        writer.write(b"ping")
        await reader.readexactly(4)
        await asyncio.to_thread(peer.stop_sshd)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        await until(lambda: not tunnel.open, "the tunnel's end")
        await asyncio.to_thread(peer.start_sshd)
        await ada.connect()
        again = await ada.forward(int(port), tunnel.port)
        await both_ways(*await asyncio.open_connection("127.0.0.1", again.port))


async def test_a_slow_reader_holds_the_sender(network: Network) -> None:
    network.write_ssh_config()
    peer = network.peer("ada")
    flood = "import socket; s=socket.create_server(('127.0.0.1',0)); print("
    flood += "s.getsockname()[1],flush=True); c=s.accept()[0]; c.sendall(bytes(32<<20))"
    ports: list[str] = []
    async with reached("ada") as ada:
        run = asyncio.create_task(
            ada.run('python3 -c "$1"', flood, on_line=ports.append, timeout_s=None)
        )
        await until(lambda: bool(ports), "the port")
        tunnel = await ada.forward(int(ports[0]))
        reader, writer = await asyncio.open_connection("127.0.0.1", tunnel.port)
        await asyncio.sleep(1)
        assert not run.done()
        assert (await ada.run("echo alive")).stdout == "alive\n"
        count = 0
        while piece := await reader.read(1 << 20):
            count += len(piece)
        writer.close()
        assert count == 32 << 20
        await run
    await until(lambda: not peer.processes(), "nothing left there")
