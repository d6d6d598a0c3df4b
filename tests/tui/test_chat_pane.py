"""The chat pane: asking, streaming, stopping, and what one can do afterwards."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from textual import events
from textual.widgets import Markdown

from backends.state import (
    ChatDelta,
    ChatMessage,
    ChatTimings,
    Failure,
    Sampling,
)
from tests.tui.helpers import screen_text, until
from tests.tui.stages import ChatStage
from tui.widgets.chat_answer import ChatAnswer
from tui.widgets.chat_transcript import SHOWN_TURNS, ChatTranscript
from tui.widgets.composer import Composer
from tui.widgets.sampling_dialog import SamplingDialog

if TYPE_CHECKING:
    from textual.pilot import Pilot

TIMINGS = ChatTimings(tokens=42, tok_per_s=21.34, first_token_s=0.88)
DONE = ChatDelta(done=True, finish_reason="stop", timings=TIMINGS)
EARLIER = (
    ChatMessage(role="user", content="Hello?"),
    ChatMessage(role="assistant", content="Hello *you*!"),
)


async def ask(app: ChatStage, pilot: Pilot[None], question: str = "Why?") -> ChatAnswer:
    """Type and send a question; the answer that waits."""
    before = len(app.asked)
    app.pane.focus_default()
    app.query_one(Composer).write(question)
    await pilot.press("enter")
    await until(pilot, lambda: len(app.asked) > before)
    return app.query(ChatAnswer).last()


async def answer(app: ChatStage, pilot: Pilot[None], *deltas: ChatDelta) -> None:
    """Let pieces of an answer come, and be drawn."""
    for delta in deltas:
        app.pane.show_delta(delta)
        await pilot.pause()
    await until(pilot, lambda: not busy(app))


def busy(app: ChatStage) -> bool:
    """An answer still has pieces to draw."""
    drawing = [worker for worker in app.workers if worker.group == "answer"]
    return any(not worker.is_finished for worker in drawing) and not app.pane.answering


def roles(app: ChatStage) -> list[str]:
    """Who spoke, in the last request."""
    return [message.role for message in app.asked[-1].messages]


async def test_enter_sends_and_the_answer_streams_as_markdown() -> None:
    app = ChatStage()
    async with app.run_test(size=(80, 24)) as pilot:
        await ask(app, pilot, "Why is the sky blue?")
        assert roles(app) == ["user"]
        assert app.query_one(Composer).text == ""
        await answer(
            app, pilot, ChatDelta(text="Air **scat"), ChatDelta(text="ters**."), DONE
        )
        shown = screen_text(app)
        assert "Why is the sky blue?" in shown
        assert "Air scatters." in shown
        assert "21.3 tok/s · first token 0.88 s · 42 tokens" in shown
        assert [message.content for message in app.pane.conversation] == [
            "Why is the sky blue?",
            "Air **scatters**.",
        ]


async def test_the_next_question_carries_the_conversation() -> None:
    app = ChatStage()
    async with app.run_test() as pilot:
        await ask(app, pilot)
        await answer(app, pilot, ChatDelta(text="Because."), DONE)
        await ask(app, pilot, "Really?")
        assert roles(app) == ["user", "assistant", "user"]


@pytest.mark.parametrize("key", ["ctrl+j", "shift+enter"])
async def test_a_new_line_does_not_send(key: str) -> None:
    app = ChatStage()
    async with app.run_test() as pilot:
        await pilot.press("a", key, "b")
        assert app.query_one(Composer).text == "a\nb"
        assert app.asked == []


async def test_keys_typed_fast_keep_their_order() -> None:
    app = ChatStage()
    async with app.run_test() as pilot:
        composer = app.query_one(Composer)
        for key in ("a", "ctrl+j", "b", "enter", "c"):
            character = key if len(key) == 1 else None
            composer.post_message(events.Key(key, character))
        await until(pilot, lambda: composer.text == "c")
        assert app.asked[0].messages[0].content == "a\nb"


async def test_send_can_have_another_key() -> None:
    app = ChatStage()
    async with app.run_test() as pilot:
        app.set_keymap({"composer.send": "f9"})
        await pilot.press("a", "enter", "f9")
        await until(pilot, lambda: app.asked)
        assert app.asked[0].messages[0].content == "a"


async def test_the_composer_grows_to_six_rows() -> None:
    app = ChatStage()
    async with app.run_test(size=(80, 24)) as pilot:
        composer = app.query_one(Composer)
        assert composer.size.height == 1
        await pilot.press("a", *["ctrl+j"] * 9)
        assert composer.size.height == 6


async def test_letters_type_and_do_not_command() -> None:
    app = ChatStage()
    async with app.run_test() as pilot:
        await pilot.press(*"rnqls56?:/")
        assert app.query_one(Composer).text == "rnqls56?:/"


async def test_a_long_paste_arrives_whole() -> None:
    app = ChatStage()
    async with app.run_test() as pilot:
        text = "\n".join(f"line {number}" for number in range(2000))
        composer = app.query_one(Composer)
        composer.insert(text)
        await pilot.press("enter")
        await until(pilot, lambda: app.asked)
        assert app.asked[0].messages[0].content == text


async def test_waiting_shows_how_much_of_the_prompt_was_read() -> None:
    app = ChatStage()
    async with app.run_test() as pilot:
        await ask(app, pilot)
        await until(pilot, lambda: "waiting for the first token" in screen_text(app))
        app.pane.show_delta(ChatDelta(prompt_progress=0.43))
        await until(pilot, lambda: "reading the prompt" in screen_text(app))
        assert "43 %" in screen_text(app)


async def test_escape_stops_the_answer_and_keeps_what_came() -> None:
    app = ChatStage()
    async with app.run_test() as pilot:
        await ask(app, pilot)
        app.pane.show_delta(ChatDelta(text="Half an ans"))
        await pilot.press("escape")
        assert app.stops == 1
        await answer(app, pilot, ChatDelta(done=True, finish_reason="stopped"))
        assert "Half an ans" in screen_text(app)
        assert "stopped by you" in screen_text(app)
        assert app.pane.conversation[-1].content == "Half an ans"
        assert not app.pane.answering


async def test_escape_leaves_the_composer_then_the_screen() -> None:
    app = ChatStage()
    async with app.run_test() as pilot:
        await ask(app, pilot)
        await answer(app, pilot, ChatDelta(text="Because."), DONE)
        await pilot.press("escape")
        assert isinstance(app.focused, ChatTranscript)
        assert app.backs == 0
        await pilot.press("escape")
        assert app.backs == 1
        await pilot.press("i")
        assert isinstance(app.focused, Composer)


async def test_a_failure_is_one_sentence_under_what_came() -> None:
    app = ChatStage()
    async with app.run_test(size=(100, 24)) as pilot:
        await ask(app, pilot)
        failure = Failure(what="worker1 ended with SIGKILL", hint="Give it less")
        await answer(
            app,
            pilot,
            ChatDelta(text="Because air"),
            ChatDelta(done=True, failure=failure),
        )
        shown = screen_text(app)
        assert "Because air" in shown
        assert "worker1 ended with SIGKILL. Give it less." in shown
        assert app.pane.conversation[-1].content == "Because air"


async def test_a_failed_question_is_not_sent_along_but_can_be_asked_again() -> None:
    app = ChatStage()
    async with app.run_test() as pilot:
        await ask(app, pilot, "first")
        failed = ChatDelta(done=True, failure=Failure(what="No"))
        await answer(app, pilot, failed)
        await pilot.press("escape", "r")
        await until(pilot, lambda: len(app.asked) == 2)
        assert [m.content for m in app.asked[-1].messages] == ["first"]
        await answer(app, pilot, failed)
        await ask(app, pilot, "second")
        assert [m.content for m in app.asked[-1].messages] == ["second"]


async def test_regenerate_replaces_the_last_answer() -> None:
    app = ChatStage()
    async with app.run_test() as pilot:
        await ask(app, pilot)
        await answer(app, pilot, ChatDelta(text="One."), DONE)
        await pilot.press("escape", "r")
        await until(pilot, lambda: len(app.asked) == 2)
        assert app.asked[1] == app.asked[0]
        await answer(app, pilot, ChatDelta(text="Two."), DONE)
        assert "One." not in screen_text(app)
        assert app.pane.conversation[-1].content == "Two."
        await pilot.press("u")
        await until(pilot, lambda: "One." in screen_text(app))


async def test_edit_takes_the_last_question_back() -> None:
    app = ChatStage()
    async with app.run_test() as pilot:
        await ask(app, pilot, "Why?")
        await answer(app, pilot, ChatDelta(text="One."), DONE)
        await pilot.press("escape", "E")
        await until(pilot, lambda: not app.query(ChatAnswer))
        assert app.query_one(Composer).text == "Why?"
        assert app.focused is app.query_one(Composer)
        assert app.pane.conversation == ()


async def test_a_new_conversation_can_be_taken_back() -> None:
    app = ChatStage()
    async with app.run_test() as pilot:
        app.pane.restore(
            (ChatMessage(role="system", content="Be brief."), *EARLIER), Sampling()
        )
        await until(pilot, lambda: "Hello you!" in screen_text(app))
        await pilot.press("escape", "n")
        await until(pilot, lambda: not app.query(ChatAnswer))
        assert [m.role for m in app.pane.conversation] == ["system"]
        assert app.said == ["Began anew. u brings back 1 question."]
        await pilot.press("u")
        await until(pilot, lambda: "Hello you!" in screen_text(app))
        assert app.pane.conversation[1:] == EARLIER


async def test_up_and_down_walk_through_what_was_asked() -> None:
    app = ChatStage()
    async with app.run_test() as pilot:
        app.pane.restore(EARLIER, Sampling())
        await ask(app, pilot, "Why?")
        await answer(app, pilot, DONE)
        composer = app.query_one(Composer)
        await pilot.press("up")
        assert composer.text == "Why?"
        await pilot.press("up")
        assert composer.text == "Hello?"
        await pilot.press("down", "down")
        assert composer.text == ""


async def test_up_in_a_draft_moves_the_cursor() -> None:
    app = ChatStage()
    async with app.run_test() as pilot:
        app.pane.restore(EARLIER, Sampling())
        await pilot.press("a", "ctrl+j", "b", "up", "up")
        assert app.query_one(Composer).text == "a\nb"


async def test_nothing_is_sent_while_an_answer_comes() -> None:
    app = ChatStage()
    async with app.run_test() as pilot:
        await ask(app, pilot)
        await pilot.press("m", "o", "enter")
        assert len(app.asked) == 1
        assert app.query_one(Composer).text == "mo"
        assert app.said == ["An answer is still coming: Esc stops it."]


async def test_a_closed_composer_says_why_and_takes_no_focus() -> None:
    app = ChatStage()
    async with app.run_test() as pilot:
        app.pane.set_ready(False, "nothing runs: l launches")
        await pilot.pause()
        assert "nothing runs: l launches" in screen_text(app)
        app.pane.focus_default()
        await pilot.pause()
        assert isinstance(app.focused, ChatTranscript)


async def test_a_draft_survives_the_end_of_the_cluster() -> None:
    app = ChatStage()
    async with app.run_test() as pilot:
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


async def test_reasoning_is_shown_apart_and_folds_when_the_answer_begins() -> None:
    app = ChatStage()
    async with app.run_test() as pilot:
        last = await ask(app, pilot)
        app.pane.show_delta(ChatDelta(reasoning="Rayleigh, surely."))
        await until(pilot, lambda: "Rayleigh, surely." in screen_text(app))
        assert "▾ thinking · 2 words" in screen_text(app)
        await answer(app, pilot, ChatDelta(text="Because."), DONE)
        assert "▸ reasoning · 2 words" in screen_text(app)
        assert "Rayleigh" not in screen_text(app)
        assert app.pane.conversation[-1].content == "Because."
        await pilot.press("escape", "v")
        await until(pilot, lambda: "Rayleigh, surely." in screen_text(app))
        await pilot.click(last.reasoning.query_one(".reasoning-head"))
        await until(pilot, lambda: "Rayleigh" not in screen_text(app))


async def test_long_reasoning_shows_its_end_while_it_grows() -> None:
    app = ChatStage()
    async with app.run_test() as pilot:
        await ask(app, pilot)
        words = " ".join(str(number) for number in range(3000))
        app.pane.show_delta(ChatDelta(reasoning=words))
        await until(pilot, lambda: "2999" in screen_text(app))
        assert "3 000 words" in screen_text(app)


async def test_the_view_follows_until_the_user_scrolls_up() -> None:
    app = ChatStage()
    async with app.run_test(size=(80, 12)) as pilot:
        await ask(app, pilot)
        app.pane.show_delta(ChatDelta(text="".join(f"line {n}\n\n" for n in range(30))))
        await until(pilot, lambda: "line 29" in screen_text(app))
        await pilot.press("pageup")
        transcript = app.query_one(ChatTranscript)
        assert not transcript.following
        at = transcript.scroll_y
        app.pane.show_delta(ChatDelta(text="\n\nnews\n\nmore"))
        await until(pilot, lambda: "new lines" in screen_text(app))
        assert transcript.scroll_y == at
        assert "more" not in screen_text(app)
        await pilot.click(app.query_one(".chat-unseen"))
        await until(pilot, lambda: "more" in screen_text(app))
        assert transcript.following
        assert "new lines" not in screen_text(app)
        await answer(app, pilot, DONE)


async def test_html_and_control_characters_are_shown_harmlessly() -> None:
    app = ChatStage()
    async with app.run_test() as pilot:
        await ask(app, pilot, "a[b]\x1b[31mc")
        await answer(
            app, pilot, ChatDelta(text="see <b>this</b>\x1b[2J [red]x[/red]"), DONE
        )
        shown = screen_text(app)
        assert "a[b]c" in shown
        assert "see <b>this</b> [red]x[/red]" in shown


async def test_streaming_draws_the_same_as_drawing_at_once() -> None:
    text = (
        "# Title\n\nSome *text*\nwith `code`.\n\n1. one\n2. two\n   - deep\n\n"
        "```python\nx = 1\n\ny = 2\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nEnd."
    )
    pictures = []
    for size in (5, len(text)):
        app = ChatStage()
        async with app.run_test(size=(60, 50)) as pilot:
            await ask(app, pilot)
            parts = [text[at : at + size] for at in range(0, len(text), size)]
            await answer(app, pilot, *(ChatDelta(text=part) for part in parts), DONE)
            pictures.append(screen_text(app))
    assert pictures[0] == pictures[1]


async def test_a_restored_conversation_shows_its_newest_turns() -> None:
    app = ChatStage()
    async with app.run_test() as pilot:
        earlier = [
            message
            for number in range(SHOWN_TURNS + 3)
            for message in (
                ChatMessage(role="user", content=f"question {number}"),
                ChatMessage(role="assistant", content=f"answer {number}"),
            )
        ]
        app.pane.restore(earlier, Sampling(temperature=0.5))
        await until(pilot, lambda: len(app.query(ChatAnswer)) == SHOWN_TURNS)
        assert app.pane.conversation == tuple(earlier)
        assert app.pane.sampling.temperature == 0.5
        assert "answer 10" in screen_text(app)
        await pilot.press("escape", "home")
        assert "↑ 3 earlier questions · Home shows" in screen_text(app)
        await pilot.press("home")
        await until(pilot, lambda: len(app.query(ChatAnswer)) == SHOWN_TURNS + 3)
        transcript = app.query_one(ChatTranscript)
        await until(pilot, lambda: transcript.scroll_y > 0)
        assert "question 3" in screen_text(app)
        await ask(app, pilot)
        await until(pilot, lambda: len(app.query(ChatAnswer)) == SHOWN_TURNS)
        assert len(app.pane.conversation) == len(earlier) + 1


async def test_copy_takes_the_last_answer() -> None:
    app = ChatStage()
    async with app.run_test() as pilot:
        assert app.pane.copyable() is None
        app.pane.restore(EARLIER, Sampling())
        await pilot.press("escape", "y")
        assert app.clipboard == "Hello *you*!"


async def test_settings_are_applied_to_the_next_question() -> None:
    app = ChatStage()
    async with app.run_test(size=(80, 24)) as pilot:
        app.pane.restore(EARLIER, Sampling(top_k=3))
        await pilot.press("escape", "p")
        await until(pilot, lambda: isinstance(app.screen, SamplingDialog))
        await pilot.press(*"Be brief.", "tab", *"0.5", "enter")
        await until(pilot, lambda: not isinstance(app.screen, SamplingDialog))
        assert app.pane.sampling == Sampling(temperature=0.5, top_k=3)
        app.pane.focus_default()
        await ask(app, pilot)
        assert app.asked[0].messages[0] == ChatMessage(
            role="system", content="Be brief."
        )
        assert app.pane.border_subtitle == "system prompt · own sampling"


async def test_a_wrong_setting_keeps_the_dialog_open() -> None:
    app = ChatStage()
    async with app.run_test(size=(80, 24)) as pilot:
        app.pane.restore(EARLIER, Sampling())
        await pilot.press("escape", "p")
        await until(pilot, lambda: isinstance(app.screen, SamplingDialog))
        await pilot.press("tab", *"hot", "enter")
        assert "temperature takes a number, 0–5." in screen_text(app)
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, SamplingDialog))
        assert app.pane.sampling == Sampling()


async def test_reset_empties_every_setting() -> None:
    app = ChatStage()
    async with app.run_test(size=(80, 24)) as pilot:
        app.pane.restore(EARLIER, Sampling(top_k=3, seed=1))
        await pilot.press("escape", "p")
        await until(pilot, lambda: isinstance(app.screen, SamplingDialog))
        await pilot.click("#reset")
        await pilot.press("f2")
        await until(pilot, lambda: not isinstance(app.screen, SamplingDialog))
        assert app.pane.sampling == Sampling()


async def test_links_are_copied_not_opened() -> None:
    app = ChatStage()
    async with app.run_test() as pilot:
        await ask(app, pilot)
        await answer(app, pilot, ChatDelta(text="[here](https://example.org)"), DONE)
        markdown = app.query_one(Markdown)
        markdown.post_message(Markdown.LinkClicked(markdown, "https://example.org"))
        await until(pilot, lambda: app.said)
        assert app.clipboard == "https://example.org"


def test_markdown_is_not_imported_before_the_first_answer() -> None:
    import subprocess

    code = (
        "import sys, tui.widgets.chat_pane, tui.screens.logs, tui.screens.models;"
        "print([name for name in sys.modules if 'markdown' in name])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert found.stdout.strip() == "[]"
