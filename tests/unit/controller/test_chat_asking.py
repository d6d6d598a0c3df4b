"""Who is asked before: told to who waits, and to nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
from aiohttp import web
from msgspec.structs import replace

from backends.config import Config
from backends.controller.chat import asking
from backends.controller.chat.asking import QuestionQueue, split_now
from backends.controller.chat.live import LiveChat
from backends.controller.cluster import Cluster
from backends.controller.snapshot_store import SnapshotStore
from backends.errors import ControllerError
from backends.state import (
    ChatMessage,
    ChatQuestion,
    ChatRequest,
    ClusterSnapshot,
    Conversation,
    LayerRange,
    Reply,
    Speed,
)
from backends.state import ClusterState as State
from tests.kit.waiting import until

REQUEST = ChatRequest(messages=(ChatMessage(role="user", content="Why?"),))
PIECE = b'data: {"choices":[{"delta":{"content":"So."}}]}\n\n'
END = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


class OneSlot:
    """A llama-server that answers one after the other, when it is let."""

    def __init__(self) -> None:
        self.asked = 0
        self.let = asyncio.Semaphore(0)
        self._slot = asyncio.Lock()
        self.looks = 0

    async def slots(self, request: web.Request) -> web.Response:
        self.looks += 1
        return web.json_response([{"id": 0, "is_processing": self._slot.locked()}])

    async def chat(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        async with self._slot:
            await self.let.acquire()
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(PIECE)
            await self.let.acquire()
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
    meter = SimpleNamespace(answered=lambda timings: None)
    serving = SimpleNamespace(meter=meter)
    cluster = SimpleNamespace(store=store, serving=serving, wait_s=60.0)
    try:
        yield server, cast("Cluster", cluster)
    finally:
        await runner.cleanup()


async def test_who_comes_second_is_told_and_then_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asking, "LOOK_S", 0.01)
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
    monkeypatch.setattr(asking, "LOOK_S", 0.005)
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


async def test_another_clients_request_is_ahead_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The controller saw the slot busy before we came."""
    monkeypatch.setattr(asking, "LOOK_S", 0.01)
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
        asked = ChatQuestion(question="Why?", turns=0)
        live.ask(asked, reply, lambda one: QuestionQueue().answer(cluster, one))
        server.let.release()
        await until(lambda: live.conversation.turns[-1].replies[-1].text == "So.")
        store.snapshot = replace(cluster.store.snapshot, planned=after)
        server.let.release()
        await until(lambda: live.conversation.turns[-1].replies[-1].done)
    told = live.conversation.turns[-1].replies[-1]
    assert (told.layers, told.layers_after) == (before, after)
