"""Connecting to a name with several addresses."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

import pytest

from backends.machines.ssh import login as dial_module
from backends.machines.ssh.login import dial, lookup

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


@pytest.fixture
def silent() -> Iterator[int]:
    """A port whose queue is full: who connects to it hears nothing."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        port = int(server.getsockname()[1])
        for _ in range(8):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.1", port))
        yield port


async def test_a_silent_address_does_not_hold_up_the_next(
    listening: int, silent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def found(*_: object) -> list[object]:
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*kind, ("127.0.0.1", port)) for port in (silent, 1, listening)]

    monkeypatch.setattr(dial_module, "lookup", found)
    async with asyncio.timeout(10):
        with await dial("any", 1) as made:
            assert made.getpeername() == ("127.0.0.1", listening)
    assert not asyncio.all_tasks() - {asyncio.current_task()}


async def test_a_silent_address_alone_is_left_when_told(silent: int) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await dial("127.0.0.1", silent)
    assert not asyncio.all_tasks() - {asyncio.current_task()}


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
