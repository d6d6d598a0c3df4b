"""Ports and memory of this machine."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import psutil
import pytest

from backends.machines.facts import MemoryInfo, MemoryLimit, device_of
from backends.state import DeviceKind
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


GIB = 1 << 30


async def test_this_machine(host: AgentSession) -> None:
    device = await host.memory()
    assert (device.id, device.name, device.kind) == ("local/CPU", "CPU", DeviceKind.CPU)
    assert device.memory_pool == "local"
    assert 0 < device.free_bytes <= device.total_bytes
    assert device.total_bytes <= psutil.virtual_memory().total
    assert "core" in device.description
    assert device.budget_bytes is None


def told(*limits: tuple[int, int]) -> MemoryInfo:
    return MemoryInfo(
        total_bytes=8 * GIB,
        available_bytes=6 * GIB,
        limits=tuple(MemoryLimit(limit_bytes=a, available_bytes=b) for a, b in limits),
        cpu="Some   CPU",
        cores=4,
    )


def test_without_a_limit_it_is_the_machine_s() -> None:
    device = device_of(told(), "box")
    assert (device.total_bytes, device.free_bytes) == (8 * GIB, 6 * GIB)
    assert device.description == "Some CPU, 4 cores"


def test_the_narrowest_limit_of_all_levels_counts() -> None:
    """What is left may be least at another level than the one with the least limit."""
    device = device_of(told((4 * GIB, GIB), (2 * GIB, 2 * GIB), (100 * GIB, GIB)), "b")
    assert (device.total_bytes, device.free_bytes) == (2 * GIB, GIB)
