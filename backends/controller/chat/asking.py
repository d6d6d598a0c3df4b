"""Asking the llama-server of a cluster, and how many are answered before."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from backends.engine.server import ServerClient
from backends.errors import ControllerError
from backends.state import ChatDelta, ClusterState

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from backends.controller.cluster import Cluster
    from backends.state import ChatRequest, ClusterSnapshot, LayerRange

BRINGING_UP = (ClusterState.STARTING, ClusterState.LOADING)
LOOK_S = 0.5
"""Between two looks at who is before us, while nothing comes."""


class QuestionQueue:
    """Passes questions on; knows in which order they came."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[object]] = {}
        self._open: Counter[int] = Counter()

    async def answer(
        self, cluster: Cluster, request: ChatRequest
    ) -> AsyncGenerator[ChatDelta, None]:
        """An answer as it comes; closing the iterator ends the generation."""
        async for waiting in _begun(cluster):
            yield ChatDelta(waiting=waiting)
        port = _serving_port(cluster.store.snapshot)
        speed = cluster.store.snapshot.speed
        # Of a slot that is busy later we cannot tell whether it is with us.
        may_wait = bool(self._open[port]) or 0 < speed.slots <= speed.requests_active
        self._open[port] += 1
        try:
            async with aclosing(self._answer(port, cluster, request, may_wait)) as all_:
                async for delta in all_:
                    yield delta
        finally:
            self._open[port] -= 1

    async def _answer(
        self, port: int, cluster: Cluster, request: ChatRequest, may_wait: bool
    ) -> AsyncGenerator[ChatDelta, None]:
        async with (
            ServerClient(port, tls=_speaks_tls(cluster)) as client,
            aclosing(self._pieces(port, client, request, may_wait)) as deltas,
        ):
            async for delta in deltas:
                if delta.failure is not None:
                    delta = await _explained(delta, cluster)
                if delta.timings is not None and delta.done:
                    cluster.serving.meter.answered(delta.timings)
                    delta = msgspec.structs.replace(delta, layers=split_now(cluster))
                yield delta

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
    """Yield the number of requests before ours at each change, until the first piece.

    Requests that other clients send to llama-server itself count only while it answers.
    """
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


def split_now(cluster: Cluster) -> tuple[LayerRange, ...]:
    """Return the measured split of the running server, else the planned one."""
    snapshot = cluster.store.snapshot
    return (snapshot.measured and snapshot.measured.layers) or snapshot.planned


def require_wanted(snapshot: ClusterSnapshot) -> None:
    if snapshot.state not in BRINGING_UP:
        _serving_port(snapshot)


def _serving_port(snapshot: ClusterSnapshot) -> int:
    if snapshot.state is not ClusterState.SERVING or not snapshot.api_url:
        raise ControllerError(
            f"No model is serving (the cluster is {snapshot.state.value})",
            "Launch a plan first: l in the console, or dllm-tui up.",
        )
    return urlsplit(snapshot.api_url).port or 0


def _speaks_tls(cluster: Cluster) -> bool:
    return (cluster.store.snapshot.api_url or "").startswith("https:")


async def _explained(delta: ChatDelta, cluster: Cluster) -> ChatDelta:
    """When the cluster broke, its failure says more than the broken connection."""
    for _ in range(20):
        failure = cluster.store.snapshot.failure
        if failure is not None:
            return msgspec.structs.replace(delta, failure=failure)
        if cluster.store.snapshot.state is not ClusterState.SERVING:
            break
        await asyncio.sleep(0.1)
    return delta
