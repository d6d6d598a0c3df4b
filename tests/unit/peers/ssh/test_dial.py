"""Connecting to a name with several addresses."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import pytest

from backends.peers.ssh import dial as dial_module
from backends.peers.ssh.dial import dial, lookup

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


async def test_dialled(listening: int) -> None:
    with await dial("127.0.0.1", listening) as made:
        assert made.getpeername() == ("127.0.0.1", listening)
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_nobody_there() -> None:
    with pytest.raises(ConnectionRefusedError):
        await dial("127.0.0.1", 1)


async def test_unknown_names() -> None:
    for name in ("no.such.machine.invalid", "x" * 300):
        with pytest.raises(socket.gaierror):
            await dial(name, 22)


async def test_a_silent_address_does_not_hold_up_the_next(
    listening: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = dial_module._connect

    async def connect(address: dial_module.Address) -> socket.socket:
        if address[1] == "silent":
            await asyncio.sleep(60)
        if address[1] == "refusing":
            raise ConnectionRefusedError
        return await real(address)

    async def found(*_: object) -> list[dial_module.Address]:
        good = (int(socket.AF_INET), ("127.0.0.1", listening))
        return [(0, "silent"), (0, "refusing"), good]

    monkeypatch.setattr(dial_module, "_connect", connect)
    monkeypatch.setattr(dial_module, "lookup", found)
    async with asyncio.timeout(10):
        (await dial("any", 1)).close()
    assert not asyncio.all_tasks() - {asyncio.current_task()}


async def test_families_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        (family, 1, 6, "", name) for family, name in ((10, "a"), (10, "b"), (2, "c"))
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found)
    assert [each[1] for each in await lookup("x", 1, 0)] == ["a", "c", "b"]


async def test_a_lookup_nobody_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    release = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(*_: object) -> list[object]:
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result(10)
        raise OSError("late")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await lookup("x", 1, 0)
    release.set()
    await asyncio.sleep(0.05)
