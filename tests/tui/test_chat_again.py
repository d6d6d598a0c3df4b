"""Questions asked again: as they were or in other words, and gone back from."""

from __future__ import annotations

from textual.pilot import Pilot

from backends.errors import ControllerError
from backends.state import ChatDelta
from tests.tui.chatting import (
    DONE,
    FAILED,
    answer,
    ask,
    chatting,
    request,
    said,
    talk,
)
from tests.tui.helpers import screen_text, toasts, until
from tests.tui.stages import ChatStage
from tui.model.context_usage import ContextUsage
from tui.screens.cluster.answer import AnswerVariants, ChatAnswer, ChatQuestion
from tui.screens.cluster.chat_pane import Composer
from tui.screens.cluster.transcript import SHOWN_TURNS, ChatTranscript

THREE = [("First?", "One."), ("Second?", "Two."), ("Third?", "Three.")]
EARLIER_QUESTION, LATER_QUESTION = "left_curly_bracket", "right_curly_bracket"
EARLIER_ANSWER, LATER_ANSWER = "left_square_bracket", "right_square_bracket"


async def shows(app: ChatStage, pilot: Pilot[None], text: str) -> None:
    await until(pilot, lambda: text in screen_text(app))


async def turns(
    app: ChatStage, pilot: Pilot[None], *wanted: tuple[str, str], last: bool = False
) -> None:
    """Wait until these are the turns, or the last of them."""
    first = -len(wanted) if last else 0
    await until(pilot, lambda: app.turns[first:] == [*wanted])


async def three_asked(app: ChatStage, pilot: Pilot[None]) -> None:
    for question, text in THREE:
        await talk(app, pilot, question, text)
    await pilot.press("escape")


async def test_a_failed_question_is_replaced_and_gone_back_to() -> None:
    async with chatting(120, 36) as (app, pilot):
        await ask(app, pilot, "first")
        await answer(app, pilot, FAILED)
        await pilot.press("escape", "r")
        await until(pilot, lambda: len(app.asked) == 2)
        assert request(app) == ["first"]
        await until(pilot, lambda: "No." not in screen_text(app))
        await answer(app, pilot, FAILED)
        assert "answer" not in screen_text(app)
        await talk(app, pilot, "second", "Two.")
        assert request(app) == ["second"], "what failed is never sent along"
        before = app.turns
        await pilot.press("escape", EARLIER_QUESTION, EARLIER_QUESTION, "r")
        await until(pilot, lambda: len(app.asked) == 4)
        await answer(app, pilot, ChatDelta(text="Un."), DONE)
        await turns(app, pilot, ("first", "Un."))
        await pilot.press("u")
        await turns(app, pilot, *before)


async def test_an_answer_asked_for_again_stands_beside_the_first() -> None:
    async with chatting(120, 24) as (app, pilot):
        await talk(app, pilot, "Why?", "One.")
        await pilot.press("escape", "r")
        await until(pilot, lambda: len(app.asked) == 2)
        assert app.asked[1] == app.asked[0]
        await turns(app, pilot, ("Why?", ""))
        await answer(app, pilot, ChatDelta(text="Two words."), DONE)
        await shows(app, pilot, "answer 2 of 2")
        assert "One." not in screen_text(app)
        await pilot.press(EARLIER_ANSWER)
        await shows(app, pilot, "answer 1 of 2")
        assert "One." in screen_text(app)
        # Its tokens are another number.
        app.pane.set_context(100)
        counted = ContextUsage(tokens=2, ctx_size=100, counted=True)
        await until(pilot, lambda: app.pane._context_usage == counted)
        await pilot.press(LATER_ANSWER)
        counted = counted._replace(tokens=3)
        await until(pilot, lambda: app.pane._context_usage == counted)
        await pilot.press(EARLIER_ANSWER)
        await shows(app, pilot, "answer 1 of 2")
        await ask(app, pilot, "And?")
        assert request(app) == ["Why?", "One.", "And?"]


async def test_edit_asks_a_question_again_in_other_words() -> None:
    async with chatting(120, 24) as (app, pilot):
        await talk(app, pilot, "Why?", "One.")
        composer = app.query_one(Composer)
        composer.write("Half a thought")
        await pilot.press("escape", "E")
        await until(pilot, lambda: composer.text == "Why?")
        assert app.focused is composer
        assert "editing question 1 · Esc cancels" in screen_text(app)
        assert app.turns == [("Why?", "One.")], "nothing is taken away yet"
        await pilot.press("escape")
        assert composer.text == "Half a thought"
        assert "again" not in str(app.pane.border_subtitle)
        await pilot.press("E", *" not", "enter")
        await turns(app, pilot, ("Why? not", ""))
        assert request(app, 1) == ["Why? not"]
        assert composer.text == "Half a thought"
        await answer(app, pilot, ChatDelta(text="Two."), DONE)
        await shows(app, pilot, "answer 2 of 2")
        composer.write("")
        await pilot.press("escape", "u")
        await turns(app, pilot, ("Why?", "One."))
        await shows(app, pilot, "One.")
        await pilot.press("u")
        await turns(app, pilot, ("Why? not", "Two."))


