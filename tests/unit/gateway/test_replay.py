"""What has no ids is told once more: it must agree, and the seam is not seen."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from backends.gateway import reply
from backends.gateway.control_messages import Mode
from backends.gateway.resumable_stream import OFTEN, REPLAYS_MAX, Replay, SentEvents
from tests.unit.gateway.gateway_fixture import (
    CHAT,
    WHOLE,
    Stage,
    abort,
    gateway,
    resumed,
    serving,
    stream_of,
    streaming,
    upstream,
)

MESSAGES, RESPONSES, NATIVE = "/v1/messages", "/v1/responses", "/completion"
COMMENT = b": keep-alive\n\n"
WORDS = ["{", '"id":', ' "a"', ", ", '"input_tokens":', " 4", "}"]
"""What looks like a name or a figure within a text is none."""


class Teller:
    """A llama-server that says these words, with names and times of its own."""

    def __init__(
        self, number: int, breaks_at: int | None = None, words: Sequence[str] = WORDS
    ) -> None:
        self.number = number
        self.breaks_at = breaks_at
        self.words = words
        self.pauses: asyncio.Event | None = None
        """After its first event it waits for this."""
        self.asked: list[dict[str, Any]] = []

    def events(self, path: str) -> list[bytes]:
        return [_event(event) for event in _SAY[path](self.number, self.words)] + (
            [b"data: [DONE]\n\n"] if path == CHAT else []
        )

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked.append(await request.json())
        response = await stream_of(request)
        for event in self.events(request.path)[: self.breaks_at]:
            await response.write(event)
            if self.pauses is not None:
                await self.pauses.wait()
        if self.breaks_at is not None:
            # What was written must be on its way.
            await asyncio.sleep(0.02)
            abort(request)
        return response


def _event(said: dict[str, Any]) -> bytes:
    kind = f"event: {said['type']}\n" if "type" in said else ""
    return f"{kind}data: {json.dumps(said, separators=(',', ':'))}\n\n".encode()


def _timings(number: int) -> dict[str, Any]:
    return {"timings": {"cache_n": number, "prompt_n": 9, "predicted_ms": number / 7}}


def _tool_call(number: int, words: Sequence[str]) -> list[dict[str, Any]]:
    def said(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        choice = {"finish_reason": reason, "index": 0, "delta": delta}
        made = {"created": 1000 + number, "id": f"chatcmpl-{number}"}
        return {"choices": [choice], **made}

    def call(**more: Any) -> dict[str, Any]:
        return said({"tool_calls": [{"index": 0, **more}]})

    return [
        said({"role": "assistant", "content": None}),
        call(id=f"call-{number}", type="function", function={"name": "add"}),
        *(call(function={"arguments": word}) for word in words),
        {**said({}, "tool_calls"), **_timings(number)},
    ]


def _message(number: int, words: Sequence[str]) -> list[dict[str, Any]]:
    usage = {"cache_read_input_tokens": number, "input_tokens": 9 - number}
    message = {"id": f"msg-{number}", "role": "assistant", "usage": usage}
    tool = {"type": "tool_use", "id": f"tool-{number}", "name": "add", "input": {}}
    deltas = [{"type": "input_json_delta", "partial_json": word} for word in words]
    return [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": tool},
        *({"type": "content_block_delta", "index": 0, "delta": d} for d in deltas),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "usage": {"output_tokens": len(words)}},
        {"type": "message_stop"},
    ]


def _response(number: int, words: Sequence[str]) -> list[dict[str, Any]]:
    answer, item = {"id": f"resp_{number}"}, {"id": f"msg_{number}"}
    called = {"type": "function_call", "call_id": f"fc_{number}"}
    delta = {"type": "response.output_text.delta", "item_id": item["id"]}
    whole = {"text": "".join(words)}
    return [
        {"type": "response.created", "response": answer},
        {"type": "response.output_item.added", "item": {**item, **called}},
        *({**delta, "delta": word} for word in words),
        {"type": "response.output_item.done", "item": {**item, **called, **whole}},
        {
            "type": "response.completed",
            "response": {**answer, "created_at": 1, "output": [{**item, **whole}]},
            **_timings(number),
        },
    ]


def _native(number: int, words: Sequence[str]) -> list[dict[str, Any]]:
    return [
        *({"content": w, "stop": False, "id_slot": -1, "tokens": [7]} for w in words),
        {"content": "", "stop": True, "id_slot": number, **_timings(number)},
    ]


_SAY = {CHAT: _tool_call, MESSAGES: _message, RESPONSES: _response, NATIVE: _native}
ASKED: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"content": "?"}], "tools": [{"type": "function"}]},
    MESSAGES: {"messages": [{"content": "?"}], "tools": [{"name": "add"}]},
    RESPONSES: {"input": "?"},
    NATIVE: {"prompt": "?", "json_schema": {"type": "object"}},
}


def measured_out(raw: bytes) -> bytes:
    return re.sub(rb'"timings":\{[^}]*\}|"id_slot":\d+', b"", raw)


async def told(stage: Stage, path: str, *tellers: Teller) -> bytes:
    return await resumed(stage, path, {**ASKED[path], "stream": True}, *tellers)


@pytest.mark.parametrize("path", ASKED)
async def test_it_agrees_and_goes_on_as_if_by_one(path: str) -> None:
    """As often as it breaks."""
    whole = measured_out(b"".join(Teller(1).events(path)))
    async with gateway() as stage:
        for breaks_at in (2, 3, 7):
            first, second = Teller(1, breaks_at), Teller(2)
            raw = await told(stage, path, first, second)
            assert measured_out(raw) == whole, breaks_at
            assert first.asked == second.asked
        await stage.until(passed=3, continued=3, failed=0)
        tellers = [Teller(1, 3), Teller(2, 1), Teller(3, 5), Teller(4, 4), Teller(5)]
        raw = await told(stage, path, *tellers)
        await stage.until(passed=4, continued=7)
        assert measured_out(raw) == whole


async def test_what_would_go_on_otherwise_is_an_error() -> None:
    async with gateway() as stage:
        for number, path in enumerate(ASKED):
            other = Teller(2, words=["{", "}"])
            raw = await told(stage, path, Teller(1, 4), other)
            await stage.until(failed=number + 1, passed=0)
            begun = b"".join(Teller(1).events(path)[:4])
            assert raw.startswith(begun), path
            error = json.loads(raw[len(begun) :].rpartition(b"data: ")[2])
            assert "it would go on otherwise" in error["error"]["message"], path


async def test_a_shorter_one_is_another_one() -> None:
    async with gateway() as stage:
        raw = await told(stage, CHAT, Teller(1, 8), Teller(2, words=WORDS[:3]))
        await stage.until(failed=1)
    assert b"it would go on otherwise" in raw
    assert b"[DONE]" not in raw


async def test_one_that_lives_and_breaks_off_is_not_asked_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("backends.gateway.request_queue.AGAIN_S", 0.01)
    teller = Teller(1, 4)
    async with gateway() as stage:
        raw = await told(stage, MESSAGES, teller)
        await stage.until(failed=1)
    assert OFTEN in raw.decode()
    assert len(teller.asked) == 1 + REPLAYS_MAX


async def test_a_draw_gets_a_seed_so_that_it_is_drawn_again() -> None:
    teller = Teller(1)
    async with upstream(teller) as port, gateway() as stage:
        stage.serve(port)
        for settled in ({}, {"seed": -1}, {"temperature": 0}, {"seed": 5}):
            await stage.ask(CHAT, **ASKED[CHAT], stream=True, **settled)
        stage.tell(mode=Mode.SERVE, port=port, server="one", seeded=True)
        await stage.ask(CHAT, **ASKED[CHAT], stream=True)
        stage.serve(port)
        await stage.ask(CHAT, **ASKED[CHAT])
    seeds = [body.get("seed") for body in teller.asked]
    assert all(isinstance(seed, int) and seed > 0 for seed in seeds[:2])
    assert seeds[0] != seeds[1]
    assert seeds[2:] == [None, 5, None, None]


async def test_a_seed_of_ours_is_not_told() -> None:
    async def echoing(request: web.BaseRequest) -> web.StreamResponse:
        body = await request.json()
        response = await stream_of(request)
        settings = {"generation_settings": {"seed": body["seed"], "top_k": 1}}
        await response.write(_event({"content": "", "stop": True, **settings}))
        return response

    async with serving(echoing) as stage:
        _, raw = await stage.ask(NATIVE, prompt="?", stream=True, json_schema={"a": 1})
        assert b'"seed":4294967295,' in raw
        _, raw = await stage.ask(NATIVE, prompt="?", stream=True, seed=5)
        assert b'"seed":5,' in raw


@pytest.mark.parametrize("is_begun", [True, False])
async def test_a_client_gets_comments_while_it_is_told_again(
    monkeypatch: pytest.MonkeyPatch, is_begun: bool
) -> None:
    """Also while the prompt is read again."""
    monkeypatch.setattr(reply, "KEEP_ALIVE_S", 0.01)
    is_read, second = asyncio.Event(), Teller(2)
    second.pauses = is_read if is_begun else None

    async def reading(request: web.BaseRequest) -> web.StreamResponse:
        if not is_begun:
            await is_read.wait()
        return await second(request)

    body = {**ASKED[MESSAGES], "stream": True}
    async with gateway() as stage:
        async with upstream(Teller(1, 6)) as port:
            stage.serve(port, "0")
            answer = await stage.client.post(stage.url + MESSAGES, json=body)
            await stage.until(waiting=1)
        async with upstream(reading) as port, answer:
            stage.serve(port, "1")
            await stage.until(in_flight=1, waiting=0)
            begun = b"".join([await answer.content.readuntil(COMMENT) for _ in "12"])
            is_read.set()
            raw = begun + await answer.read()
    without = measured_out(raw.replace(COMMENT, b""))
    assert without == measured_out(b"".join(Teller(1).events(MESSAGES)))


@pytest.mark.parametrize("begun", [WHOLE[:0], WHOLE[:1]])
async def test_a_client_gets_comments_while_llama_server_is_silent(
    begun: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also at the first one, whether its header fields came or not."""
    monkeypatch.setattr(reply, "KEEP_ALIVE_S", 0.05)
    goes_on = asyncio.Event()

    frozen = streaming(*begun, goes_on, *WHOLE[len(begun) :])
    async with serving(frozen) as stage:
        async with stage.client.post(stage.url + CHAT, json={"stream": True}) as answer:
            said = b"".join([await answer.content.readuntil(COMMENT) for _ in "12"])
            goes_on.set()
            said += await answer.read()
        assert said.replace(COMMENT, b"") == b"".join(WHOLE)
        asking = asyncio.create_task(stage.ask())
        goes_on.clear()
        await asyncio.sleep(0.2)
        goes_on.set()
        assert COMMENT not in (await asking)[1]


