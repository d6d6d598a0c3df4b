"""How requests end: work outlives its asker, a stream does not, errors are values."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from backends.client import http
from backends.client.calls import RequestFailed, _require_whole
from backends.controller import responses
from backends.controller.responses import (
    AGENT_VARIABLE,
    errors_as_values,
    json_response,
    outlives_its_asker,
    start_stream,
    with_the_agent_of_the_asker,
)
from backends.errors import ControllerError
from backends.state.base import AGENT_HEADER
from tests.kit.waiting import until

# A machine may stand still for a second or two.
SILENCE_S = 3.0


class Server:
    """An application with the controller's manners and handlers that tell on it."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.began = asyncio.Event()
        self.go_on = asyncio.Event()
        self.ended: list[str] = []

    def application(self) -> web.Application:
        app = web.Application(middlewares=[outlives_its_asker, errors_as_values])
        app.add_routes(
            [
                web.post("/work", self.work),
                web.post("/asked", self.asked),
                web.post("/stream", self.stream),
                web.post("/breaks", self.breaks),
                web.post("/bug", self.bug),
            ]
        )
        return app

    async def work(self, request: web.Request) -> web.Response:
        self.began.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        self.ended.append("done")
        return json_response("done")

    async def asked(self, request: web.Request) -> web.Response:
        self.began.set()
        try:
            return json_response((await request.read()).decode())
        finally:
            self.ended.append("asked")

    async def stream(self, request: web.Request) -> web.StreamResponse:
        response = await start_stream(request)
        self.began.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        return response

    async def breaks(self, request: web.Request) -> web.StreamResponse:
        response = await start_stream(request)
        await response.write(b"1\n")
        raise ControllerError("The model is gone", "Launch it again.")

    async def bug(self, request: web.Request) -> web.StreamResponse:
        await start_stream(request)
        raise KeyError("oh")


@pytest.fixture
async def server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Server]:
    monkeypatch.setattr(responses, "ALIVE_EVERY_S", 0.05)
    server = Server(tmp_path / "s")
    runner = web.AppRunner(server.application(), handler_cancellation=True)
    await runner.setup()
    await web.UnixSite(runner, str(server.socket)).start()
    yield server
    server.go_on.set()
    await runner.cleanup()


async def leave(server: Server, path: str) -> None:
    async def ask() -> None:
        async with http.request(server.socket, "POST", path) as response:
            await response.read()

    asking = asyncio.create_task(ask())
    await server.began.wait()
    asking.cancel()
    await asyncio.wait([asking])
    await asyncio.sleep(0.2)


async def test_work_goes_on_when_its_asker_leaves(server: Server) -> None:
    await leave(server, "/work")
    assert server.ended == []
    server.go_on.set()
    await until(lambda: server.ended == ["done"])


async def test_who_leaves_in_the_middle_of_a_question_is_no_news(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    # What earlier tests left is not told here.
    gc.collect()
    caplog.clear()
    _, writer = await asyncio.open_unix_connection(str(server.socket))
    writer.write(b"POST /asked HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
    await server.began.wait()
    writer.close()
    await until(lambda: server.ended == ["asked"])
    await until(lambda: not responses._at_work)
    gc.collect()
    assert caplog.text == ""


async def test_a_stream_ends_with_its_reader(server: Server) -> None:
    await leave(server, "/stream")
    await until(lambda: server.ended == ["cancelled"])


@pytest.mark.parametrize("path", ["/work", "/stream"])
async def test_long_work_is_no_silence(server: Server, path: str) -> None:
    """Longer than silence is borne."""

    async def let_go() -> None:
        await asyncio.sleep(1.3 * SILENCE_S)
        server.go_on.set()

    letting = asyncio.create_task(let_go())
    async with http.request(
        server.socket, "POST", path, silence_s=SILENCE_S
    ) as response:
        assert response.status == 200
        assert (await response.read()).strip() in (b"", b'"done"')
    await letting


async def test_a_failure_in_a_stream_is_its_last_line(server: Server) -> None:
    async with http.request(server.socket, "POST", "/breaks") as response:
        first, last = [line async for line in response.lines()]
    assert first == b"1"
    with pytest.raises(RequestFailed, match="The model is gone"):
        _require_whole(last)


async def test_a_bug_in_a_stream_is_its_last_line_and_in_the_log(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with http.request(server.socket, "POST", "/bug") as response:
        (last,) = [line async for line in response.lines()]
    with pytest.raises(RequestFailed, match="KeyError"):
        _require_whole(last)
    assert "request /bug failed" in caplog.text


# --- the ssh-agent of who asks ---------------------------------------------------

Client = TestClient[web.Request, web.Application]


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async def fine(_: web.Request) -> web.Response:
        return web.Response()

    app = web.Application(middlewares=[with_the_agent_of_the_asker])
    app.add_routes([web.get("/", fine), web.post("/", fine)])
    async with TestClient(TestServer(app)) as started:
        yield started


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(AGENT_VARIABLE, "/gone/agent")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "agent"))
        yield tmp_path / "agent"


async def test_the_agent_of_who_asks_is_taken(client: Client, agent: Path) -> None:
    await client.get("/", headers={AGENT_HEADER: str(agent)})
    assert os.environ[AGENT_VARIABLE] == "/gone/agent", (
        "who only looks on changes nothing"
    )
    await client.post("/", headers={AGENT_HEADER: str(agent)})
    assert os.environ[AGENT_VARIABLE] == str(agent)
    await client.post("/")
    assert os.environ[AGENT_VARIABLE] == str(agent)


async def test_only_a_socket_of_ours_is_taken(client: Client, agent: Path) -> None:
    file = agent.with_name("file")
    file.touch()
    for path in (str(file), "/dev/null", "/nowhere", "relative", ""):
        await client.post("/", headers={AGENT_HEADER: path})
        assert os.environ[AGENT_VARIABLE] == "/gone/agent"
