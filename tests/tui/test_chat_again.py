"""Questions asked again: as they were or in other words, and gone back from."""

from __future__ import annotations

from textual.pilot import Pilot

from backends.errors import ControllerError
from backends.state import ChatDelta, Failure
from tests.tui.chatting import DONE, EARLIER, answer, ask, said
from tests.tui.helpers import screen_text, toasts, until
from tests.tui.stages import ChatStage
from tui.screens.cluster.answer import AnswerVariants, ChatAnswer, ChatQuestion
from tui.screens.cluster.chat_pane import Composer
from tui.screens.cluster.transcript import SHOWN_TURNS, ChatTranscript

THREE = [("First?", "One."), ("Second?", "Two."), ("Third?", "Three.")]


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


async def test_a_failed_question_with_others_after_it_is_gone_back_to() -> None:
    app = ChatStage()
    async with app.run_test(size=(120, 36)) as pilot:
        await ask(app, pilot, "First?")
        await answer(app, pilot, ChatDelta(done=True, failure=Failure(what="No")))
        await ask(app, pilot, "Second?")
        await answer(app, pilot, ChatDelta(text="Two."), DONE)
        before = app.turns
        await pilot.press("escape", "left_curly_bracket", "left_curly_bracket", "r")
        await until(pilot, lambda: len(app.asked) == 3)
        await answer(app, pilot, ChatDelta(text="Un."), DONE)
        await until(pilot, lambda: app.turns == [("First?", "Un.")])
        await pilot.press("u")
        await until(pilot, lambda: app.turns == before)


async def test_an_answer_asked_for_again_stands_beside_the_first() -> None:
    app = ChatStage()
    async with app.run_test(size=(120, 24)) as pilot:
        await ask(app, pilot)
        await answer(app, pilot, ChatDelta(text="One."), DONE)
        await pilot.press("escape", "r")
        await until(pilot, lambda: len(app.asked) == 2)
        assert app.asked[1] == app.asked[0]
        await until(pilot, lambda: app.turns == [("Why?", "")])
        await answer(app, pilot, ChatDelta(text="Two."), DONE)
        await until(pilot, lambda: "answer 2 of 2" in screen_text(app))
        assert "One." not in screen_text(app)
        await pilot.press("left_square_bracket")
        await until(pilot, lambda: "answer 1 of 2" in screen_text(app))
        assert "One." in screen_text(app)
        await ask(app, pilot, "And?")
        assert [message.content for message in app.asked[-1].messages] == [
            "Why?",
            "One.",
            "And?",
        ]


async def test_an_answer_without_words_is_replaced() -> None:
    app = ChatStage()
    async with app.run_test() as pilot:
        await ask(app, pilot)
        await answer(app, pilot, ChatDelta(done=True, failure=Failure(what="No")))
        await pilot.press("escape", "r")
        await until(pilot, lambda: len(app.asked) == 2)
        await until(pilot, lambda: "No." not in screen_text(app))
        await answer(app, pilot, ChatDelta(text="Two."), DONE)
        await until(pilot, lambda: "Two." in screen_text(app))
        assert "answer" not in screen_text(app)


async def test_edit_asks_a_question_again_in_other_words() -> None:
    app = ChatStage()
    async with app.run_test(size=(120, 24)) as pilot:
        await ask(app, pilot, "Why?")
        await answer(app, pilot, ChatDelta(text="One."), DONE)
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
        await until(pilot, lambda: app.turns == [("Why? not", "")])
        assert [message.content for message in app.asked[1].messages] == ["Why? not"]
        assert composer.text == "Half a thought"
        await answer(app, pilot, ChatDelta(text="Two."), DONE)
        await until(pilot, lambda: "answer 2 of 2" in screen_text(app))
        composer.write("")
        await pilot.press("escape", "u")
        await until(pilot, lambda: app.turns == [("Why?", "One.")])
        await until(pilot, lambda: "One." in screen_text(app))
        await pilot.press("u")
        await until(pilot, lambda: app.turns == [("Why? not", "Two.")])


async def three_asked(app: ChatStage, pilot: Pilot[None]) -> None:
    for question, text in THREE:
        await ask(app, pilot, question)
        await answer(app, pilot, ChatDelta(text=text), DONE)
    await pilot.press("escape")


