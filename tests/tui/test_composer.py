"""The text field of the chat: keys, drafts, what was asked before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from backends.state import ChatState
from tests.tui.chatting import DONE, EARLIER, answer, ask, chatting
from tests.tui.helpers import burst, screen_text, until
from tests.tui.scripted_chats import ScriptedChats
from tui.screens.cluster.chat_pane import Composer
from tui.screens.cluster.transcript import ChatTranscript


@pytest.mark.parametrize("key", ["ctrl+j", "shift+enter"])
async def test_a_new_line_does_not_send(key: str) -> None:
    async with chatting() as (app, pilot):
        await pilot.press("a", key, "b")
        assert app.query_one(Composer).text == "a\nb"
        assert app.asked == []


async def test_keys_typed_fast_keep_their_order() -> None:
    async with chatting() as (app, pilot):
        composer = app.query_one(Composer)
        await burst(pilot, "a", "ctrl+j", "b", "enter", "c")
        await until(pilot, lambda: composer.text == "c" and app.asked)
        assert app.asked[0].messages[0].content == "a\nb"


async def test_who_asks_before_the_chat_is_there_is_answered_when_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there, states = asyncio.Event(), ScriptedChats.states

    async def late(chats: ScriptedChats, model: str) -> AsyncGenerator[ChatState, None]:
        await there.wait()
        async for state in states(chats, model):
            yield state

    monkeypatch.setattr(ScriptedChats, "states", late)
    async with chatting() as (app, pilot):
        await pilot.press("a", "enter", "c")
        assert (app.query_one(Composer).text, app.asked) == ("c", [])
        there.set()
        await until(pilot, lambda: app.asked)
        assert app.asked[0].messages[0].content == "a"


async def test_send_can_have_another_key() -> None:
    async with chatting() as (app, pilot):
        app.set_keymap({"composer.send": "f9"})
        await pilot.press("a", "enter", "b")
        assert app.query_one(Composer).text == "a\nb"
        assert app.asked == []
        await pilot.press("f9")
        await until(pilot, lambda: app.asked)
        assert app.asked[0].messages[0].content == "a\nb"


async def test_the_composer_grows_to_six_rows() -> None:
    async with chatting() as (app, pilot):
        composer = app.query_one(Composer)
        assert composer.size.height == 1
        await pilot.press("a", *["ctrl+j"] * 9)
        assert composer.size.height == 6


async def test_letters_type_and_do_not_command() -> None:
    async with chatting() as (app, pilot):
        await pilot.press(*"rnqls56?:/")
        assert app.query_one(Composer).text == "rnqls56?:/"


async def test_a_long_paste_arrives_whole() -> None:
    async with chatting() as (app, pilot):
        text = "\n".join(f"line {number}" for number in range(2000))
        composer = app.query_one(Composer)
        composer.insert(text)
        await pilot.press("enter")
        await until(pilot, lambda: app.asked)
        assert app.asked[0].messages[0].content == text


async def test_up_and_down_walk_through_what_was_asked() -> None:
    async with chatting() as (app, pilot):
        await app.restore(EARLIER)
        await ask(app, pilot, "Why?")
        await answer(app, pilot, DONE)
        composer = app.query_one(Composer)
        await pilot.press("up")
        await until(pilot, lambda: composer.text == "Why?")
        await pilot.press("up")
        await until(pilot, lambda: composer.text == "Hello?")
        await pilot.press("down")
        await until(pilot, lambda: composer.text == "Why?")
        await pilot.press("down")
        await until(pilot, lambda: composer.text == "")


async def test_up_brings_back_what_another_console_asked_first() -> None:
    async with chatting() as (app, pilot):
        await until(pilot, lambda: app.pane.conversation)
        await app.restore(EARLIER)
        await pilot.press("up")
        await until(pilot, lambda: app.query_one(Composer).text == "Hello?")


async def test_up_in_a_draft_moves_the_cursor() -> None:
    async with chatting() as (app, pilot):
        await app.restore(EARLIER)
        await pilot.press("a", "ctrl+j", "b", "up", "up")
        assert app.query_one(Composer).text == "a\nb"


async def test_nothing_is_sent_while_an_answer_comes() -> None:
    async with chatting() as (app, pilot):
        await ask(app, pilot)
        await pilot.press("m", "o", "enter")
        assert len(app.asked) == 1
        assert app.query_one(Composer).text == "mo"
        assert app.said == ["An answer is still coming: {chat.stop} stops it."]


async def test_a_closed_composer_says_why_and_which_keys_work_there() -> None:
    async with chatting() as (app, pilot):
        app.pane.set_ready(False, "nothing runs: {cluster.launch} launches")
        await pilot.pause()
        assert "nothing runs: Esc l launches" in screen_text(app)
        await pilot.press("escape")
        assert "nothing runs: l launches" in screen_text(app)
        app.pane.focus_default()
        assert isinstance(app.focused, ChatTranscript)
        await pilot.press("i")
        assert isinstance(app.focused, Composer)


async def test_while_a_model_loads_a_question_can_be_written() -> None:
    async with chatting() as (app, pilot):
        await pilot.press("escape")
        app.pane.set_ready(False, "the model is loading…", returning=True)
        app.pane.focus_default()
        await pilot.press(*"sq")
        assert app.query_one(Composer).text == "sq"


async def test_a_draft_survives_the_end_of_the_cluster() -> None:
    async with chatting() as (app, pilot):
        await pilot.press("h", "i")
        app.pane.set_ready(False, "starting…")
        await pilot.press("!", "enter")
        composer = app.query_one(Composer)
        assert composer.text == "hi!"
        assert app.asked == []
        assert app.said == ["starting…"]
        app.pane.set_ready(True, "")
        await pilot.press("enter")
        await until(pilot, lambda: app.asked)
