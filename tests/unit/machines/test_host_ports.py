"""Ports: free ones, and who listens where."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.unit.machines.processes import first_line, python, spec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backends.machines.agent import AgentSession

LISTENER = """
import socket, sys, time
s = socket.socket(); s.bind((sys.argv[1], 0)); s.listen()
print(s.getsockname()[1], flush=True); time.sleep(600)
"""


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def port_of(server: socket.socket) -> int:
    return int(server.getsockname()[1])


async def test_free_ports_are_free_and_not_given_twice(host: AgentSession) -> None:
    found = [await host.free_port() for _ in range(50)]
    assert len(set(found)) == 50
    for port in found:
        with socket.create_server(("127.0.0.1", port)):
            pass


async def test_who_listens(host: AgentSession, listening: socket.socket) -> None:
    port = port_of(listening)
    assert await host.listens(os.getpid(), port)
    assert not await host.listens(os.getppid(), port)
    assert not await host.listens(os.getpid(), port - 1)
    owner = await host.port_owner(port)
    assert owner == f"{psutil.Process().name()} (pid {os.getpid()})"


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
async def test_a_started_listener(host: AgentSession, address: str) -> None:
    record = await host.start(spec(argv=python(LISTENER, address)))
    port = int(await first_line(host))
    assert await host.listens(record.pid, port)
    owner = await host.port_owner(port)
    assert owner is not None
    assert owner.endswith(f"(pid {record.pid})")
    await host.stop("p")
    assert not await host.listens(record.pid, port)
    assert await host.port_owner(port) is None


async def test_lingering_connections_leave_a_port_free(host: AgentSession) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    address = server.getsockname()
    client = socket.create_connection(address)
    accepted, _ = server.accept()
    # Who closes first lingers in TIME_WAIT: the server's end.
    accepted.close()
    client.close()
    server.close()
    assert await host.port_owner(address[1]) is None
