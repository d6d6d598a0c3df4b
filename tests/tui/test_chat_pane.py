"""The chat pane: asking, streaming, stopping, settings, and what stays on it."""

from __future__ import annotations

from backends.state import ChatDelta, ChatMessage, Sampling
from tests.tui.chatting import (
    DONE,
    EARLIER,
    answer,
    ask,
    chatting,
    request,
    said,
    sampling,
    talk,
)
from tests.tui.helpers import screen_text, until
from tui.dialogs.sampling import SamplingDialog
from tui.screens.cluster.answer import ChatAnswer
from tui.screens.cluster.answer_text import AnswerText
from tui.screens.cluster.chat_pane import Composer
from tui.screens.cluster.transcript import SHOWN_TURNS, ChatTranscript


async def test_answers_stream_as_markdown_and_are_sent_along_next_time() -> None:
    async with chatting() as (app, pilot):
        await ask(app, pilot, "Why is the sky blue?")
        assert request(app) == ["Why is the sky blue?"]
        assert app.query_one(Composer).text == ""
        pieces = (ChatDelta(text=text) for text in ("Air **scat", "ters**."))
        await answer(app, pilot, *pieces, DONE)
        shown = screen_text(app)
        assert "Why is the sky blue?" in shown
        assert "Air scatters." in shown
        assert "21.3 tok/s · first token 0.88 s · 42 tokens" in shown
        assert app.turns == [("Why is the sky blue?", "Air **scatters**.")]
        await ask(app, pilot, "Really?")
        assert [message.role for message in app.asked[-1].messages] == [
            *("user", "assistant", "user"),
        ]


async def test_escape_stops_the_answer_leaves_the_composer_then_the_screen() -> None:
    async with chatting() as (app, pilot):
        await ask(app, pilot)
        app.give(ChatDelta(text="Half an ans"))
        await until(pilot, lambda: "Half an ans" in screen_text(app))
        await pilot.press("escape")
        await until(pilot, lambda: "stopped by you" in screen_text(app))
        assert "Half an ans" in screen_text(app)
        assert app.turns == [("Why?", "Half an ans")]
        assert not app.pane.answering
        await pilot.press("escape")
        assert isinstance(app.focused, ChatTranscript)
        assert app.backs == 0
        await pilot.press("escape")
        assert app.backs == 1
        await pilot.press("i")
        assert isinstance(app.focused, Composer)


async def test_reasoning_is_shown_apart_and_folds_when_the_answer_begins() -> None:
    async with chatting() as (app, pilot):
        last = await ask(app, pilot)
        app.give(ChatDelta(reasoning="Rayleigh, surely."))
        await until(pilot, lambda: "Rayleigh, surely." in screen_text(app))
        assert "▾ thinking · 2 words" in screen_text(app)
        await answer(app, pilot, ChatDelta(text="Because."), DONE)
        assert "▸ reasoning · 2 words" in screen_text(app)
        assert "Rayleigh" not in screen_text(app)
        assert app.turns[-1][1] == "Because."
        await pilot.press("escape", "v")
        await until(pilot, lambda: "Rayleigh, surely." in screen_text(app))
        await pilot.click(last.reasoning.query_one(".reasoning-head"))
        await until(pilot, lambda: "Rayleigh" not in screen_text(app))
        await ask(app, pilot)
        app.give(ChatDelta(reasoning=" ".join(map(str, range(3000)))))
        await until(pilot, lambda: "2999" in screen_text(app))
        assert "3 000 words" in screen_text(app), "its end is shown while it grows"


async def test_the_view_follows_until_the_user_scrolls_up() -> None:
    async with chatting(80, 12) as (app, pilot):
        await ask(app, pilot)
        app.give(ChatDelta(text="".join(f"line {n}\n\n" for n in range(30))))
        await until(pilot, lambda: "line 27" in screen_text(app))
        await pilot.press("pageup")
        transcript = app.query_one(ChatTranscript)
        assert not transcript.following
        await until(pilot, lambda: "line 24" in screen_text(app))
        assert "line 29" not in screen_text(app)
        at = transcript.scroll_y
        app.give(ChatDelta(text="\n\nnews\n\nmore"))
        await until(pilot, lambda: "new lines" in screen_text(app))
        assert transcript.scroll_y == at
        assert "more" not in screen_text(app)
        await pilot.click(app.query_one(".chat-unseen"))
        await until(pilot, lambda: "more" in screen_text(app))
        assert transcript.following
        assert "new lines" not in screen_text(app)
        await answer(app, pilot, DONE)