async def test_an_earlier_question_is_asked_again_and_what_followed_is_kept() -> None:
    app = ChatStage()
    async with app.run_test(size=(120, 36)) as pilot:
        await three_asked(app, pilot)
        await pilot.press("left_curly_bracket", "left_curly_bracket")
        await until(pilot, lambda: "▸you Second?" in screen_text(app))
        assert screen_text(app).count("▸you") == 1
        await pilot.press("r")
        await until(pilot, lambda: len(app.asked) == 4)
        said = [message.content for message in app.asked[3].messages]
        assert said == ["First?", "One.", "Second?"]
        await until(pilot, lambda: app.turns[1:] == [("Second?", "")])
        kept = "The follow-up stays with the earlier answer: u goes back."
        assert toasts(app) == [f"Asked again. {kept}"]
        await answer(app, pilot, ChatDelta(text="Deux."), DONE)
        await until(pilot, lambda: "1 question followed" in screen_text(app))
        shown = screen_text(app)
        assert "Third?" not in shown
        assert "▸ 2  21.3 tok/s" in shown
        await pilot.press("left_square_bracket")
        await until(pilot, lambda: app.turns == THREE)
        await until(pilot, lambda: "Three." in screen_text(app))
        await pilot.press("right_square_bracket")
        await until(pilot, lambda: app.turns[1:] == [("Second?", "Deux.")])
        await pilot.press("u")
        await until(pilot, lambda: app.turns == THREE)


async def test_asking_an_earlier_question_again_can_be_undone() -> None:
    app = ChatStage()
    async with app.run_test(size=(120, 36)) as pilot:
        await three_asked(app, pilot)
        await pilot.press("shift+up", "shift+up", "shift+up", "E", *" Eh", "enter")
        await until(pilot, lambda: app.turns == [("First? Eh", "")])
        await answer(app, pilot, ChatDelta(text="Un."), DONE)
        await pilot.press("escape", "u")
        await until(pilot, lambda: app.turns == THREE)
        await until(pilot, lambda: "“First? Eh”" in screen_text(app))


async def test_the_mouse_chooses_edits_and_goes_back() -> None:
    app = ChatStage()
    async with app.run_test(size=(120, 36)) as pilot:
        await three_asked(app, pilot)
        first = app.query(ChatQuestion).first()
        await pilot.click(first)
        await until(pilot, lambda: "▸you First?" in screen_text(app))
        await pilot.click(first)
        composer = app.query_one(Composer)
        await until(pilot, lambda: composer.text == "First?")
        await pilot.press(*" Eh", "enter")
        await until(pilot, lambda: app.turns == [("First? Eh", "")])
        await answer(app, pilot, ChatDelta(text="Un."), DONE)
        await until(pilot, lambda: app.query(AnswerVariants))
        await pilot.click(app.query_one(AnswerVariants).children[0])
        await until(pilot, lambda: app.turns == THREE)


async def test_no_question_is_chosen_after_the_last_and_by_escape() -> None:
    app = ChatStage()
    async with app.run_test(size=(120, 36)) as pilot:
        await three_asked(app, pilot)
        await pilot.press("left_curly_bracket")
        await until(pilot, lambda: "▸you Third?" in screen_text(app))
        await pilot.press("right_curly_bracket")
        await until(pilot, lambda: "▸you" not in screen_text(app))
        await pilot.press("left_curly_bracket", "escape")
        await until(pilot, lambda: "▸you" not in screen_text(app))
        assert app.backs == 0
        await pilot.press("escape")
        assert app.backs == 1


async def test_a_question_far_back_is_brought_into_view() -> None:
    app = ChatStage()
    async with app.run_test(size=(80, 12)) as pilot:
        numbers = range(SHOWN_TURNS + 2)
        await app.restore([said(f"question {n}", f"answer {n}") for n in numbers])
        await until(pilot, lambda: len(app.query(ChatAnswer)) == SHOWN_TURNS)
        await pilot.press("escape", *["left_curly_bracket"] * (SHOWN_TURNS + 2))
        await until(pilot, lambda: "▸you question 0" in screen_text(app))
        await pilot.press("y")
        await until(pilot, lambda: app.clipboard == "answer 0")
        await pilot.press(*["right_curly_bracket"] * (SHOWN_TURNS + 2))
        await until(pilot, lambda: f"answer {SHOWN_TURNS + 1}" in screen_text(app))
        assert app.query_one(ChatTranscript).following


async def test_an_edit_that_is_refused_is_not_lost() -> None:
    app = ChatStage()
    async with app.run_test(size=(120, 24)) as pilot:
        await three_asked(app, pilot)
        await pilot.press("left_curly_bracket", "left_curly_bracket", "E", *" Eh")
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
        await until(pilot, lambda: app.turns[1:] == [("Second? Eh", "")])


async def test_a_new_conversation_can_be_taken_back() -> None:
    app = ChatStage()
    async with app.run_test() as pilot:
        await app.restore(EARLIER, system="Be brief.")
        await until(pilot, lambda: "Hello you!" in screen_text(app))
        await pilot.press("escape", "n")
        await until(pilot, lambda: not app.query(ChatAnswer))
        now = app.pane.conversation
        assert now is not None
        assert (now.system, now.turns) == ("Be brief.", ())
        assert toasts(app) == ["New chat. u reopens the previous one (1 question)."]
        await pilot.press("u")
        await until(pilot, lambda: "Hello you!" in screen_text(app))
        assert app.turns == [("Hello?", "Hello *you*!")]
