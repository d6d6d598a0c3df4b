"""How much of the context a chat takes: counted, estimated, and told near its end."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from backends.errors import ControllerError
from backends.state import ChatTimings, Conversation, PromptCount, Reply, Turn
from tests.tui.chatting import chatting, said
from tests.tui.helpers import screen_text, until
from tui.model.context_usage import (
    CHARS_PER_TOKEN,
    ContextMeter,
    ContextUsage,
    chars_per_token,
    estimated_tokens,
)
from tui.screens.cluster.chat_pane import Composer

EMPTY = Conversation(id="1", cluster="lab")


def answered(text: str, tokens: int) -> Conversation:
    timings = ChatTimings(tokens=tokens)
    reply = Reply(text=text, timings=timings, finish_reason="stop")
    turn = Turn(question="Why?", replies=(reply,))
    return replace(EMPTY, turns=(turn,))


def test_the_answers_tell_how_long_a_token_is() -> None:
    assert chars_per_token(answered("x" * 300, 100)) == 3.0
    assert chars_per_token(answered("x" * 10, 9)) == CHARS_PER_TOKEN
    assert chars_per_token(EMPTY) == CHARS_PER_TOKEN
    short, long = (
        estimated_tokens(answered("x" * 300, 100), d) for d in ("", "y" * 30)
    )
    assert short == 111
    assert long == short + 15


@pytest.mark.parametrize(
    ("usage", "text", "tone"),
    [
        (ContextUsage(1230, 4096, counted=False), "~1230 / 4096", "dim"),
        (ContextUsage(3300, 4096, counted=True), "3300 / 4096 nearly full", "warn"),
        (ContextUsage(4096, 4096, counted=True), "4096 / 4096 too long", "bad"),
    ],
)
def test_the_end_is_told_in_words_and_colour(
    usage: ContextUsage, text: str, tone: str
) -> None:
    assert (usage.text, usage.tone) == (text, tone)
    assert bool(usage.sentence) is (tone != "dim")


def test_what_is_typed_after_a_count_is_estimated_from_it() -> None:
    meter, chat = ContextMeter(), answered("x" * 300, 100)
    assert meter.usage(chat, "Why?") is None
    meter.ctx_size = 4096
    assert meter.usage(EMPTY, " ") is None
    first = meter.usage(chat, "y" * 30)
    assert first == ContextUsage(126, 4096, counted=False)
    meter.take(chat, "y" * 30, PromptCount(tokens=200, ctx_size=2048))
    assert meter.usage(chat, "y" * 30) == ContextUsage(200, 2048, counted=True)
    assert meter.usage(chat, "y" * 60) == ContextUsage(210, 2048, counted=False)
    meter.forget()
    assert meter.usage(chat, "y" * 30) == first


async def test_the_model_counts_once_nobody_types(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with chatting(100, 24) as (app, pilot):
        await app.restore([said("Hello there", "Hi " * 70)])
        app.pane.set_context(100)
        await until(pilot, lambda: "72 / 100" in screen_text(app))
        asked = [name for name, _ in app.cluster.calls].count("chat count")
        with monkeypatch.context() as typing:
            typing.setattr("tui.screens.cluster.chat_pane.COUNT_AFTER_S", 3600.0)
            await pilot.press(*"one two three four five six seven eigh")
            assert "~" in screen_text(app)
        await pilot.press("t")
        await until(pilot, lambda: "80 / 100 nearly full" in screen_text(app))
        assert "the answer ends after 20 tokens" in screen_text(app)
        counts = [name for name, _ in app.cluster.calls].count("chat count") - asked
        assert counts == 1
        app.cluster.errors["chat count"] = ControllerError("It is gone")
        app.query_one(Composer).write("word " * 40)
        await until(pilot, lambda: "too long" in screen_text(app))
        assert app.troubles == []
