"""The text field of the chat: keys, drafts, what was asked before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import nullcontext

import pytest
from textual._text_area_theme import TextAreaTheme

from backends import text_editor
from backends.errors import DllmError
from backends.state import ChatState
from tests.tui.chatting import DONE, EARLIER, answer, ask, chatting
from tests.tui.helpers import burst, screen_text, until
from tests.tui.scripted_chats import ScriptedChats
from tests.tui.stages import ChatStage
from tui.screens.cluster.chat_pane import Composer
from tui.screens.cluster.transcript import ChatTranscript


def typed(app: ChatStage) -> str:
    return app.query_one(Composer).text


def sent(app: ChatStage) -> list[str]:
    return [request.messages[-1].content for request in app.asked]


async def test_new_lines_and_letters_are_typed_and_command_nothing() -> None:
    async with chatting() as (app, pilot):
        for keys, text in (
            (["a", "ctrl+j", "b"], "a\nb"),
            (["a", "shift+enter", "b"], "a\nb"),
            ([*"rnqls56?:/"], "rnqls56?:/"),
        ):
            await pilot.press(*keys)
            assert (typed(app), app.asked) == (text, [])
            app.query_one(Composer).clear()
        await burst(pilot, "a", "ctrl+j", "b", "enter", "c")
        await until(pilot, lambda: typed(app) == "c" and sent(app) == ["a\nb"])


async def test_a_blink_of_the_cursor_looks_no_style_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[TextAreaTheme] = []
    look = TextAreaTheme.apply_css

    def counted(theme: TextAreaTheme, field: Composer) -> None:
        looked.append(theme)
        look(theme, field)

    monkeypatch.setattr(TextAreaTheme, "apply_css", counted)
    async with chatting() as (app, pilot):
        field = app.query_one(Composer)
        await until(pilot, lambda: looked)
        await pilot.pause()
        looked.clear()
        field.render_lines(field.size.region)
        assert not looked
        app.theme = "textual-light"
        await until(pilot, lambda: looked)


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
        assert (typed(app), app.asked) == ("c", [])
        there.set()
        await until(pilot, lambda: sent(app) == ["a"])


async def test_send_can_have_another_key_and_long_texts_take_six_rows() -> None:
    async with chatting() as (app, pilot):
        app.set_keymap({"composer.send": "f9"})
        await pilot.press("a", "enter", "b")
        assert (typed(app), app.asked) == ("a\nb", [])
        composer = app.query_one(Composer)
        composer.clear()
        await until(pilot, lambda: composer.size.height == 1)
        text = "\n".join(f"line {number}" for number in range(2000))
        composer.insert(text)
        await until(pilot, lambda: composer.size.height == 6)
        await pilot.press("f9")
        await until(pilot, lambda: sent(app) == [text])


async def test_up_and_down_walk_through_what_was_asked() -> None:
    async with chatting() as (app, pilot):
        # The first question is another console's.
        await until(pilot, lambda: app.pane.conversation)
        await app.restore(EARLIER)
        await ask(app, pilot, "Why?")
        await answer(app, pilot, DONE)
        for key, text in (
            ("up", "Why?"),
            ("up", "Hello?"),
            ("down", "Why?"),
            ("down", ""),
        ):
            await pilot.press(key)
            assert typed(app) == text
        await pilot.press("a", "ctrl+j", "b", "up", "up")
        assert typed(app) == "a\nb", "in a draft the cursor moves"


async def test_nothing_is_sent_while_an_answer_comes_or_the_model_loads() -> None:
    async with chatting() as (app, pilot):
        await ask(app, pilot)
        await pilot.press("m", "o", "enter")
        assert (typed(app), len(app.asked)) == ("mo", 1)
        assert app.said == ["An answer is still coming: {chat.stop} stops it."]
        app.query_one(Composer).clear()
        app.pane.set_ready(False, "the model is loading…", returning=True)
        told = "the model is loading… the answer goes on then"
        await until(pilot, lambda: told in screen_text(app))
        await answer(app, pilot, DONE)
        app.said.clear()
        await pilot.press("escape")
        app.pane.focus_default()
        await pilot.press(*"sq", "enter")
        assert (typed(app), len(app.asked)) == ("sq", 1)
        assert app.said == ["the model is loading…"]
        app.pane.set_ready(True, "")
        await pilot.press("enter")
        await until(pilot, lambda: sent(app)[1:] == ["sq"])


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


async def test_the_draft_goes_through_the_editor_and_survives_its_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing = False

    async def edit_text(text: str) -> str:
        if failing:
            raise DllmError("The editor vi failed (exit 1)", "The text is as it was.")
        return f"{text}\nand more"

    async with chatting() as (app, pilot):
        composer = app.query_one(Composer)
        await until(pilot, lambda: app.pane.conversation)
        composer.write("a")
        await pilot.press("f8")
        assert app.said == ["There is no terminal here for an editor"]
        monkeypatch.setattr(app, "suspend", nullcontext)
        monkeypatch.setattr(text_editor, "edit_text", edit_text)
        await pilot.press("escape", "f8")
        await until(pilot, lambda: typed(app) == "a\nand more")
        await pilot.press("!")
        assert typed(app) == "a\nand more!"
        failing = True
        await pilot.press("f8")
        said = "The editor vi failed (exit 1). The text is as it was"
        await until(pilot, lambda: [said in one for one in app.troubles] == [True])
        assert typed(app) == "a\nand more!"
