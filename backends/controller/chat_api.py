"""The part of the API that is about questions, answers and conversations."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from urllib.parse import urlsplit

from aiohttp import web
from msgspec.structs import replace

from backends.controller.chat.live import LiveChat, messages_of
from backends.controller.cluster import Cluster
from backends.controller.gateway_process import SEEDING
from backends.controller.http_server import (
    Parts,
    body,
    frames,
    json_response,
    start_stream,
    write_values,
)
from backends.engine.llama_client import ServerClient
from backends.engine.sse import CUT, failed
from backends.errors import ControllerError
from backends.state import (
    ChatChange,
    ChatDelta,
    ChatRequest,
    ChatTimings,
    ClusterSnapshot,
    ClusterState,
    DraftRequest,
    LayerRange,
    QuestionRequest,
    Reply,
    Value,
)
from backends.state.chats import chat_framed


class ChatModel(Value, frozen=True, kw_only=True):
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
            web.post("/v1/chats/{id}/count", self._count),
            web.post("/v1/chats/{id}/change", self._change),
        ]

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        asked = await body(request, ChatRequest)
        cluster = self._of(request)
        require_wanted(cluster.store.snapshot)
        response = await start_stream(request)
        await write_values(response, self._asking.answer(cluster, asked))
        return response

    async def _events(self, request: web.Request) -> web.StreamResponse:
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
        asked = await body(request, QuestionRequest)
        cluster, chat = self._of(request), await self._chat_of(request)
        require_wanted(cluster.store.snapshot)
        conversation = chat.conversation
        snapshot = cluster.store.snapshot
        reply = Reply(
            model=snapshot.plan.model if snapshot.plan else "",
            layers=split_now(cluster),
            sampling=conversation.sampling,
            at=time.time(),
        )
        chat.ask(asked, reply, lambda asked: self._asking.answer(cluster, asked))
        return await _kept(chat)

    async def _stop(self, request: web.Request) -> web.Response:
        chat = await self._chat_of(request)
        await chat.stop()
        return await _kept(chat)

    async def _count(self, request: web.Request) -> web.Response:
        draft = await body(request, DraftRequest)
        chat, snapshot = await self._chat_of(request), self._of(request).store.snapshot
        port, now = require_serving(snapshot), chat.conversation
        messages = messages_of(now, now.turns[: draft.again], draft.question)
        async with ServerClient(port, tls=_speaks_tls(snapshot)) as client:
            found = await client.count(messages)
        if found is None:
            raise ControllerError("llama-server does not count the prompt")
        return json_response(found)

    async def _change(self, request: web.Request) -> web.Response:
        chat = await self._chat_of(request)
        chat.change(await body(request, ChatChange))
        return await _kept(chat)

    async def _chat_of(self, request: web.Request) -> LiveChat:
        return await self._chats.get(request.match_info["id"])


async def _kept(chat: LiveChat) -> web.Response:
    await chat.saved()
    return json_response(chat.state)


BRINGING_UP = (ClusterState.STARTING, ClusterState.LOADING)
ANSWERS = (*BRINGING_UP, ClusterState.SERVING)
LOOK_S = 0.5
"""Between two looks at who is before us, while nothing comes."""


REPEATS_MAX = 3
"""So often an answer is asked for again, after the gateway was killed."""
SEED_MAX = 1 << 31
REPEATED = "the gateway was killed: the same answer is asked for again"
OTHERWISE = (
    "The gateway was killed in the middle of the answer, and another would go on "
    "otherwise"
)


class ToldText:
    """Text that came of an answer; of a repetition it gives only what is new."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._due = ""
        self._at = 0

    def repeats(self) -> None:
        self._due, self._at = "".join(self._pieces), 0

    @property
    def is_behind(self) -> bool:
        return self._at < len(self._due)

    def new_in(self, piece: str) -> str | None:
        """The part of a piece that was not told before; None if it is otherwise."""
        end = min(self._at + len(piece), len(self._due))
        known = end - self._at
        if self._due[self._at : end] != piece[:known]:
            return None
        self._at = end
        self._pieces.append(piece[known:])
        return piece[known:]