async def test_where_only_progress_was_told_it_is_told_from_the_beginning() -> None:
    progress = _event({"choices": [], "prompt_progress": {"processed": 1}})

    async with gateway() as stage:
        breaking = streaming(progress, broken=True)
        body = {**ASKED[CHAT], "stream": True}
        raw = await resumed(stage, CHAT, body, breaking, Teller(2))
        await stage.until(passed=1, failed=0)
    assert raw == progress + b"".join(Teller(2).events(CHAT))


async def test_what_was_passed_on_unread_is_not_told_again() -> None:
    async def coded(request: web.BaseRequest) -> web.StreamResponse:
        await request.read()
        fields = {"Content-Type": "text/event-stream", "Content-Encoding": "br"}
        response = web.StreamResponse(headers=fields)
        await response.prepare(request)
        await response.write(b"half")
        await asyncio.sleep(0.02)
        abort(request)
        return response

    async with serving(coded) as stage:
        body = {**ASKED[CHAT], "stream": True}
        url, client = stage.url + CHAT, stage.client
        with pytest.raises(aiohttp.ClientPayloadError):
            async with client.post(url, json=body, auto_decompress=False) as answer:
                await answer.read()
        await stage.until(failed=1, waiting=0)


def test_a_longer_answer_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backends.gateway.resumable_stream.EVENTS_MAX", 2)
    record = SentEvents()
    for _ in range(3):
        record.add(b"x")
    assert record.is_full
    assert len(record) == 2


def test_events_are_known_by_their_sums() -> None:
    record, other = SentEvents(), Replay()
    events = [b'data: {"id":"one","text":"%d"}' % number for number in range(9)]
    for event in events:
        record.add(event)
    assert len(record) == 9
    for number, event in enumerate(events):
        assert record.agrees(number, other.sum_of(event.replace(b"one", b"two")))
    assert not record.agrees(0, other.sum_of(b'data: {"id":"two","text":"1"}'))
