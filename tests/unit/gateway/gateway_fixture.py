"""A gateway before a llama-server of our own making."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

from backends.gateway.auth import Auth
from backends.gateway.control_messages import Mode, Target
from backends.gateway.listen_settings import ListenSettings
from backends.gateway.proxy import Proxy
from backends.gateway.server import Listener, Server
from tests.kit.waiting import until

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


CHAT = "/v1/chat/completions"
SHUTDOWN_S = 0.1
WHOLE = (b'data: {"n":1}\n\n', b'data: {"n":2}\n\n', b"data: [DONE]\n\n")


@asynccontextmanager
async def upstream(handler: Handler) -> AsyncIterator[int]:
    """Port of a server that answers everything like this."""
    server = web.Server(handler, handler_cancellation=True)
    runner = web.ServerRunner(server, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


class Stage:
    def __init__(self, proxy: Proxy, url: str, client: aiohttp.ClientSession) -> None:
        self.proxy = proxy
        self.url = url
        self.client = client

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def serve(self, port: int, server: str = "one") -> None:
        self.tell(mode=Mode.SERVE, port=port, server=server)

    def tell(self, **told: object) -> None:
        self.proxy.queue.turn_to(Target(model="m", **told))  # type: ignore[arg-type]

    async def ask(self, path: str = CHAT, **body: object) -> tuple[int, bytes]:
        async with self.client.post(self.url + path, json=body) as answer:
            return answer.status, await answer.read()

    async def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        async with self.client.post(self.url + path, data=body) as answer:
            return answer.status, await answer.read()

    async def until(self, **counts: int) -> None:
        await until(
            lambda: all(
                getattr(self.proxy.counters.counts, name) == count
                for name, count in counts.items()
            )
        )


async def resumed(
    stage: Stage, path: str, body: dict[str, Any], *handlers: Handler, **told: object
) -> bytes:
    """The answer of several llama-servers, each after the one before broke off."""
    asking: asyncio.Task[tuple[int, bytes]] | None = None
    counts = stage.proxy.counters
    before = counts.counts.continued + counts.counts.replayed
    for number, handler in enumerate(handlers):
        async with upstream(handler) as port:
            stage.tell(mode=Mode.SERVE, port=port, server=str(number), **told)
            asking = asking or asyncio.create_task(stage.ask(path, **body))
            if number < len(handlers) - 1:
                await until(
                    lambda n=number: (  # type: ignore[misc]
                        counts.counts.waiting == 1
                        and counts.counts.continued + counts.counts.replayed
                        == before + n
                    )
                )
                continue
            status, raw = await asking
    assert status == 200
    return raw


@asynccontextmanager
async def gateway(access: ListenSettings | None = None) -> AsyncIterator[Stage]:
    """A gateway that has been told nothing; with ``access`` it has a door."""
    async with Proxy() as proxy, aiohttp.ClientSession() as client:
        door = Auth(proxy, access) if access else proxy
        listener = Listener(Server(door.answer), ListenSettings(), 0)
        await listener.open()
        port = listener.sockets[0].getsockname()[1]
        try:
            yield Stage(proxy, f"http://127.0.0.1:{port}", client)
        finally:
            await client.close()
            await listener.close(SHUTDOWN_S)


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[Stage]:
    """A gateway before a server that answers everything like this."""
    async with upstream(handler) as port, gateway() as stage:
        stage.serve(port)
        yield stage


def abort(request: web.BaseRequest) -> None:
    assert request.transport is not None
    request.transport.abort()


async def dying(request: web.BaseRequest) -> web.Response:
    await request.read()
    abort(request)
    return web.Response()


async def stream_of(request: web.BaseRequest) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    return response


def streaming(*pieces: bytes | asyncio.Event, broken: bool = False) -> Handler:
    """A handler that streams pieces, waits for events among them, and may break off."""

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        await request.read()
        response: web.StreamResponse | None = None
        for piece in pieces:
            if isinstance(piece, asyncio.Event):
                await piece.wait()
                continue
            response = response or await stream_of(request)
            await response.write(piece)
        response = response or await stream_of(request)
        if broken:
            # What was written must be on its way.
            await asyncio.sleep(0.02)
            abort(request)
        return response

    return handler