async def test_a_restored_conversation_shows_its_newest_turns() -> None:
    async with chatting() as (app, pilot):
        numbers = range(SHOWN_TURNS + 3)
        earlier = [said(f"question {n}", f"answer {n}") for n in numbers]
        await app.restore(earlier, Sampling(temperature=0.5))
        await until(pilot, lambda: len(app.query(ChatAnswer)) == SHOWN_TURNS)
        assert len(app.turns) == SHOWN_TURNS + 3
        assert sampling(app).temperature == 0.5
        assert "answer 10" in screen_text(app)
        await pilot.press("escape", "home")
        hint = "▲ 3 earlier questions · g shows"
        await until(pilot, lambda: hint in screen_text(app))
        await pilot.press("home")
        await until(pilot, lambda: len(app.query(ChatAnswer)) == SHOWN_TURNS + 3)
        transcript = app.query_one(ChatTranscript)
        await until(pilot, lambda: transcript.scroll_y > 0)
        assert "question 3" in screen_text(app)
        await ask(app, pilot)
        await until(pilot, lambda: len(app.query(ChatAnswer)) == SHOWN_TURNS)
        assert len(app.turns) == SHOWN_TURNS + 4


async def test_answers_and_links_are_copied_and_nothing_in_them_is_obeyed() -> None:
    async with chatting() as (app, pilot):
        assert app.pane.copyable() is None
        await app.restore(EARLIER)
        await pilot.press("escape", "y")
        assert app.clipboard == "Hello *you*!"
        hostile = "see <b>this</b>\x1b[2J [red]x[/red]"
        await talk(app, pilot, "a[b]\x1b[31mc", hostile)
        assert "a[b]c" in screen_text(app)
        assert "see <b>this</b> [red]x[/red]" in screen_text(app)
        await talk(app, pilot, "Why?", "[here](https://example.org)")
        await until(pilot, lambda: "here" in screen_text(app))
        answered = app.query(AnswerText).last()
        await pilot.click(answered, offset=(20, 0))
        assert app.clipboard == "Hello *you*!"
        await pilot.click(answered, offset=(2, 0))
        await until(pilot, lambda: "https://example.org" in app.clipboard)
        assert app.clipboard == "https://example.org", "it is not opened"


async def test_settings_are_applied_to_the_next_question() -> None:
    async with chatting() as (app, pilot):
        before = Sampling(top_k=3, seed=1)
        await app.restore(EARLIER, before)
        await pilot.press("escape")

        async def opened() -> None:
            await pilot.press("p")
            await until(pilot, lambda: isinstance(app.screen, SamplingDialog))

        async def closed() -> None:
            await until(pilot, lambda: not isinstance(app.screen, SamplingDialog))

        await opened()
        await pilot.press("tab", *"hot", "enter")
        assert "temperature takes a number, 0–5." in screen_text(app)
        await pilot.press("escape")
        await closed()
        assert sampling(app) == before, "what is wrong keeps the dialog open"
        await opened()
        await pilot.press(*"Be brief.", "tab", *"0.5", "enter")
        await closed()
        assert sampling(app) == Sampling(temperature=0.5, top_k=3, seed=1)
        app.pane.focus_default()
        await ask(app, pilot)
        prompt = ChatMessage(role="system", content="Be brief.")
        assert app.asked[0].messages[0] == prompt
        assert app.pane.border_subtitle == "system prompt · own sampling"
        app.pane.set_template(False)
        assert "no chat template" in str(app.pane.border_subtitle)
        await answer(app, pilot, DONE)
        await pilot.press("escape")
        await opened()
        await pilot.click("#reset")
        await pilot.press("f2")
        await closed()
        assert sampling(app) == Sampling()
