"""llama-server over HTTP: answers read and bounded."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

import backends.engine
from backends.engine.llama_client import (
    Counts,
    Health,
    ServerClient,
    chat_body,
    parse_counts,
    parse_slots,
    refused,
)
from backends.engine.sse import AnswerReader, events
from backends.state import Acceptance, ChatDelta, ChatMessage, ChatRequest, Sampling
from tests.kit.waiting import PATIENCE_S

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


DATA = Path(__file__).parent / "data"
# A machine may stand still for a second or two.
SILENCE_S = 2.5
ASK = ChatRequest(
    messages=(ChatMessage(role="user", content="hi"),),
    sampling=Sampling(temperature=0.0, max_tokens=5),
)


@asynccontextmanager
async def serving(**handlers: Handler) -> AsyncIterator[ServerClient]:
    """A client of a server with these handlers (``chat``, ``slots``, ``health``…)."""
    app = web.Application()
    for name, handler in handlers.items():
        path = "/v1/chat/completions" if name == "chat" else f"/{name}"
        app.router.add_route("*", path, handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        async with ServerClient(port, idle_timeout_s=SILENCE_S) as client:
            yield client
    finally:
        await runner.cleanup()


def sse(*bodies: object, done: bool = True, cut: bool = False) -> Handler:
    """A handler that streams these bodies as events."""

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for body in bodies:
            await response.write(f"data: {json.dumps(body)}\n\n".encode())
        if done:
            await response.write(b"data: [DONE]\n\n")
        if cut and request.transport is not None:
            request.transport.abort()
        return response

    return handler


def chunk(finish: str | None = None, **delta: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def answering(status: int, body: object) -> Handler:
    async def handler(_: web.Request) -> web.StreamResponse:
        return web.json_response(body, status=status)

    return handler


async def collect(client: ServerClient) -> list[ChatDelta]:
    return [delta async for delta in client.chat(ASK)]


async def test_text_reasoning_progress_and_figures() -> None:
    timings = {
        "prompt_n": 8,
        "cache_n": 2,
        "prompt_ms": 4.5,
        "predicted_n": 2,
        "predicted_per_second": 21.5,
    }
    progress = {"total": 10, "cache": 2, "processed": 6, "time_ms": 1}
    handler = sse(
        {**chunk(role="assistant"), "prompt_progress": progress},
        chunk(reasoning_content="hm"),
        chunk(content="blue"),
        chunk(finish="stop"),
        {"choices": [], "usage": {"completion_tokens": 2}, "timings": timings},
    )
    async with serving(chat=handler) as client:
        pieces = await collect(client)
    assert [p.prompt_progress for p in pieces[:1]] == [0.6]
    assert [p.reasoning for p in pieces[1:2]] == ["hm"]
    assert [p.text for p in pieces[2:3]] == ["blue"]
    last = pieces[-1]
    assert last.done
    assert last.finish_reason == "stop"
    assert last.failure is None
    assert last.timings is not None
    assert last.timings.prompt_tokens == 10
    assert last.timings.cached_tokens == 2
    assert last.timings.tokens == 2
    assert last.timings.tok_per_s == 21.5
    assert last.timings.first_token_s is not None
    assert 0 < last.timings.first_token_s < 5


async def test_a_server_that_dies_ends_the_answer_with_a_sentence() -> None:
    async with serving(chat=sse(chunk(content="a"), done=False, cut=True)) as client:
        pieces = await collect(client)
    assert pieces[0].text == "a"
    assert pieces[-1].done
    assert pieces[-1].failure is not None
    # Behind a gateway that ended, llama-server may run on.
    assert "connection broke in the middle" in pieces[-1].failure.what


async def test_a_stream_that_just_stops_is_a_failure_too() -> None:
    async with serving(chat=sse(chunk(content="a"), done=False)) as client:
        assert (await collect(client))[-1].failure is not None


async def test_an_error_in_the_stream_is_its_last_word() -> None:
    handler = sse(chunk(content="a"), {"error": {"message": "slot lost."}})
    async with serving(chat=handler) as client:
        pieces = await collect(client)
    assert pieces[-1].failure is not None
    assert pieces[-1].failure.what == "llama-server gave up: slot lost"
    assert sum(p.done for p in pieces) == 1


async def test_loading_is_told_apart() -> None:
    error = {"error": {"message": "Loading model", "code": 503}}
    refuse = answering(503, error)
    async with serving(chat=refuse, health=refuse, slots=refuse) as client:
        assert await client.health() is Health.LOADING
        assert await client.slots() == ()
        failure = (await collect(client))[-1].failure
    assert failure is not None
    assert "still loading" in failure.what


def test_a_conversation_too_long_says_how_long() -> None:
    raw = (
        b'{"error":{"code":400,"message":"request (12029 tokens) exceeds",'
        b'"type":"exceed_context_size_error","n_prompt_tokens":12029,"n_ctx":512}}'
    )
    failure = refused(400, raw).failure
    assert failure is not None
    assert "12029 tokens" in failure.what
    assert "512" in failure.what
    other = refused(500, b"<html>").failure
    assert other is not None
    assert "HTTP status 500" in other.what


async def test_silence_is_limited_not_length() -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(6):
            await asyncio.sleep(SILENCE_S / 5)
            await response.write(b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n')
        await asyncio.sleep(PATIENCE_S)
        return response

    async with serving(chat=slow) as client:
        pieces = await collect(client)
    assert [p.text for p in pieces[:-1]] == ["x"] * 6
    assert pieces[-1].failure is not None
    assert "silent" in pieces[-1].failure.what


async def test_closing_the_iterator_closes_the_connection() -> None:
    gone = asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(
                    b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
                )
                await asyncio.sleep(0.01)
        except (ConnectionError, asyncio.CancelledError):
            gone.set()
            raise

    async with serving(chat=endless) as client:
        answer = client.chat(ASK)
        assert (await anext(answer)).text == "x"
        await answer.aclose()
        async with asyncio.timeout(PATIENCE_S):
            await gone.wait()


async def test_nobody_there() -> None:
    async with ServerClient(1) as client:
        assert await client.health() is Health.UNREACHABLE
        assert await client.slots() == ()
        failure = (await collect(client))[-1].failure
    assert failure is not None
    assert "not running" in failure.what


async def test_slots_that_are_late_keep_their_last_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("backends.engine.llama_client.POLL_TIMEOUT_S", 0.2)
    late = asyncio.Event()

    async def slots(_: web.Request) -> web.StreamResponse:
        if late.is_set():
            await asyncio.sleep(PATIENCE_S)
        return web.json_response(json.loads((DATA / "slots_busy.json").read_text()))

    async with serving(slots=slots) as client:
        # A machine that stands still may take as long as a server that is late.
        while not (first := await client.slots()):
            pass
        late.set()
        assert await client.slots() == first


def test_slots_of_a_real_server() -> None:
    busy = parse_slots(json.loads((DATA / "slots_busy.json").read_text()))
    assert [slot.is_processing for slot in busy] == [False, True]
    assert busy[1].n_decoded == 132
    assert busy[1].ctx_used == 165
    assert busy[1].n_prompt_tokens == 33
    after = parse_slots(json.loads((DATA / "slots_after.json").read_text()))
    assert after[1].ctx_used == 332
    assert not after[1].is_processing


def test_slots_of_older_builds() -> None:
    old = {"id": 0, "n_prompt_tokens": 30, "next_token": {"n_decoded": 4}}
    assert parse_slots([old])[0].ctx_used == 34


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("choices", "delta", "content", "error", "message", "timings"),
                    *("prompt_n", "prompt_progress", "total", "next_token", "id"),
                    *("finish_reason", "reasoning_content", "processed"),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(json_values)
def test_no_json_raises(value: Any) -> None:
    parse_slots(value)
    parse_slots([value])
    try:
        raw = json.dumps(value).encode()
    except UnicodeEncodeError:
        return
    reader = AnswerReader(lambda: 0.0)
    list(reader.take(raw))
    refused(400, raw)


@given(st.binary(max_size=200))
def test_no_bytes_raise(raw: bytes) -> None:
    list(AnswerReader(lambda: 0.0).take(raw))
    refused(500, raw)


@pytest.mark.parametrize("size", [1, 3, 7, 64, 100_000])
async def test_real_events_in_pieces_of_any_size(size: int) -> None:
    raw = (DATA / "sse_cut.txt").read_bytes()

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(raw), size):
            yield raw[start : start + size]

    reader = AnswerReader(lambda: 0.0)
    deltas = [d async for event in events(pieces()) for d in reader.take(event)]
    assert [d.prompt_progress for d in deltas[:2]] == [0.0, 1.0]
    assert "".join(d.text for d in deltas)
    assert reader.end().failure is not None


async def test_an_endless_line_is_refused() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"x" * (1 << 20)

    with pytest.raises(OSError, match="without end"):
        async for _ in events(pieces()):
            pass


def test_only_what_was_asked_for_is_sent() -> None:
    body = chat_body(ASK)
    assert body["messages"] == [{"role": "user", "content": "hi"}]
    assert body["temperature"] == 0.0
    assert body["max_tokens"] == 5
    assert "top_k" not in body
    assert body["stream"] is True


METRICS = """# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 7
llamacpp:tokens_predicted_total 1204
llamacpp:tokens_predicted_seconds_total 0.012937
"""


async def test_the_tokens_of_finished_requests() -> None:
    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text=METRICS)

    async def refused(_: web.Request) -> web.Response:
        return web.Response(status=501, text=METRICS)

    async with serving(metrics=metrics) as client:
        counts = await client.counts()
        assert (counts.finished_tokens, counts.prompt_tokens) == (1204, 7)
        assert counts.generating_s == pytest.approx(0.012937)
    async with serving(metrics=refused) as client:
        assert (await client.counts()).finished_tokens is None
    assert (await client.counts()).finished_tokens is None
    await client.close()
    assert parse_counts("tokens_predicted_total many") == Counts()


def test_acceptance_position_by_position() -> None:
    lines = [
        "llamacpp:spec_decode_num_draft_tokens_total 120",
        "llamacpp:spec_decode_num_accepted_tokens_total 90",
        "llamacpp:spec_decode_num_drafts_total 30",
        'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 26',
        'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 29',
    ]
    found = parse_counts("\n".join(lines)).acceptance
    assert found == Acceptance(
        drafted=120, accepted=90, passes=30, by_position=(29, 26)
    )
    assert (found.rate, found.tokens_per_pass) == (0.75, 4)
    assert (Acceptance().rate, Acceptance().tokens_per_pass) == (None, None)


@pytest.mark.parametrize(
    ("printed", "tokens"),
    [("0", 0), ("1e+06", 1_000_000), ("1.23457e+06", 1_234_570), ("2e+10", 2 * 10**10)],
)
def test_a_long_count_has_six_digits(printed: str, tokens: int) -> None:
    metrics = METRICS.replace("1204", printed)
    assert parse_counts(metrics).finished_tokens == tokens


COMMON = Path(backends.engine.__file__).parent / "scripts" / "common.sh"
OFTEN = """
. "$1"
trap 'exit 143' TERM
for _ in $(seq 200); do bounded 600 true || exit 1; done
bounded 600 sh -c 'exit 7'; echo "$?"
bounded 0 sleep 600; echo "$?"
"""


def test_who_waits_for_a_quick_one_does_not_wait_for_its_limit() -> None:
    argv = ["sh", "-c", OFTEN, "sh", str(COMMON)]
    found = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert found.stdout.split() == ["7", "137"], found.stderr
