"""Which ssh-agent the controller logs in with."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from backends.controller.responses import AGENT_VARIABLE, with_the_agent_of_the_asker
from backends.state.base import AGENT_HEADER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

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
