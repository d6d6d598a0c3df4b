"""What was in llama-server's cache is read again by the next one, while nobody asks."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from multidict import CIMultiDict

from backends.gateway import conversations
from backends.gateway import warming as warming_module
from backends.gateway.conversations import Conversation, tokens_read
from backends.gateway.language import Mode
from backends.gateway.warming import Warming
from tests.unit.gateway.acting import ANSWER, Actor, tokenized
from tests.unit.gateway.standing import CHAT, Stage, gateway, upstream
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

NATIVE, MESSAGES, RESPONSES = "/completion", "/v1/messages", "/v1/responses"
LIMITS = {
    CHAT: "max_tokens",
    MESSAGES: "max_tokens",
    RESPONSES: "max_output_tokens",
    NATIVE: "n_predict",
}

PROGRESS = b"".join(
    b"data: %s\n\n" % said
    for said in (
        b'{"prompt_progress":{"total":5,"cache":0,"processed":2,"time_ms":1}}',
        b'{"choices":[],"timings":{"prompt_n":5}}',
        b"[DONE]",
    )
)
"""A prompt that is read, as llama-server tells of it."""
NOTICED = {"stream": True, "return_progress": True}
"""What has llama-server notice between two batches that nobody listens any more."""


class Reader:
    """A llama-server that notes what it reads, and may take its time."""

    def __init__(self, slots: int = 4) -> None:
        """Answers at once."""
        self.slots = slots
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.ended = 0

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        if request.path == "/props":
            return web.json_response({"total_slots": self.slots})
        body = await request.json()
        if request.path == "/tokenize":
            return web.json_response({"tokens": tokenized(body["content"])})
        self.asked.append((request.path, body))
        try:
            if 1 in [body.get(limit) for limit in LIMITS.values()]:
                await self.goes_on.wait()
        finally:
            self.ended += 1
        if not body.get("return_progress"):
            return web.json_response({"timings": {"prompt_n": 5}})
        return web.Response(body=PROGRESS, content_type="text/event-stream")


@asynccontextmanager
async def warmed() -> AsyncIterator[Stage]:
    """A gateway that reads ahead."""
    async with gateway() as stage:
        warming = asyncio.create_task(Warming(stage.proxy).keep())
        try:
            yield stage
        finally:
            warming.cancel()
            await asyncio.gather(warming, return_exceptions=True)


@asynccontextmanager
async def both(second: Reader) -> AsyncIterator[tuple[Stage, int, int]]:
    """That, and the ports of a llama-server and of the one after it."""
    async with upstream(Reader()) as port, upstream(second) as other, warmed() as stage:
        yield stage, port, other


def said(*texts: str) -> dict[str, Any]:
    """A conversation."""
    return {"messages": [{"role": "user", "content": text} for text in texts]}


async def test_the_longest_is_read_first_and_each_but_once() -> None:
    first, second = Reader(), Reader()
    async with upstream(first) as port, upstream(second) as other, warmed() as stage:
        stage.serve(port, "1")
        await stage.ask(CHAT, **said("short"))
        await stage.ask(MESSAGES, **said("a", "b" * 90), max_tokens=70)
        await stage.ask(RESPONSES, input="c" * 50, max_output_tokens=70, stream=False)
        await stage.ask(CHAT, **said("off" * 90), cache_prompt=False)
        # The same conversation, one turn later.
        await stage.ask(CHAT, **said("short", "longer"))
        stage.serve(other, "2")
        await stage.until(warmed=3, warmed_tokens=15)
        stage.serve(other, "2")
        await stage.ask(CHAT, **said("new"))
    assert second.asked == [
        (MESSAGES, {**said("a", "b" * 90), "max_tokens": 1}),
        (RESPONSES, {"input": "c" * 50, "max_output_tokens": 1}),
        (CHAT, {**said("short", "longer"), "max_tokens": 1, **NOTICED}),
        (CHAT, said("new")),
    ]


async def test_an_answer_whose_tokens_are_known_is_read_with_the_prompt() -> None:
    second = Reader()
    async with upstream(Actor()) as port, upstream(second) as other, warmed() as stage:
        stage.serve(port, "1")
        await stage.ask(NATIVE, prompt="asked", stream=True)
        stage.serve(other, "2")
        await until(lambda: second.asked)
    ((path, body),) = second.asked
    assert path == NATIVE
    assert body["prompt"] == ["asked", *ANSWER[:-1]]
    assert body["n_predict"] == 1
    assert NOTICED.items() <= body.items()


async def test_what_is_refused_in_a_stream_is_not_asked_to_be_read() -> None:
    """As where tools are given and the probabilities of words are wanted."""
    tools = [{"type": "function", "function": {"name": "add"}}]
    second = Reader()
    async with both(second) as (stage, port, other):
        stage.serve(port, "1")
        wanted = {"logprobs": True, "top_logprobs": 3}
        await stage.ask(CHAT, **said("a"), tools=tools, **wanted)
        stage.serve(other, "2")
        await stage.until(warmed=1)
    assert second.asked == [
        (CHAT, {**said("a"), "tools": tools, "max_tokens": 1, **NOTICED})
    ]


async def test_no_more_is_read_than_there_are_slots_for() -> None:
    second = Reader(slots=1)
    async with both(second) as (stage, port, other):
        stage.serve(port, "1")
        await stage.ask(CHAT, **said("a"))
        await stage.ask(CHAT, **said("long" * 9))
        stage.serve(other, "2")
        await stage.until(warmed=1)
        await stage.ask(CHAT, **said("new"))
        await stage.until(passed=3)
    assert [body["messages"] for _, body in second.asked] == [
        said("long" * 9)["messages"],
        said("new")["messages"],
    ]


async def test_a_client_goes_first_and_then_it_is_read() -> None:
    second = Reader()
    second.goes_on.clear()
    async with both(second) as (stage, port, other):
        stage.serve(port, "1")
        await stage.ask(CHAT, **said("a"))
        stage.serve(other, "2")
        await until(lambda: second.asked)
        # Its reading does not end, and the client is answered all the same.
        await stage.ask(CHAT, **said("new"))
        await until(lambda: second.ended >= 2)
        second.goes_on.set()
        await stage.until(warmed=1)
    first, *_, last = second.asked
    assert first == last


async def test_what_it_may_have_died_of_is_not_read_again() -> None:
    asked = []

    async def dying(request: web.BaseRequest) -> web.Response:
        if request.path == "/props":
            return web.json_response({"total_slots": 4})
        asked.append(await request.read())
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with both(Reader()) as (stage, port, other), upstream(dying) as third:
        stage.serve(port, "1")
        await stage.ask(CHAT, **said("a"))
        stage.serve(third, "2")
        await until(lambda: asked and not stage.proxy.conversations.cold("3"))
        stage.serve(other, "3")
        assert stage.proxy.tally.counts.warmed == 0


async def test_what_nobody_foresaw_is_logged_and_the_next_is_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def confused(raw: bytes) -> int:
        if raw.startswith(b"data: "):
            return tokens_read(raw)
        raise ZeroDivisionError

    monkeypatch.setattr(warming_module, "tokens_read", confused)
    second = Reader()
    async with both(second) as (stage, port, other):
        stage.serve(port, "1")
        await stage.ask(CHAT, **said("a"))
        await stage.ask(RESPONSES, input="c" * 50)
        stage.serve(other, "2")
        await stage.until(warmed=1)
        assert stage.proxy.tally.counts.warming_faults == 1
    assert [path for path, _ in second.asked] == [RESPONSES, CHAT]
    (told,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "why was not foreseen" in told.message


async def test_what_goes_wrong_before_any_is_read_is_logged_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def confused(_: object) -> int:
        raise ZeroDivisionError

    second = Reader()
    async with both(second) as (stage, port, other):
        stage.serve(port, "1")
        await stage.ask(CHAT, **said("a"))
        with monkeypatch.context() as patched:
            patched.setattr(Warming, "_slots", confused)
            stage.serve(other, "2")
            await until(lambda: "nothing is read ahead now" in caplog.text)
            stage.proxy.tally.stir()
            await asyncio.sleep(0.05)
            assert caplog.text.count("nothing is read ahead now") == 1
            assert stage.proxy.tally.counts.warming_faults == 1
        stage.proxy.tally.stir()
        await until(lambda: second.asked or stage.proxy.tally.counts.warmed)


@pytest.mark.parametrize("weights", ["other", "same"])
async def test_another_model_reads_nothing_of_it(weights: str) -> None:
    second = Reader()
    serving: dict[str, Any] = {"mode": Mode.SERVE}
    async with both(second) as (stage, port, other):
        stage.tell(**serving, port=port, server="1", weights="same")
        await stage.ask(CHAT, **said("a"))
        stage.tell(**serving, port=other, server="2", weights=weights)
        if weights == "same":
            await stage.until(warmed=1)
        await stage.ask(CHAT, **said("new"))
    assert len(second.asked) == 1 + (weights == "same")


async def test_little_is_kept_and_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "KEPT_BYTES_MAX", 900)
    async with upstream(Reader()) as port, gateway() as stage:
        stage.serve(port, "1")
        kept = stage.proxy.conversations
        for text in ("a" * 60, "b" * 60, "c" * 60):
            await stage.ask(CHAT, **said(text))
        assert len(kept.cold("2")) == 2
        assert kept.n_bytes <= 900
        await stage.ask(CHAT, **said("d" * 600))
        assert kept.cold("2") == []
        await stage.ask("/v1/embeddings", input="x")
        assert kept.cold("2") == []
        await stage.ask(CHAT, **said("e"))
        monkeypatch.setattr(conversations, "ACTIVE_S", -1.0)
        assert kept.cold("2") == []


@pytest.mark.parametrize("said", [{"prompt": [1] * 5000}, {"input": [1] * 5000}])
def test_all_that_is_kept_is_counted(said: dict[str, Any]) -> None:
    raw = json.dumps(said).encode()
    tracemalloc.start()
    try:
        one = Conversation(NATIVE, raw, CIMultiDict(), None)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size <= one.n_bytes


@pytest.mark.parametrize(
    ("raw", "tokens"),
    [
        (b'{"timings":{"prompt_n":7}}', 7),
        (b'{"usage":{"input_tokens":5}}', 5),
        (b'{"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":4}}}', 5),
        (b"no", 0),
        (PROGRESS, 5),
        (PROGRESS[:60], 0),
    ],
)
def test_each_api_tells_what_was_read(raw: bytes, tokens: int) -> None:
    assert tokens_read(raw) == tokens
