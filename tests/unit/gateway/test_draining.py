"""What runs ends, what comes waits; and it is known what a relaunch would break."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from backends.gateway.target import Mode
from tests.kit.waiting import until
from tests.unit.gateway.standing import CHAT, WHOLE, dying, gateway, streaming, upstream

FIRST = (
    b'data: {"choices":[{"delta":{"content":"a"}}],"id":"x",'
    b'"timings":{"predicted_n":1}}\n\n'
)
ENDED = {
    "/v1/messages": (b'event: message_stop\ndata: {"type":"message_stop"}\n\n',),
    "/v1/responses": (b'data: {"type":"response.completed"}\n\n',),
}


async def test_what_runs_ends_and_what_comes_waits() -> None:
    go_on = asyncio.Event()
    async with upstream(streaming(go_on, *WHOLE)) as port, gateway() as stage:
        stage.serve(port)
        first = asyncio.create_task(stage.ask(stream=True, tools=[{"x": 1}]))
        await stage.until(in_flight=1)
        stage.tell(mode=Mode.SERVE, port=port, server="one", drains=True)
        second = asyncio.create_task(stage.ask(n=2))
        await stage.until(waiting=1, in_flight=1)
        # What only looks is answered by what serves.
        go_on.set()
        assert await first == (200, b"".join(WHOLE))
        await stage.until(waiting=1, in_flight=0)
        async with stage.client.get(f"{stage.url}/props") as answer:
            assert answer.status == 200
        stage.serve(port)
        assert (await second)[0] == 200
        await stage.until(passed=2, waiting=0, failed=0)


async def test_what_was_begun_goes_on_also_with_a_llama_server_that_drains() -> None:
    begun = asyncio.Event()

    async def breaking(request: web.BaseRequest) -> web.Response:
        begun.set()
        return await dying(request)

    async def answering(request: web.BaseRequest) -> web.Response:
        return web.Response(text="answered")

    async with upstream(answering) as second, gateway() as stage:
        async with upstream(breaking) as first:
            stage.tell(mode=Mode.SERVE, port=first, server="one")
            asking = asyncio.create_task(stage.ask(n=1))
            await begun.wait()
        stage.tell(mode=Mode.SERVE, port=second, server="two", drains=True)
        other = asyncio.create_task(stage.ask(n=2))
        assert await asking == (200, b"answered")
        await stage.until(waiting=1, replayed=1)
        stage.serve(second, "two")
        assert (await other)[0] == 200


async def test_who_waits_for_the_end_of_a_drain_is_told_so() -> None:
    async with gateway() as stage:
        drained = {"drains": True, "why": "drained", "hold_s": 0.05}
        stage.tell(mode=Mode.SERVE, port=1, server="one", **drained)
        status, body = await stage.ask(n=1)
        assert (status, b"drained" in body) == (503, True)


@pytest.mark.parametrize(
    ("path", "body", "fragile"),
    [
        (CHAT, {"stream": True}, 0),
        (CHAT, {"stream": True, "tools": [{"x": 1}]}, 1),
        (CHAT, {"tools": [{"x": 1}]}, 0),
        ("/v1/messages", {"stream": True}, 1),
        ("/v1/messages", {}, 0),
        ("/v1/responses", {"stream": True}, 1),
    ],
)
async def test_what_a_relaunch_would_break_is_known_from_the_beginning(
    path: str, body: dict[str, Any], fragile: int
) -> None:
    go_on = asyncio.Event()
    rest = ENDED.get(path, WHOLE)
    async with upstream(streaming(go_on, *rest)) as port, gateway() as stage:
        stage.serve(port)
        asking = asyncio.create_task(stage.ask(path, **body))
        await stage.until(in_flight=1)
        assert stage.proxy.counts.fragile == fragile
        go_on.set()
        await asking
        assert stage.proxy.counts.fragile == 0


async def test_a_stream_that_turns_out_to_reason_is_known_too() -> None:
    go_on = asyncio.Event()
    reasoning = FIRST.replace(b'"content"', b'"reasoning_content"')
    async with (
        upstream(streaming(reasoning, go_on, *WHOLE)) as port,
        gateway() as stage,
    ):
        stage.serve(port)
        asking = asyncio.create_task(stage.ask(stream=True))
        await until(lambda: stage.proxy.counts.fragile)
        go_on.set()
        await asking
