"""A stream that breaks off goes on where it was, and no seam does harm."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from backends.gateway.control_messages import Mode
from tests.unit.gateway.fake_llama_server import ANSWER, PROMPT, TEXT, FakeLlamaServer
from tests.unit.gateway.gateway_fixture import gateway, resumed, serving, upstream

NATIVE, COMPLETIONS, CHAT = "/completion", "/v1/completions", "/v1/chat/completions"
MESSAGES = {"messages": [{"role": "user", "content": "?"}], "stream": True}
PROMPTED = {"prompt": "asked", "stream": True}
BODIES = {NATIVE: PROMPTED, COMPLETIONS: PROMPTED, CHAT: MESSAGES}
PROMPT_S = 0.3
ASKED = [
    (NATIVE, PROMPTED),
    (COMPLETIONS, PROMPTED),
    (CHAT, MESSAGES),
    (CHAT, {**MESSAGES, "stream_options": {"include_usage": True}}),
]


def events(raw: bytes) -> list[dict[str, Any]]:
    lines = [line.removeprefix(b"data: ") for line in raw.split(b"\n\n")]
    return [json.loads(line) for line in lines if line.startswith(b"{")]


def text_of(raw: bytes) -> str:
    found = ""
    for event in events(raw):
        found += event.get("content", "")
        for choice in event.get("choices", []):
            delta = choice.get("delta", {})
            found += choice.get("text", "") + (delta.get("content") or "")
    return found


async def undisturbed(path: str, body: dict[str, Any]) -> bytes:
    return b"".join([event async for event in FakeLlamaServer()._events(path, body)])


async def test_what_is_asked_for_besides_is_taken_out_again() -> None:
    async with serving(FakeLlamaServer()) as stage:
        for path, body in ASKED:
            assert await stage.ask(path, **body) == (200, await undisturbed(path, body))


@pytest.mark.parametrize(("path", "body"), ASKED)
async def test_nothing_is_repeated_and_nothing_is_missing(
    path: str, body: dict[str, Any]
) -> None:
    whole = await undisturbed(path, body)
    async with gateway() as stage:
        for at in range(1, 10):
            raw = await resumed(
                stage, path, body, FakeLlamaServer(at), FakeLlamaServer(number=2)
            )
            await stage.until(passed=at, continued=at, failed=0)
            assert text_of(raw) == TEXT, at
            assert len({event.get("id") for event in events(raw)}) == 1, at
            end = b"data: [DONE]\n\n"
            assert raw.endswith(end) == whole.endswith(end), at
            last, expected = events(raw)[-1], events(whole)[-1]
            assert last.get("usage", {}).get("completion_tokens") == (
                len(ANSWER) if "usage" in expected else None
            ), at
            for name in ("tokens_predicted", "tokens_evaluated", "prompt", "stop_type"):
                assert last.get(name) == expected.get(name), at
            timings = last["timings"]
            assert timings["predicted_n"] == len(ANSWER), at
            assert timings["cache_n"] + timings["prompt_n"] == PROMPT, at


async def test_what_is_whole_but_for_its_end_is_ended() -> None:
    body = {**MESSAGES, "stream_options": {"include_usage": True}}
    async with serving(FakeLlamaServer(11)) as stage:
        _, raw = await stage.ask(CHAT, **body)
    assert raw == await undisturbed(CHAT, body)


async def test_where_only_figures_are_missing_it_is_told_once_more() -> None:
    body = {**MESSAGES, "stream_options": {"include_usage": True}}
    async with gateway() as stage:
        raw = await resumed(
            stage, CHAT, body, FakeLlamaServer(10), FakeLlamaServer(number=2)
        )
    assert raw == await undisturbed(CHAT, body)


async def test_it_goes_on_as_often_as_it_breaks() -> None:
    servers = [
        FakeLlamaServer(2),
        FakeLlamaServer(2, number=2),
        FakeLlamaServer(2, number=3),
        FakeLlamaServer(number=4),
    ]
    async with gateway() as stage:
        raw = await resumed(stage, NATIVE, PROMPTED, *servers)
        await stage.until(passed=1, continued=3, held=3)
    assert text_of(raw) == TEXT
    told = [token for event in events(raw) for token in event["tokens"]]
    assert told == [token for token in ANSWER if token != 2]
    counts = [event["tokens_predicted"] for event in events(raw)]
    assert counts == [1, 2, 4, 5, 6, 7, 8, 9, 10, 10]
    assert events(raw)[-1]["has_new_line"]


class Slow(FakeLlamaServer):
    """Reads the prompt for a while before its first event."""

    async def _events(self, path: str, body: Any) -> AsyncIterator[bytes]:
        await asyncio.sleep(PROMPT_S)
        async for event in super()._events(path, body):
            yield event


async def test_the_longest_pause_is_the_one_that_clients_saw() -> None:
    async with gateway() as stage:
        await resumed(stage, NATIVE, PROMPTED, FakeLlamaServer(3), Slow())
        await stage.until(passed=1)
        assert stage.proxy.counters.counts.held_longest_s >= PROMPT_S


async def test_it_is_told_at_the_end_where_that_is_asked_for() -> None:
    async with gateway() as stage:
        stage.client.headers["X-Dllm-Healed"] = "tell"
        raw = await resumed(
            stage,
            CHAT,
            MESSAGES,
            FakeLlamaServer(3),
            FakeLlamaServer(3),
            FakeLlamaServer(),
        )
    whole, _, comment = raw.removesuffix(b"\n\n").rpartition(b"\n\n")
    assert whole.endswith(b"data: [DONE]")
    assert comment.startswith(b": healed 2, paused ")


@pytest.mark.parametrize("path", BODIES)
async def test_a_limit_is_that_of_the_whole_answer(path: str) -> None:
    """Also where it had been reached, and only the end was missing."""
    async with gateway() as stage:
        for limit in (3, 5, 9):
            body = {**BODIES[path], "n_predict": limit}
            whole = await undisturbed(path, body)
            breaks_at = len(events(whole)) - 1
            raw = await resumed(
                stage, path, body, FakeLlamaServer(breaks_at), FakeLlamaServer(number=2)
            )
            assert text_of(raw) == text_of(whole), limit
            last, expected = events(raw)[-1], events(whole)[-1]
            assert last["timings"]["predicted_n"] == expected["timings"]["predicted_n"]
            for name in ("stop_type", "generation_settings", "tokens_predicted"):
                assert last.get(name) == expected.get(name), limit
            if path != NATIVE:
                assert last["choices"][0]["finish_reason"] == "length", limit
        limits = {"max_tokens": 9, "max_completion_tokens": 5}
        body = {**BODIES[path], **limits}
        raw = await resumed(
            stage, path, body, FakeLlamaServer(2), FakeLlamaServer(number=2)
        )
        assert text_of(raw) == "ab\xe4c", "of several llama-server's own counts"
        assert events(raw)[-1]["timings"]["predicted_n"] == 5


async def test_a_character_whose_tokens_are_not_known_has_it_told_once_more() -> None:
    second = FakeLlamaServer(number=2)
    second.tokenized = lambda text: [0, 0, 0]
    async with gateway() as stage:
        raw = await resumed(stage, NATIVE, PROMPTED, FakeLlamaServer(4), second)
        await stage.until(failed=0, passed=1)
    assert text_of(raw) == TEXT
    assert [path for path, _ in second.asked] == ["/tokenize", NATIVE]
    assert second.asked[-1][1]["prompt"] == "asked"


@pytest.mark.parametrize("more", [{"n": 2}, {"best_of": 3}, {"t_max_predict_ms": 9}])
async def test_what_cannot_go_on_is_passed_as_it_is(more: dict[str, Any]) -> None:
    server = FakeLlamaServer(3)
    async with serving(server) as stage:
        status, raw = await stage.ask(CHAT, **MESSAGES, **more)
        await stage.until(failed=1, continued=0)
    assert status == 200
    assert server.asked == [(CHAT, {**MESSAGES, **more})]
    assert "ended in the middle" in events(raw)[-1]["error"]["message"]


async def test_a_client_that_left_is_not_gone_on_with() -> None:
    second = FakeLlamaServer(number=2)
    async with gateway() as stage:
        async with upstream(FakeLlamaServer(3)) as port:
            stage.serve(port, "0")
            asking = asyncio.create_task(stage.ask(CHAT, **MESSAGES))
            await stage.until(waiting=1)
        asking.cancel()
        await stage.until(left=1, waiting=0)
        async with upstream(second) as port:
            stage.serve(port, "1")
            await stage.ask("/tokenize", content="a")
    assert [path for path, _ in second.asked] == ["/tokenize"]


async def test_another_prompt_is_no_continuation() -> None:
    """A template that says something else by now gives other tokens."""

    class Forgetful(FakeLlamaServer):
        def _native(self, *args: Any) -> list[dict[str, Any]]:
            said = super()._native(*args)
            return [{**event, "tokens_evaluated": 3} for event in said]

    async with gateway() as stage:
        raw = await resumed(
            stage, CHAT, MESSAGES, FakeLlamaServer(3), Forgetful(number=2)
        )
        await stage.until(failed=1)
    assert "other tokens than before" in events(raw)[-1]["error"]["message"]


def error_of(raw: bytes) -> str:
    return str(events(raw)[-1]["error"]["message"])


async def test_another_model_does_not_go_on() -> None:
    """Nor is it waited for."""
    second = FakeLlamaServer(number=2)
    modes = Mode.HOLD, Mode.SERVE, Mode.HOLD, Mode.SERVE
    async with upstream(second) as other, gateway() as stage:
        for number, (mode, (path, body)) in enumerate(zip(modes, ASKED, strict=True)):
            async with upstream(FakeLlamaServer(3)) as port:
                stage.tell(mode=Mode.SERVE, port=port, server="0", weights="first")
                asking = asyncio.create_task(stage.ask(path, **body))
                await stage.until(waiting=1)
            stage.tell(mode=mode, port=other, server="1", weights="second")
            _, raw = await asyncio.wait_for(asking, 60)
            await stage.until(failed=number + 1, passed=0)
            assert "another model takes its place" in error_of(raw), path
            assert second.asked == []


@pytest.mark.parametrize(
    ("breaks_at", "weights"), [(3, "first"), (3, ""), (0, "second")]
)
async def test_the_same_or_an_unnamed_model_goes_on_and_another_begins(
    breaks_at: int, weights: str
) -> None:
    async with upstream(FakeLlamaServer(number=2)) as other, gateway() as stage:
        async with upstream(FakeLlamaServer(breaks_at)) as port:
            stage.tell(mode=Mode.SERVE, port=port, server="0", weights="first")
            asking = asyncio.create_task(stage.ask(NATIVE, **PROMPTED))
            await stage.until(waiting=1)
        stage.tell(mode=Mode.SERVE, port=other, server="1", weights=weights)
        assert text_of((await asking)[1]) == TEXT


async def test_what_the_arguments_bind_is_told_once_more() -> None:
    second = FakeLlamaServer(number=2)
    async with gateway() as stage:
        raw = await resumed(
            stage, NATIVE, PROMPTED, FakeLlamaServer(3), second, bound=True
        )
    assert text_of(raw) == TEXT
    assert [body["prompt"] for _, body in second.asked] == ["asked"]


@pytest.mark.parametrize("path", BODIES)
async def test_what_may_begin_a_stop_word_is_not_lost(path: str) -> None:
    """Held back, the chat tells nothing of it but the text that comes after it."""
    body = {**BODIES[path], "stop": ["bad", "\nx", "\xe4z"]}
    async with gateway() as stage:
        for at in range(1, 7):
            second = FakeLlamaServer(number=2)
            raw = await resumed(stage, path, body, FakeLlamaServer(at), second)
            await stage.until(passed=at, continued=at)
            assert text_of(raw) == TEXT, at
            assert events(raw)[-1]["timings"]["predicted_n"] == len(ANSWER), at
            if at in range(2, 6):
                prompt = second.asked[-1][1]["prompt"]
                assert prompt == ["asked", *ANSWER[: len(prompt) - 1]], at


def stopping(breaks_at: int | None = None, number: int = 1) -> FakeLlamaServer:
    server = FakeLlamaServer(breaks_at, number)
    server.answer = [0, 1, 8, 4, 6]
    return server


@pytest.mark.parametrize("path", BODIES)
async def test_a_stop_word_ends_an_answer(path: str) -> None:
    async with gateway() as stage:
        for breaks in ([3], [2, 1]):
            # Of the chat's events the first tells whose turn it is.
            first, *others = (breaks[0] + (path == CHAT), *breaks[1:])
            servers = [stopping(first), *(stopping(at, number=2) for at in others)]
            servers.append(stopping(number=3))
            raw = await resumed(stage, path, {**BODIES[path], "stop": ["f"]}, *servers)
            assert text_of(raw) == "abe", breaks
            asked, body = servers[-1].asked[-1]
            assert asked == path
            assert body.get("prompt") in ("asked", None)
            assert len({event.get("id") for event in events(raw)}) == 1, breaks
        await stage.until(passed=2, continued=3)


class Untold(FakeLlamaServer):
    """Tells no ids: it has a draft model."""

    async def _events(self, path: str, body: dict[str, Any]) -> AsyncIterator[bytes]:
        told = {k: v for k, v in body.items() if k != "n_probs"}
        async for event in super()._events(path, told):
            yield event


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_a_text_without_ids_is_told_once_more(path: str) -> None:
    body = {**BODIES[path], "stop": ["zz"]}
    second = Untold(number=2)
    async with gateway() as stage:
        raw = await resumed(stage, path, body, Untold(4), second)
    assert text_of(raw) == TEXT
    assert [path for path, _ in second.asked] == [path]


class Reasoning(FakeLlamaServer):
    """Thinks first, then says the rest."""

    def _chat(self, *args: Any) -> list[dict[str, Any]]:
        said = super()._chat(*args)
        for event in said:
            delta = event["choices"][0]["delta"]
            if args[2] < 4 and delta.get("content"):
                delta["reasoning_content"] = delta.pop("content")
        return said


@pytest.mark.parametrize("breaks_at", [2, 3])
async def test_what_it_thought_is_told_once_more(breaks_at: int) -> None:
    second = Reasoning(number=2)
    async with gateway() as stage:
        raw = await resumed(stage, CHAT, MESSAGES, Reasoning(breaks_at), second)
        await stage.until(passed=1, continued=1)
    thought = [
        event["choices"][0]["delta"].get("reasoning_content") for event in events(raw)
    ]
    assert [text for text in thought if text] == ["a", "b"]
    assert "ab" + text_of(raw) == TEXT
    assert [path for path, _ in second.asked] == [CHAT]
    assert len({event["id"] for event in events(raw)}) == 1


async def test_what_was_held_back_is_forgotten_where_it_begins_anew() -> None:
    stop = {"stop": ["abc"]}
    servers = [
        FakeLlamaServer(1),
        FakeLlamaServer(2, number=2),
        FakeLlamaServer(number=3),
    ]
    async with gateway() as stage:
        raw = await resumed(stage, CHAT, {**MESSAGES, **stop}, *servers)
        await stage.until(passed=1, continued=2)
    assert text_of(raw) == TEXT
    assert events(raw)[-1]["timings"]["predicted_n"] == len(ANSWER)


async def test_an_error_of_an_earlier_release_is_the_end() -> None:
    class Erring(FakeLlamaServer):
        async def _events(
            self, path: str, body: dict[str, Any]
        ) -> AsyncIterator[bytes]:
            async for event in super()._events(path, body):
                yield event
                break
            yield b'error: {"code":500}\n\n'

    server = Erring()
    async with serving(server) as stage:
        _, raw = await asyncio.wait_for(stage.ask(NATIVE, **PROMPTED), 60)
    assert raw.endswith(b'error: {"code":500}\n\n')
    assert len(server.asked) == 1
