"""Our small client against a real aiohttp server on a Unix socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest
from aiohttp import web

from backends.client import http


@pytest.fixture
async def socket(tmp_path: Path) -> AsyncIterator[Path]:
    async def echo(request: web.Request) -> web.Response:
        return web.Response(body=await request.read(), status=201)

    async def lines(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for part in (b"one\ntw", b"o\n", b"x" * 200_000 + b"\n"):
            await response.write(part)
        return response

    async def broken(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"half\n")
        assert request.transport is not None
        request.transport.close()
        return response

    app = web.Application()
    app.add_routes(
        [web.post("/echo", echo), web.get("/lines", lines), web.get("/broken", broken)]
    )
    runner = web.AppRunner(app)
    await runner.setup()
    path = tmp_path / "s"
    await web.UnixSite(runner, str(path)).start()
    yield path
    await runner.cleanup()


async def test_a_body_goes_and_comes(socket: Path) -> None:
    body = bytes(range(256)) * 1000
    async with http.request(socket, "POST", "/echo", body) as response:
        assert response.status == 201
        assert await response.read() == body


async def test_lines_are_put_together(socket: Path) -> None:
    async with http.request(socket, "GET", "/lines") as response:
        lines = [line async for line in response.lines()]
    assert [len(line) for line in lines] == [3, 3, 200_000]


async def test_an_answer_that_breaks_off_is_an_error(socket: Path) -> None:
    async with http.request(socket, "GET", "/broken") as response:
        with pytest.raises(ConnectionError):
            async for _ in response.lines():
                pass


async def test_junk_instead_of_http_is_an_error(tmp_path: Path) -> None:
    async def junk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x00\x01 not http at all\r\n\r\n")
        writer.close()

    path = tmp_path / "junk"
    async with await asyncio.start_unix_server(junk, str(path)):
        with pytest.raises(ConnectionError):
            async with http.request(path, "GET", "/"):
                pass


async def test_one_that_is_busy_is_waited_for_longer_but_not_for_ever(
    tmp_path: Path,
) -> None:
    looks: list[bool] = []
    answer, loop = asyncio.Event(), asyncio.get_running_loop()

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer.wait()
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    def is_busy(until: int) -> bool:
        looks.append(True)
        if len(looks) == until:
            loop.call_soon_threadsafe(answer.set)
        return True

    async def asked(is_busy: Callable[[], bool]) -> int:
        way = http.request(path, "GET", "/", silence_s=0.05, is_busy=is_busy)
        async with way as response:
            return response.status

    path = tmp_path / "silent"
    async with await asyncio.start_unix_server(silent, str(path)):
        with pytest.raises(TimeoutError):
            await asked(lambda: False)
        with pytest.raises(TimeoutError):
            await asked(partial(is_busy, 0))
        assert len(looks) == http.BUSY_SILENCES - 1
        looks.clear()
        assert await asked(partial(is_busy, 1)) == 204


async def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        async with http.request(tmp_path / "none", "GET", "/"):
            pass