async def test_an_earlier_question_is_asked_again_and_what_followed_is_kept() -> None:
    async with chatting(120, 36) as (app, pilot):
        await three_asked(app, pilot)
        await pilot.press(EARLIER_QUESTION, EARLIER_QUESTION)
        await shows(app, pilot, "▸you Second?")
        assert screen_text(app).count("▸you") == 1
        await pilot.press("r")
        await until(pilot, lambda: len(app.asked) == 4)
        assert request(app) == ["First?", "One.", "Second?"]
        await turns(app, pilot, ("Second?", ""), last=True)
        kept = "The follow-up stays with the earlier answer: u goes back."
        assert toasts(app) == [f"Asked again. {kept}"]
        await answer(app, pilot, ChatDelta(text="Deux."), DONE)
        await shows(app, pilot, "1 question followed")
        assert "Third?" not in screen_text(app)
        assert "▸ 2  21.3 tok/s" in screen_text(app)
        await pilot.press(EARLIER_ANSWER)
        await turns(app, pilot, *THREE)
        await shows(app, pilot, "Three.")
        await pilot.press(LATER_ANSWER)
        await turns(app, pilot, ("Second?", "Deux."), last=True)
        await pilot.press("u")
        await turns(app, pilot, *THREE)


async def test_a_question_is_chosen_by_mouse_or_keys_asked_otherwise_and_left() -> None:
    async with chatting(120, 36) as (app, pilot):
        await three_asked(app, pilot)
        for leaving in (LATER_QUESTION, "escape"):
            await pilot.press(EARLIER_QUESTION)
            await shows(app, pilot, "▸you Third?")
            await pilot.press(leaving)
            await until(pilot, lambda: "▸you" not in screen_text(app))
        assert app.backs == 0
        await pilot.press("escape")
        assert app.backs == 1
        first = app.query(ChatQuestion).first()
        await pilot.click(first)
        await shows(app, pilot, "▸you First?")
        await pilot.click(first)
        composer = app.query_one(Composer)
        await until(pilot, lambda: composer.text == "First?")
        await pilot.press(*" Eh", "enter")
        await turns(app, pilot, ("First? Eh", ""))
        assert "The 2 follow-ups stay" in toasts(app)[0]
        await answer(app, pilot, ChatDelta(text="Un."), DONE)
        await until(pilot, lambda: app.query(AnswerVariants))
        await pilot.click(app.query_one(AnswerVariants).children[0])
        await turns(app, pilot, *THREE)
        await shows(app, pilot, "“First? Eh”")
        app.query_one(ChatTranscript).focus()
        await pilot.press("shift+up", "shift+up", "shift+up", "E", *" Oh", "enter")
        await turns(app, pilot, ("First? Oh", ""))
        await answer(app, pilot, ChatDelta(text="Ein."), DONE)
        await pilot.press("escape", "u")
        await turns(app, pilot, *THREE)


async def test_a_question_far_back_is_seen_and_a_new_chat_taken_back() -> None:
    async with chatting(80, 12) as (app, pilot):
        count = SHOWN_TURNS + 2
        earlier = [said(f"question {n}", f"answer {n}") for n in range(count)]
        await app.restore(earlier, system="Be brief.")
        await until(pilot, lambda: len(app.query(ChatAnswer)) == SHOWN_TURNS)
        await pilot.press("escape", *[EARLIER_QUESTION] * count)
        await shows(app, pilot, "▸you question 0")
        await pilot.press("y")
        await until(pilot, lambda: app.clipboard == "answer 0")
        await pilot.press(*[LATER_QUESTION] * count)
        await shows(app, pilot, f"answer {count - 1}")
        assert app.query_one(ChatTranscript).following
        app.clear_notifications()
        await pilot.press("n")
        await until(pilot, lambda: not app.query(ChatAnswer))
        now = app.pane.conversation
        assert now is not None
        assert (now.system, now.turns) == ("Be brief.", ())
        new = f"New chat. u reopens the previous one ({count} questions)."
        assert toasts(app) == [new]
        await pilot.press("u")
        await shows(app, pilot, f"answer {count - 1}")
        assert len(app.turns) == count


async def test_an_edit_that_is_refused_is_not_lost() -> None:
    async with chatting(120, 24) as (app, pilot):
        await three_asked(app, pilot)
        await pilot.press(EARLIER_QUESTION, EARLIER_QUESTION, "E", *" Eh")
        now = app.pane.conversation
        assert now is not None
        # Another console goes on meanwhile.
        await app.cluster.chats.ask(now.id, "Mine?", turns=3)
        app.give(ChatDelta(text="Yours."), DONE)
        await until(pilot, lambda: len(app.turns) == 4 and not app.pane.answering)
        app.cluster.errors["chat ask"] = ControllerError("The connection broke")
        await pilot.press("enter")
        await until(pilot, lambda: app.troubles == ["The connection broke"])
        composer = app.query_one(Composer)
        await until(pilot, lambda: composer.text == "Second? Eh")
        app.cluster.errors.clear()
        await pilot.press("enter")
        await turns(app, pilot, ("Second? Eh", ""), last=True)
