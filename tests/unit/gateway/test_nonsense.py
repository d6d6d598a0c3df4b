"""Whatever is asked, and whatever llama-server says to it: an answer or an end."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.gateway.control_messages import Mode
from tests.kit.examples import FEW_OR_MANY
from tests.kit.waiting import until
from tests.unit.gateway.gateway_fixture import (
    CHAT,
    Handler,
    Stage,
    gateway,
    streaming,
    upstream,
)

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=8,
)
NAMES = (
    *("prompt", "messages", "input", "stop", "seed", "temperature", "n", "logprobs"),
    *("n_predict", "max_tokens", "tools", "stream_options", "response_format"),
    *("timings_per_token", "t_max_predict_ms", "cache_prompt"),
)
USUAL = {"prompt": "x", "messages": [{"role": "user", "content": "x"}], "n_predict": 9}
ASKED = st.builds(
    lambda odd: {**USUAL, "stream": True, **odd},
    st.dictionaries(st.sampled_from(NAMES), ANYTHING, max_size=4),
)
BODIES = ASKED.map(lambda it: json.dumps(it).encode()) | st.binary(max_size=90)
PATHS = st.sampled_from(
    [CHAT, "/completion", "/v1/completions", "/v1/messages", "/v1/responses", "/infill"]
)
DELTAS = st.fixed_dictionaries({"delta": st.just({"content": "a"}) | ANYTHING})
CHATS = st.fixed_dictionaries(
    {"choices": st.lists(DELTAS | ANYTHING, min_size=1, max_size=2)},
    optional={"timings": ANYTHING, "id": ANYTHING},
)
NATIVE = st.fixed_dictionaries(
    {"content": st.text(max_size=3) | ANYTHING, "stop": st.booleans() | ANYTHING},
    optional={"tokens": st.just([1]) | ANYTHING, "tokens_predicted": ANYTHING},
)
EVENTS = st.builds(
    lambda it, end: b"data: " + json.dumps(it).encode() + end,
    CHATS | NATIVE | ANYTHING,
    st.sampled_from([b"\n\n", b"\n\n", b"\r\n\r\n", b"\r\r", b"\n", b""]),
)
ANSWERS = st.lists(EVENTS | st.binary(max_size=60), max_size=4)


@FEW_OR_MANY
def test_whatever_is_asked_and_answered_comes_to_an_end(
    n_examples: int, caplog: pytest.LogCaptureFixture
) -> None:
    with asyncio.Runner() as runner:
        opened = AsyncExitStack()
        stage = runner.run(opened.enter_async_context(gateway()))

        @settings(max_examples=n_examples)
        @given(
            path=PATHS, body=BODIES, answers=st.lists(ANSWERS, min_size=1, max_size=2)
        )
        def comes_to_an_end(path: str, body: bytes, answers: list[list[bytes]]) -> None:
            status, raw = runner.run(_answered(stage, path, body, answers))
            assert status in (0, 200, 400, 503)
            assert b"Traceback" not in raw
            assert "Traceback" not in caplog.text

        comes_to_an_end()
        runner.run(opened.aclose())


async def _answered(
    stage: Stage, path: str, body: bytes, answers: list[list[bytes]]
) -> tuple[int, bytes]:
    seen: list[int] = []

    def saying(number: int) -> Handler:
        tell = streaming(*answers[number], broken=True)

        async def handler(request: web.BaseRequest) -> web.StreamResponse:
            seen.append(number)
            return await tell(request)

        return handler

    async def ask() -> tuple[int, bytes]:
        try:
            return await stage.post(path, body)
        except aiohttp.ClientError:
            # An answer that was cut off in the middle of an event.
            return 0, b""

    stage.tell(mode=Mode.HOLD)
    asking = asyncio.create_task(ask())
    counts = stage.proxy.counters
    for number in range(len(answers)):
        async with upstream(saying(number)) as port:
            stage.serve(port, str(number))
            await until(
                lambda one=number: (  # type: ignore[misc]
                    asking.done() or (one in seen and counts.counts.waiting)
                )
            )
    stage.tell(mode=Mode.END)
    return await asking
