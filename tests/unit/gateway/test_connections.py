"""A connection to llama-server is kept for who comes next, and never to their harm."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from aiohttp import web

from backends.gateway.upstream import Upstream
from tests.kit.waiting import until
from tests.unit.gateway.standing import abort, gateway, upstream


class Server:
    """Answers, and knows over which connection it was asked."""

    def __init__(self) -> None:
        self.connections: list[web.BaseRequest] = []
        self.aborts_at = -1
        self.go_on = asyncio.Event()
        self.go_on.set()

    @property
    def count(self) -> int:
        return len({id(one.protocol) for one in self.connections})

    async def __call__(self, request: web.BaseRequest) -> web.Response:
        self.connections.append(request)
        if len(self.connections) == self.aborts_at:
            abort(request)
        await request.read()
        await self.go_on.wait()
        return web.Response(text=str(len(self.connections)))


async def test_who_comes_alone_finds_a_connection_there() -> None:
    server = Server()
    async with upstream(server) as port, gateway() as stage:
        stage.serve(port)
        for number in "123":
            assert await stage.ask(n=1) == (200, number.encode())
        assert server.count == 1


async def test_of_several_none_holds_a_connection_that_others_wait_for() -> None:
    """A kept one takes a thread of llama-server, which may have few."""
    server = Server()
    server.go_on.clear()
    async with upstream(server) as port, gateway() as stage:
        stage.serve(port)
        asking = [asyncio.create_task(stage.ask(n=n)) for n in range(4)]
        await until(lambda: len(server.connections) == 4)
        server.go_on.set()
        await asyncio.gather(*asking)
        kept = [one for one in server.connections if one.keep_alive]
        assert (server.count, len(kept)) == (4, 1)


@pytest.mark.parametrize("told", [b"Connection: close\r\n", b""])
async def test_where_each_is_closed_another_is_there_for_who_comes_next(
    monkeypatch: pytest.MonkeyPatch, told: bytes
) -> None:
    """llama-server closes a connection after a stream, and does not say so before."""
    kept_s = "backends.gateway.upstream.KEPT_S"
    monkeypatch.setattr(kept_s, 60)
    there = 0

    async def answer(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        nonlocal there
        there += 1
        with contextlib.suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            head = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n" + told
            writer.write(head + b"\r\nwell")
        writer.close()
        there -= 1

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, gateway() as stage:
        stage.serve(server.sockets[0].getsockname()[1])
        for _ in range(3):
            assert await stage.ask(n=1) == (200, b"well")
            await until(lambda: there == 1)
        # Who comes last has nobody behind.
        monkeypatch.setattr(kept_s, 0.01)
        await stage.ask(n=1)
        await until(lambda: there == 0)


async def test_who_has_left_holds_no_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("backends.gateway.proxy.PEEK_TIMEOUT_S", 0.05)
    there = 0

    async def silent(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        nonlocal there
        there += 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
        await reader.read()
        writer.close()
        there -= 1

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server, gateway() as stage:
        stage.serve(server.sockets[0].getsockname()[1])
        looking = asyncio.create_task(stage.proxy.peek("/props"))
        await until(lambda: there == 1)
        assert await looking == b""
        await until(lambda: there == 0)


async def test_one_that_was_closed_at_that_moment_delays_nobody() -> None:
    server = Server()
    server.aborts_at = 2
    async with upstream(server) as port, gateway() as stage:
        stage.serve(port)
        await stage.ask(n=1)
        assert await stage.ask(n=2) == (200, b"3")
        await stage.until(passed=2, failed=0, replayed=0)


async def test_a_long_body_has_a_connection_of_its_own() -> None:
    server = Server()
    async with upstream(server) as port, gateway() as stage:
        stage.serve(port)
        for _ in range(2):
            await stage.ask(n="x" * (1 << 19))
        assert server.count == 2


async def test_none_that_is_being_made_ready_outlives_the_gateway() -> None:
    async with upstream(Server()) as port:
        async with Upstream() as asking:
            preparing = []
            for _ in range(2):
                asking._prepare(port)
                preparing.append(asking._preparing)
        await asyncio.wait([one for one in preparing if one])
        assert asking._kept is None