class QuestionQueue:
    """Passes questions on; knows in which order they came."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[object]] = {}
        self._open: Counter[int] = Counter()

    async def answer(
        self, cluster: Cluster, request: ChatRequest
    ) -> AsyncGenerator[ChatDelta, None]:
        """An answer as it comes; closing the iterator ends the generation.

        If the gateway is killed meanwhile, the same is drawn again from the beginning.
        Then only what is new is told.
        """
        request = _repeatable(request, cluster.store.snapshot)
        text, reasoning = ToldText(), ToldText()
        for is_last in (*[False] * REPEATS_MAX, True):
            cut: ChatDelta | None = None
            async with aclosing(self._answer_once(cluster, request)) as deltas:
                async for delta in deltas:
                    if delta.finish_reason == CUT:
                        cut = delta
                        break
                    new = text.new_in(delta.text), reasoning.new_in(delta.reasoning)
                    behind = text.is_behind or reasoning.is_behind
                    ends = delta.done and delta.failure is None
                    if None in new or (behind and ends):
                        yield failed(OTHERWISE, "Ask again.")
                        return
                    was_told = not any(new) and bool(delta.text or delta.reasoning)
                    if delta.done or not (behind or was_told):
                        yield replace(delta, text=new[0], reasoning=new[1])
            if cut is None:
                return
            if is_last or cluster.store.snapshot.state not in ANSWERS:
                cut = await _explained(cut, cluster)
                yield replace(cut, finish_reason="error")
                return
            text.repeats()
            reasoning.repeats()
            yield ChatDelta(waiting=REPEATED)

    async def _answer_once(
        self, cluster: Cluster, request: ChatRequest
    ) -> AsyncGenerator[ChatDelta, None]:
        async for waiting in _begun(cluster):
            yield ChatDelta(waiting=waiting)
        port = require_serving(cluster.store.snapshot)
        speed = cluster.store.snapshot.speed
        # Of a slot that is busy later we cannot tell whether it is with us.
        may_wait = bool(self._open[port]) or 0 < speed.slots <= speed.requests_active
        tls = _speaks_tls(cluster.store.snapshot)
        self._open[port] += 1
        unfinished: ChatTimings | None = None
        try:
            async with (
                ServerClient(port, tls=tls) as client,
                aclosing(self._pieces(port, client, request, may_wait)) as deltas,
            ):
                async for delta in deltas:
                    if delta.failure is not None and delta.finish_reason != CUT:
                        delta = await _explained(delta, cluster)
                    unfinished = delta.timings or unfinished
                    if delta.timings is not None and delta.done:
                        unfinished = None
                        cluster.serving.answered(delta.timings)
                        layers = split_now(cluster)
                        delta = replace(delta, layers=layers)
                    yield delta
        finally:
            if unfinished is not None and unfinished.tokens > 1:
                cluster.serving.answered(unfinished)
            self._open[port] -= 1

    async def _pieces(
        self, port: int, client: ServerClient, request: ChatRequest, may_wait: bool
    ) -> AsyncGenerator[ChatDelta, None]:
        """The pieces, and before the first how many requests are ahead."""
        line = self._waiting.setdefault(port, [])
        ticket = object()
        line.append(ticket)
        async with aclosing(client.chat(request)) as stream:
            first = asyncio.ensure_future(anext(stream))
            try:
                ahead = _ahead(first, client, line, ticket, may_wait)
                async with aclosing(ahead) as counts:
                    async for count in counts:
                        yield ChatDelta(ahead=count)
            finally:
                line.remove(ticket)
                first.cancel()
                await asyncio.wait([first])
            yield first.result()
            async for delta in stream:
                yield delta


async def _ahead(
    first: asyncio.Future[ChatDelta],
    client: ServerClient,
    line: list[object],
    ticket: object,
    may_wait: bool,
) -> AsyncGenerator[int, None]:
    """Yield how many requests are before ours at each change, up to the first piece."""
    told = 0
    patience_s = LOOK_S if may_wait else None
    while not (await asyncio.wait([first], timeout=patience_s))[0]:
        slots = await client.slots()
        busy = sum(slot.is_processing for slot in slots)
        ahead = line.index(ticket) + busy if slots and busy >= len(slots) else 0
        if ahead != told and not first.done():
            told = ahead
            yield ahead


async def _begun(cluster: Cluster) -> AsyncGenerator[str, None]:
    """Wait, like any client of the API, while the cluster is brought up; says so."""
    told, deadline = "", asyncio.get_running_loop().time() + cluster.wait_s
    try:
        while (state := cluster.store.snapshot.state) in BRINGING_UP:
            if told != state:
                told = state
                yield f"the cluster is {state.value}"
                continue
            async with asyncio.timeout_at(deadline):
                await cluster.store.change()
    except TimeoutError:
        raise ControllerError(
            f"No model serves within {cluster.wait_s:g} s (api_wait_s)",
            "See dllm-tui status.",
        ) from None


def _repeatable(request: ChatRequest, snapshot: ClusterSnapshot) -> ChatRequest:
    """With a seed, so that the same is drawn again."""
    sampling, plan = request.sampling, snapshot.plan
    is_greedy = sampling.temperature is not None and sampling.temperature <= 0
    is_seeded = plan is not None and not SEEDING.isdisjoint(plan.extra_args)
    if is_greedy or is_seeded or sampling.seed not in (None, -1):
        return request
    seeded = replace(sampling, seed=random.randrange(1, SEED_MAX))
    return replace(request, sampling=seeded)


def split_now(cluster: Cluster) -> tuple[LayerRange, ...]:
    """Return the measured split of the running server, else the planned one."""
    snapshot = cluster.store.snapshot
    return (snapshot.measured and snapshot.measured.layers) or snapshot.planned


def require_wanted(snapshot: ClusterSnapshot) -> None:
    if snapshot.state not in BRINGING_UP:
        require_serving(snapshot)


def require_serving(snapshot: ClusterSnapshot) -> int:
    """Return the port of the API, which must be open."""
    if snapshot.state is not ClusterState.SERVING or not snapshot.api_url:
        raise ControllerError(
            f"No model is serving (the cluster is {snapshot.state.value})",
            "Launch a plan first: l in the console, dllm-tui up, or /up with --plain.",
        )
    return urlsplit(snapshot.api_url).port or 0


def _speaks_tls(snapshot: ClusterSnapshot) -> bool:
    return (snapshot.api_url or "").startswith("https:")


async def _explained(delta: ChatDelta, cluster: Cluster) -> ChatDelta:
    """When the cluster broke, its failure says more than the broken connection."""
    for _ in range(20):
        failure = cluster.store.snapshot.failure
        if failure is not None:
            return replace(delta, failure=failure)
        if cluster.store.snapshot.state is not ClusterState.SERVING:
            break
        await asyncio.sleep(0.1)
    return delta
