"""How requests end: work outlives its asker, a stream does not, errors are values."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, MagicMock

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer, make_mocked_request
from msgspec.structs import replace

from backends.client import http
from backends.client.calls import RequestFailed, _require_whole
from backends.config import Config
from backends.controller import chat_api, http_server, model_api
from backends.controller.chat.live import LiveChat
from backends.controller.chat_api import QuestionQueue, split_now
from backends.controller.cluster import Cluster
from backends.controller.http_server import (
    AGENT_VARIABLE,
    errors_as_values,
    json_response,
    outlives_its_asker,
    start_stream,
    with_the_agent_of_the_asker,
)
from backends.controller.model_api import ModelApi
from backends.controller.snapshot_store import SnapshotStore
from backends.errors import ControllerError
from backends.state import (
    ChatMessage,
    ChatRequest,
    ChatTimings,
    ClusterSnapshot,
    Conversation,
    LayerRange,
    QuestionRequest,
    Reply,
    Speed,
)
from backends.state import ClusterState as State
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
    monkeypatch.setattr(http_server, "ALIVE_EVERY_S", 0.05)
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
    await until(lambda: not http_server._at_work)
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


# --- Questions about models here, where a disk may hang ---


async def test_a_disk_that_hangs_takes_one_thread_however_often_it_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[str] = []
    answers = threading.Event()

    def names_after(typed: str) -> tuple[str, ...]:
        looks.append(typed)
        answers.wait()
        return ("mini.gguf",)

    monkeypatch.setattr(model_api, "names_after", names_after)
    api = ModelApi(MagicMock(), MagicMock())

    def asked(path: str) -> asyncio.Task[Any]:
        request = make_mocked_request("GET", f"/v1/paths?path={path}")
        return asyncio.create_task(api._paths(request))

    try:
        impatient = asked("/a")
        await until(lambda: looks == ["/a"])
        impatient.cancel()
        patient = asked("/b")
        await asyncio.to_thread(time.monotonic)  # Other work goes on.
        assert looks == ["/a"]
    finally:
        answers.set()
    assert (await patient).text == '["mini.gguf"]'
    assert looks == ["/a", "/b"]


# --- Who is asked before: told to who waits, and to nobody else ---

REQUEST = ChatRequest(messages=(ChatMessage(role="user", content="Why?"),))
PIECE = (
    b'data: {"choices":[{"delta":{"content":"So."}}],'
    b'"timings":{"predicted_n":7,"predicted_per_second":1.4}}\n\n'
)
END = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


class OneSlot:
    """A llama-server that answers one after the other, when it is let."""

    def __init__(self) -> None:
        self.asked = 0
        self.let = asyncio.Semaphore(0)
        self._slot = asyncio.Lock()
        self.looks = 0
        self.cuts = 0
        """So many answers break off after the first piece, as with a killed gateway."""
        self.seeds: list[int] = []
        self.ended: list[ChatTimings] = []
        """The timings of each answer, as the controller was told of them."""

    async def slots(self, request: web.Request) -> web.Response:
        self.looks += 1
        return web.json_response([{"id": 0, "is_processing": self._slot.locked()}])

    async def chat(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        self.seeds.append((await request.json())["seed"])
        async with self._slot:
            await self.let.acquire()
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(PIECE)
            await self.let.acquire()
            if self.asked <= self.cuts:
                assert request.transport is not None
                request.transport.abort()
                return response
            await response.write(END)
        return response


@asynccontextmanager
async def served(active: int = 0) -> AsyncIterator[tuple[OneSlot, Cluster]]:
    """The server, and the cluster as the controller sees it."""
    server = OneSlot()
    app = web.Application()
    app.router.add_get("/slots", server.slots)
    app.router.add_post("/v1/chat/completions", server.chat)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    speed = Speed(slots=1, requests_active=active)
    snapshot = ClusterSnapshot(state=State.SERVING, api_url=url, speed=speed)
    store = SimpleNamespace(snapshot=snapshot)
    serving = SimpleNamespace(answered=server.ended.append)
    cluster = SimpleNamespace(store=store, serving=serving, wait_s=60.0)
    try:
        yield server, cast("Cluster", cluster)
    finally:
        await runner.cleanup()


async def test_who_comes_second_is_told_and_then_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chat_api, "LOOK_S", 0.01)
    together = QuestionQueue()
    async with served() as (server, cluster):
        one = together.answer(cluster, REQUEST)
        server.let.release()
        assert (await anext(one)).text == "So."
        two = together.answer(cluster, REQUEST)
        three = together.answer(cluster, REQUEST)
        assert (await anext(two)).ahead == 1
        assert (await anext(three)).ahead == 2
        for _ in range(5):
            server.let.release()
        assert [delta.text async for delta in one] == [""]
        assert [delta.text async for delta in two if not delta.ahead] == ["So.", ""]
        assert [delta.text async for delta in three if not delta.ahead] == ["So.", ""]


async def test_who_is_alone_is_told_of_nobody_though_the_slot_is_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is busy with the question itself: a slow prompt is no queue."""
    monkeypatch.setattr(chat_api, "LOOK_S", 0.005)
    async with (
        served() as (server, cluster),
        aclosing(QuestionQueue().answer(cluster, REQUEST)) as deltas,
    ):
        first = asyncio.ensure_future(anext(deltas))
        await asyncio.wait([first], timeout=0.1)
        assert not first.done()
        assert server.looks == 0
        server.let.release()
        server.let.release()
        assert (await first).text == "So."


