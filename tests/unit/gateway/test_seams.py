"""What must not happen where one llama-server goes on for another."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from backends.gateway.target import Mode
from tests.unit.gateway.acting import ANSWER, TEXT, Actor
from tests.unit.gateway.standing import gateway, upstream
from tests.unit.gateway.test_continuation import (
    ASKED,
    CHAT,
    COMPLETIONS,
    MESSAGES,
    NATIVE,
    PROMPTED,
    broken,
    events,
    text_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

STOP = {"stop": ["zz"]}


def error_of(raw: bytes) -> str:
    """What a stream says in the end."""
    return str(events(raw)[-1]["error"]["message"])


@pytest.mark.parametrize("mode", [Mode.HOLD, Mode.SERVE])
@pytest.mark.parametrize(("path", "body"), ASKED)
async def test_another_model_does_not_go_on(
    path: str, body: dict[str, Any], mode: Mode
) -> None:
    """Nor is it waited for."""
    second = Actor(number=2)
    async with upstream(second) as other, gateway() as stage:
        async with upstream(Actor(3)) as port:
            stage.tell(mode=Mode.SERVE, port=port, server="0", weights="first")
            asking = asyncio.create_task(stage.ask(path, **body))
            await stage.until(waiting=1)
        stage.tell(mode=mode, port=other, server="1", weights="second")
        _, raw = await asyncio.wait_for(asking, 60)
        await stage.until(failed=1, passed=0)
    assert "another model takes its place" in error_of(raw)
    assert second.asked == []


@pytest.mark.parametrize("weights", ["first", ""])
async def test_the_same_model_goes_on_also_where_none_is_told(weights: str) -> None:
    async with upstream(Actor(number=2)) as other, gateway() as stage:
        async with upstream(Actor(3)) as port:
            stage.tell(mode=Mode.SERVE, port=port, server="0", weights="first")
            asking = asyncio.create_task(stage.ask(NATIVE, **PROMPTED))
            await stage.until(waiting=1)
        stage.tell(mode=Mode.SERVE, port=other, server="1", weights=weights)
        assert text_of((await asking)[1]) == TEXT


async def test_another_model_answers_what_was_not_begun() -> None:
    async with upstream(Actor()) as other, gateway() as stage:
        async with upstream(Actor(0)) as port:
            stage.tell(mode=Mode.SERVE, port=port, server="0", weights="first")
            asking = asyncio.create_task(stage.ask(CHAT, **MESSAGES))
            await stage.until(waiting=1)
        stage.tell(mode=Mode.SERVE, port=other, server="1", weights="second")
        assert text_of((await asking)[1]) == TEXT


async def test_what_the_arguments_bind_is_told_once_more() -> None:
    second = Actor(number=2)
    async with upstream(second) as other, gateway() as stage:
        async with upstream(Actor(3)) as port:
            stage.tell(mode=Mode.SERVE, port=port, server="0", bound=True)
            asking = asyncio.create_task(stage.ask(NATIVE, **PROMPTED))
            await stage.until(waiting=1)
        stage.tell(mode=Mode.SERVE, port=other, server="1", bound=True)
        assert text_of((await asking)[1]) == TEXT
    assert [body["prompt"] for _, body in second.asked] == ["asked"]


@pytest.mark.parametrize("path", [NATIVE, COMPLETIONS, CHAT])
async def test_of_several_limits_the_one_of_llama_server_counts(path: str) -> None:
    limits = {"max_tokens": 9, "max_completion_tokens": 5}
    body = {**(MESSAGES if path == CHAT else PROMPTED), **limits}
    async with gateway() as stage:
        raw = await broken(stage, path, body, Actor(2), Actor(number=2))
    assert text_of(raw) == "ab\xe4c"
    assert events(raw)[-1]["timings"]["predicted_n"] == 5


@pytest.mark.parametrize("breaks_at", range(1, 7))
@pytest.mark.parametrize(("path", "body"), ASKED)
async def test_what_may_begin_a_stop_word_is_not_lost(
    path: str, body: dict[str, Any], breaks_at: int
) -> None:
    """Held back, the chat tells nothing of it but the text that comes after it."""
    stop = {"stop": ["bad", "\nx", "\xe4z"]}
    second = Actor(number=2)
    async with gateway() as stage:
        raw = await broken(stage, path, {**body, **stop}, Actor(breaks_at), second)
        await stage.until(passed=1, continued=1)
    assert text_of(raw) == TEXT
    assert events(raw)[-1]["timings"]["predicted_n"] == len(ANSWER)
    if breaks_at in range(2, 6):
        prompt = second.asked[-1][1]["prompt"]
        assert prompt == ["asked", *ANSWER[: len(prompt) - 1]]


def stopping(breaks_at: int | None = None, number: int = 1) -> Actor:
    """Ends with a token of which a part is the stop word."""
    actor = Actor(breaks_at, number)
    actor.answer = [0, 1, 8, 4, 6]
    return actor


@pytest.mark.parametrize("path", [NATIVE, COMPLETIONS, CHAT])
async def test_nothing_is_made_after_a_stop_word(path: str) -> None:
    """What was cut off the last token is not known; so it is told once more."""
    body = {**(MESSAGES if path == CHAT else PROMPTED), "stop": ["f"]}
    # Of the chat's events the first tells whose turn it is.
    breaks_at, second = 4 if path == CHAT else 3, stopping(number=2)
    async with gateway() as stage:
        raw = await broken(stage, path, body, stopping(breaks_at), second)
    assert text_of(raw) == "abe"
    assert [asked for asked, _ in second.asked][-1] == path
    assert second.asked[-1][1].get("prompt") in ("asked", None)


@pytest.mark.parametrize("path", [NATIVE, COMPLETIONS, CHAT])
async def test_nothing_is_made_after_a_stop_word_of_a_later_one(path: str) -> None:
    """What was made by ids is agreed with like what came at first."""
    body = {**(MESSAGES if path == CHAT else PROMPTED), "stop": ["f"]}
    first = stopping(3 if path == CHAT else 2)
    actors = [first, stopping(1, number=2), stopping(number=3)]
    async with gateway() as stage:
        raw = await broken(stage, path, body, *actors)
        await stage.until(passed=1, continued=2)
    assert text_of(raw) == "abe"
    assert actors[-1].asked[-1][1].get("prompt") in ("asked", None)
    assert len({event.get("id") for event in events(raw)}) == 1


class Untold(Actor):
    """Tells no ids: it has a draft model."""

    async def _events(self, path: str, body: dict[str, Any]) -> AsyncIterator[bytes]:
        told = {k: v for k, v in body.items() if k != "n_probs"}
        async for event in super()._events(path, told):
            yield event


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_a_text_without_ids_is_told_once_more(path: str) -> None:
    body = {**(MESSAGES if path == CHAT else PROMPTED), **STOP}
    second = Untold(number=2)
    async with gateway() as stage:
        raw = await broken(stage, path, body, Untold(4), second)
    assert text_of(raw) == TEXT
    assert [path for path, _ in second.asked] == [path]


class Reasoning(Actor):
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
        raw = await broken(stage, CHAT, MESSAGES, Reasoning(breaks_at), second)
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
    actors = [Actor(1), Actor(2, number=2), Actor(number=3)]
    async with gateway() as stage:
        raw = await broken(stage, CHAT, {**MESSAGES, **stop}, *actors)
        await stage.until(passed=1, continued=2)
    assert text_of(raw) == TEXT
    assert events(raw)[-1]["timings"]["predicted_n"] == len(ANSWER)


async def test_an_error_of_an_earlier_release_is_the_end() -> None:
    class Erring(Actor):
        async def _events(
            self, path: str, body: dict[str, Any]
        ) -> AsyncIterator[bytes]:
            async for event in super()._events(path, body):
                yield event
                break
            yield b'error: {"code":500}\n\n'

    actor = Erring()
    async with upstream(actor) as port, gateway() as stage:
        stage.serve(port)
        _, raw = await asyncio.wait_for(stage.ask(NATIVE, **PROMPTED), 60)
    assert raw.endswith(b'error: {"code":500}\n\n')
    assert len(actor.asked) == 1
