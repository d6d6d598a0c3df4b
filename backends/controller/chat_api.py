"""The part of the API that is about questions, answers and conversations."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from aiohttp import web

from backends.controller.chat.asking import QuestionQueue, require_wanted, split_now
from backends.controller.responses import (
    body,
    frames,
    json_response,
    start_stream,
    write_values,
)
from backends.state import ChatChange, ChatQuestion, ChatRequest, Reply, Value
from backends.state.chats import chat_framed

if TYPE_CHECKING:
    from backends.controller.chat.live import LiveChat
    from backends.controller.cluster import Cluster
    from backends.controller.responses import Parts
    from backends.state import Conversation


class ChatModel(Value, frozen=True, kw_only=True):
    """The model whose current conversation is meant."""

    model: str = ""


class ChatApi:
    """Answers requests about chats; answers go on when nobody looks any more."""

    def __init__(self, parts: Parts) -> None:
        self._of = parts.cluster_of
        self._chats = parts.chats
        self._asking = QuestionQueue()

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/chat", self._chat),
            web.get("/v1/chats", self._list),
            web.post("/v1/chats", self._begin),
            web.get("/v1/chats/events", self._events),
            web.get("/v1/chats/{id}", self._get),
            web.delete("/v1/chats/{id}", self._delete),
            web.post("/v1/chats/{id}/restore", self._restore),
            web.post("/v1/chats/{id}/open", self._open),
            web.post("/v1/chats/{id}/ask", self._ask),
            web.post("/v1/chats/{id}/stop", self._stop),
            web.post("/v1/chats/{id}/change", self._change),
        ]

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        """Pass an answer on as it comes; a reader who leaves ends the generation."""
        asked = await body(request, ChatRequest)
        cluster = self._of(request)
        require_wanted(cluster.store.snapshot)
        response = await start_stream(request)
        await write_values(response, self._asking.answer(cluster, asked))
        return response

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """A conversation as it changes: one by its id, else the current one."""
        name, query = self._of(request).name, request.query
        model, chat = query.get("model", ""), query.get("id", "")
        response = await start_stream(request)
        states = self._chats.states(name, model, chat)
        await write_values(response, frames(states, chat_framed))
        return response

    async def _list(self, request: web.Request) -> web.Response:
        return json_response(await self._chats.listing())

    async def _get(self, request: web.Request) -> web.Response:
        return json_response((await self._chat_of(request)).state)

    async def _begin(self, request: web.Request) -> web.Response:
        asked = await body(request, ChatModel)
        chat = await self._chats.begin(self._of(request).name, asked.model)
        return json_response(chat.state)

    async def _open(self, request: web.Request) -> web.Response:
        asked = await body(request, ChatModel)
        id_, name = request.match_info["id"], self._of(request).name
        return json_response((await self._chats.open(id_, name, asked.model)).state)

    async def _delete(self, request: web.Request) -> web.Response:
        await self._chats.delete(request.match_info["id"])
        return json_response(await self._chats.listing())

    async def _restore(self, request: web.Request) -> web.Response:
        return json_response(
            (await self._chats.restore(request.match_info["id"])).state
        )

    async def _ask(self, request: web.Request) -> web.Response:
        asked = await body(request, ChatQuestion)
        cluster, chat = self._of(request), await self._chat_of(request)
        require_wanted(cluster.store.snapshot)
        reply = _reply_to_come(chat.conversation, cluster)
        chat.ask(asked, reply, lambda asked: self._asking.answer(cluster, asked))
        return await _kept(chat)

    async def _stop(self, request: web.Request) -> web.Response:
        chat = await self._chat_of(request)
        await chat.stop()
        return await _kept(chat)

    async def _change(self, request: web.Request) -> web.Response:
        chat = await self._chat_of(request)
        chat.change(await body(request, ChatChange))
        return await _kept(chat)

    async def _chat_of(self, request: web.Request) -> LiveChat:
        return await self._chats.get(request.match_info["id"])


def _reply_to_come(conversation: Conversation, cluster: Cluster) -> Reply:
    """An answer with nothing said yet, and what it will be answered with."""
    snapshot = cluster.store.snapshot
    return Reply(
        model=snapshot.plan.model if snapshot.plan else "",
        layers=split_now(cluster),
        sampling=conversation.sampling,
        at=time.time(),
    )


async def _kept(chat: LiveChat) -> web.Response:
    await chat.saved()
    return json_response(chat.state)