async def test_a_stopped_answer_tells_its_own_speed() -> None:
    async with served() as (server, cluster):
        server.let.release()
        async with aclosing(QuestionQueue().answer(cluster, REQUEST)) as deltas:
            await anext(deltas)
            assert not server.ended
        assert [(one.tokens, one.tok_per_s) for one in server.ended] == [(7, 1.4)]


async def test_an_answer_goes_on_after_its_gateway_was_killed() -> None:
    async with served() as (server, cluster):
        server.cuts = 2
        for _ in range(6):
            server.let.release()
        deltas = [one async for one in QuestionQueue().answer(cluster, REQUEST)]
        assert "".join(one.text for one in deltas) == "So."
        assert [one.done for one in deltas if not one.waiting] == [False, True]
        assert len(server.seeds) == 3
        assert len(set(server.seeds)) == 1, "the same is drawn again"


async def test_a_repeated_answer_that_is_otherwise_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with served() as (server, cluster):
        server.cuts = 1
        server.let.release()
        deltas = []
        async with aclosing(QuestionQueue().answer(cluster, REQUEST)) as answer:
            async for delta in answer:
                deltas.append(delta)
                if delta.waiting:
                    other = PIECE.replace(b"So", b"No")
                    monkeypatch.setattr(f"{__name__}.PIECE", other)
                server.let.release()
        assert [one.text for one in deltas] == ["So.", "", ""]
        assert deltas[-1].failure is not None
        assert "would go on otherwise" in deltas[-1].failure.what


async def test_an_answer_of_a_stopped_cluster_is_not_asked_for_again() -> None:
    async with served() as (server, cluster):
        server.cuts = 1
        server.let.release()
        async with aclosing(QuestionQueue().answer(cluster, REQUEST)) as answer:
            assert (await anext(answer)).text == "So."
            store: Any = cluster.store
            store.snapshot = replace(store.snapshot, state=State.STOPPING)
            server.let.release()
            last = await anext(answer)
        assert (last.finish_reason, server.asked) == ("error", 1)
        assert last.failure is not None


async def test_other_clients_are_ahead_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller saw the slot busy before we came."""
    monkeypatch.setattr(chat_api, "LOOK_S", 0.01)
    async with served(active=1) as (server, cluster):
        other = QuestionQueue().answer(cluster, REQUEST)
        ours = QuestionQueue().answer(cluster, REQUEST)
        begun = asyncio.ensure_future(anext(other))
        while server.asked == 0:  # noqa: ASYNC110 -- the server has no event for it
            await asyncio.sleep(0.002)
        assert (await anext(ours)).ahead == 1
        begun.cancel()
        await asyncio.wait([begun])
        await other.aclose()
        await ours.aclose()


async def test_a_question_waits_while_the_cluster_is_brought_up() -> None:
    """As any request to the API does, and no longer."""
    async with served() as (server, cluster):
        store = SnapshotStore(Config)
        serves = cluster.store.snapshot
        store.update(state=State.LOADING)
        cluster.store, cluster.wait_s = store, 60.0  # type: ignore[misc]
        server.let.release()
        server.let.release()
        async with aclosing(QuestionQueue().answer(cluster, REQUEST)) as deltas:
            assert (await anext(deltas)).waiting == "the cluster is loading"
            store.update(state=State.SERVING, api_url=serves.api_url)
            text = "".join([delta.text async for delta in deltas])
        assert text == "So."
        store.update(state=State.STARTING)
        cluster.wait_s = 0.01  # type: ignore[misc]
        with pytest.raises(ControllerError, match="api_wait_s"):
            async for _ in QuestionQueue().answer(cluster, REQUEST):
                pass
        store.update(state=State.IDLE)
        with pytest.raises(ControllerError, match="No model is serving"):
            async for _ in QuestionQueue().answer(cluster, REQUEST):
                pass


async def test_an_answer_that_crosses_a_launch_tells_both_splits() -> None:
    before, after = (LayerRange("a/CPU", 0, 12),), (LayerRange("b/CPU", 0, 12),)
    async with served() as (server, cluster):
        store: Any = cluster.store
        live = LiveChat(
            Conversation(id="1", cluster="default"),
            keep=AsyncMock(),
            told=lambda: None,
            save_s=9.0,
        )
        store.snapshot = replace(cluster.store.snapshot, planned=before)
        reply = Reply(layers=split_now(cluster))
        asked = QuestionRequest(question="Why?", turns=0)
        live.ask(asked, reply, lambda one: QuestionQueue().answer(cluster, one))
        server.let.release()
        await until(lambda: live.conversation.turns[-1].replies[-1].text == "So.")
        store.snapshot = replace(cluster.store.snapshot, planned=after)
        server.let.release()
        await until(lambda: live.conversation.turns[-1].replies[-1].done)
    told = live.conversation.turns[-1].replies[-1]
    assert (told.layers, told.layers_after) == (before, after)
