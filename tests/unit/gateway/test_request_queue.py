"""Requests wait while nothing serves or a drain lasts, or are told why they cannot."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from backends.gateway import request_queue
from backends.gateway.control_messages import Mode
from backends.gateway.request_queue import Turns
from tests.kit.waiting import until
from tests.unit.gateway.gateway_fixture import (
    CHAT,
    WHOLE,
    abort,
    dying,
    gateway,
    serving,
    streaming,
    upstream,
)


async def answering(request: web.BaseRequest) -> web.Response:
    return web.Response(body=b"<" + await request.read() + b">")


async def test_a_request_waits_and_goes_on() -> None:
    async with upstream(answering) as port, gateway() as stage:
        asking = asyncio.create_task(stage.ask(n=1))
        await stage.until(waiting=1)
        stage.serve(port)
        assert await asking == (200, b'<{"n": 1}>')
        await stage.until(waiting=0, held=1, passed=1, replayed=0)


async def test_comments_keep_stream_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_queue, "KEEP_ALIVE_S", 0.01)
    async with upstream(streaming(*WHOLE)) as port, gateway() as stage:
        url = f"{stage.url}/v1/chat/completions"
        async with stage.client.post(url, json={"stream": True}) as answer:
            assert answer.content_type == "text/event-stream"
            assert await answer.content.readline() == b": keep-alive\n"
            stage.serve(port)
            rest = await answer.read()
        assert rest.replace(b": keep-alive\n\n", b"").lstrip() == b"".join(WHOLE)


async def test_error_after_comments_is_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_queue, "KEEP_ALIVE_S", 0.01)

    async def refusing(request: web.BaseRequest) -> web.Response:
        return web.json_response({"error": {"code": 400}}, status=400)

    async with upstream(refusing) as port, gateway() as stage:
        url = f"{stage.url}/v1/chat/completions"
        async with stage.client.post(url, json={"stream": True}) as answer:
            await answer.content.readline()
            stage.serve(port)
            assert (await answer.read()).endswith(b'data: {"error": {"code": 400}}\n\n')


async def test_a_wait_has_an_end() -> None:
    async with gateway() as stage:
        stage.tell(mode=Mode.HOLD, hold_s=0.05)
        async with stage.client.post(f"{stage.url}/v1/messages", json={}) as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
            body = await answer.json()
        assert (body["type"], body["error"]["type"]) == ("error", "overloaded_error")
        assert "api_wait_s" in body["error"]["message"]
        await stage.until(failed=1, waiting=0)


async def test_the_end_of_the_goal_ends_every_wait_at_once() -> None:
    async with gateway() as stage:
        asking = asyncio.create_task(stage.ask(n=1))
        await stage.until(waiting=1)
        stage.tell(mode=Mode.END, why="the cluster was stopped")
        for status, body in (await asking, await stage.ask(n=2)):
            error = json.loads(body)["error"]
            assert status == error["code"] == 503
            assert error["message"] == "the cluster was stopped"


async def test_a_client_that_leaves_waits_no_longer() -> None:
    async with gateway() as stage:
        asking = asyncio.create_task(stage.ask(n=1))
        await stage.until(waiting=1)
        asking.cancel()
        await stage.until(waiting=0, left=1)


async def test_what_only_looks_is_answered_meanwhile() -> None:
    async with gateway() as stage:
        stage.tell(mode=Mode.HOLD)

        async def get(path: str) -> tuple[int, Any]:
            async with stage.client.get(stage.url + path) as answer:
                return answer.status, await answer.json()

        status, models = await get("/v1/models")
        (model,) = models["data"]
        assert (status, model["id"]) == (200, "m")
        assert model["status"]["value"] == "loading"
        status, health = await get("/health")
        assert (status, health["error"]["message"]) == (503, "Loading model")
        async with stage.client.options(stage.url) as answer:
            assert "POST" in answer.headers["Access-Control-Allow-Methods"]


async def test_a_request_is_sent_again_where_nothing_was_answered() -> None:
    asked: list[bytes] = []

    async def breaking(request: web.BaseRequest) -> web.Response:
        asked.append(await request.read())
        return await dying(request)

    async with upstream(answering) as second, gateway() as stage:
        async with upstream(breaking) as first:
            stage.serve(first)
            asking = asyncio.create_task(stage.ask(n=1))
            await stage.until(replayed=1)
        stage.serve(second, "two")
        assert await asking == (200, b'<{"n": 1}>')
        assert set(asked) == {b'{"n": 1}'}
        await stage.until(passed=1, failed=0)


async def test_what_kills_every_llama_server_is_not_tried_for_ever() -> None:
    async with gateway() as stage:
        started = itertools.count()

        async def breaking(request: web.BaseRequest) -> web.Response:
            stage.serve(port, str(next(started)))
            return await dying(request)

        async with upstream(breaking) as port:
            stage.serve(port)
            status, body = await stage.ask(n=1)
        assert status == 503
        assert b"again and again" in body


async def test_one_that_lives_and_never_answers_is_not_tried_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_queue, "KEEP_ALIVE_S", 0.01)
    monkeypatch.setattr(request_queue, "AGAIN_S", 0.01)

    async with upstream(dying) as port, gateway() as stage:
        stage.tell(mode=Mode.SERVE, port=port, server="one", hold_s=0.3)
        status, body = await asyncio.wait_for(stage.ask(n=1), 30)
    assert status == 503
    assert b"api_wait_s" in body


async def test_a_long_body_is_told_whole_where_one_went_while_it_came() -> None:
    begun = asyncio.Event()
    pieces = [bytes([number]) * (200 << 10) for number in range(10)]

    async def breaking(request: web.BaseRequest) -> web.Response:
        await request.content.readany()
        abort(request)
        begun.set()
        return web.Response()

    async def hashing(request: web.BaseRequest) -> web.Response:
        found = hashlib.sha256()
        async for piece in request.content.iter_any():
            found.update(piece)
        return web.Response(text=found.hexdigest())

    async def body() -> AsyncIterator[bytes]:
        yield pieces[0]
        await begun.wait()
        for piece in pieces[1:]:
            await asyncio.sleep(0.02)
            yield piece

    length = {
        "Content-Length": str(sum(map(len, pieces))),
        "Content-Type": "multipart/form-data; boundary=x",
    }
    async with upstream(hashing) as second, gateway() as stage:
        async with upstream(breaking) as first:
            stage.serve(first)
            asking = asyncio.create_task(
                stage.client.post(stage.url + CHAT, data=body(), headers=length)
            )
            await begun.wait()
        stage.serve(second, "two")
        async with await asking as answer:
            found = await answer.text()
    assert (answer.status, found) == (200, hashlib.sha256(b"".join(pieces)).hexdigest())


async def test_a_request_too_long_to_keep_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("backends.gateway.request.KEPT_BYTES_MAX", 10)

    async with serving(dying) as stage:
        status, body = await stage.ask(n="x" * 20)
        assert status == 503
        assert b"too long to keep" in body


@pytest.mark.parametrize("abort", [True, False])
async def test_a_stream_of_which_nothing_came_is_asked_again(abort: bool) -> None:
    """Its header fields had been sent, and no event."""
    async with gateway() as stage, upstream(streaming(*WHOLE)) as second:
        async with upstream(streaming(broken=abort)) as first:
            stage.serve(first)
            asking = asyncio.create_task(stage.ask(stream=True))
            await stage.until(waiting=1)
            stage.serve(second, "two")
            assert await asking == (200, b"".join(WHOLE))
        await stage.until(passed=1, replayed=1, failed=0)


async def test_no_more_are_asked_for_than_llama_server_has_slots() -> None:
    arrived, go_on = list[int](), asyncio.Event()

    async def working(request: web.BaseRequest) -> web.Response:
        if request.path == CHAT:
            arrived.append((await request.json())["n"])
            await go_on.wait()
        return web.Response()

    async with upstream(working) as port, gateway() as stage:
        stage.tell(mode=Mode.SERVE, port=port, server="one", slots=2)
        asking = {n: asyncio.create_task(stage.ask(n=n)) for n in range(6)}
        await stage.until(in_flight=6)
        await until(lambda: len(arrived) == 2)
        assert (await stage.ask("/tokenize"))[0] == 200
        queued = [n for n in asking if n not in arrived]
        for n in queued[:3]:
            asking.pop(n).cancel()
        await stage.until(in_flight=3, left=3)
        assert len(arrived) == 2
        go_on.set()
        assert [await one for one in asking.values()] == [(200, b"")] * 3
        assert set(arrived) == asking.keys()
        assert (await stage.ask(n=9))[0] == 200


async def test_who_waits_for_a_slot_waits_for_the_next_llama_server() -> None:
    arrived, go_on = list[int](), asyncio.Event()

    async def working(request: web.BaseRequest) -> web.Response:
        arrived.append((await request.json())["n"])
        await go_on.wait()
        return web.Response()

    async with upstream(working) as port, gateway() as stage:
        serve = {"mode": Mode.SERVE, "slots": 1}
        stage.tell(**serve, port=port, server="one")
        asking = [asyncio.create_task(stage.ask(n=n)) for n in range(3)]
        await until(lambda: len(arrived) == 1)
        stage.tell(mode=Mode.HOLD)
        await stage.until(in_flight=1, waiting=2)
        go_on.set()
        async with upstream(working) as other:
            stage.tell(**serve, port=other, server="two")
            for one in asking:
                assert (await one)[0] == 200
    assert sorted(arrived) == [0, 1, 2]


async def test_turns_wait_until_the_next_llama_server_has_slots_for_them() -> None:
    """Of three requests to the one before, two still run when the first turn is due."""
    turns = Turns()
    for _ in range(3):
        assert await turns.take(3, is_first=False)
    waiting = asyncio.create_task(turns.take(1, is_first=False))
    await asyncio.sleep(0)
    for _ in range(2):
        turns.give()
        await asyncio.sleep(0)
        assert not waiting.done()
    turns.give()
    assert await waiting


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


FRAGILE: list[tuple[str, dict[str, Any], int]] = [
    (CHAT, {"stream": True}, 0),
    (CHAT, {"stream": True, "tools": [{"x": 1}]}, 1),
    (CHAT, {"tools": [{"x": 1}]}, 0),
    ("/v1/messages", {"stream": True}, 1),
    ("/v1/messages", {}, 0),
    ("/v1/responses", {"stream": True}, 1),
]


async def test_what_a_relaunch_would_break_is_known_from_the_beginning() -> None:
    async with gateway() as stage:
        for path, body, fragile in FRAGILE:
            go_on = asyncio.Event()
            async with upstream(streaming(go_on, *ENDED.get(path, WHOLE))) as port:
                stage.serve(port)
                asking = asyncio.create_task(stage.ask(path, **body))
                await stage.until(in_flight=1)
                assert stage.proxy.counts.fragile == fragile, (path, body)
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
