"""Questions asked again, wherever they stand: nothing that was said is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from backends.controller.chat.store import ChatStore
from backends.errors import ControllerError, UsageError
from backends.state import ChatChange, ChatDelta
from tests.kit.waiting import until
from tests.unit.controller.chatting import DONE, MODEL, Model, a_chat, chats_in

if TYPE_CHECKING:
    from pathlib import Path

    from backends.controller.chat.live import LiveChat
    from backends.state import Conversation

THREE = [("First?", "One."), ("Second?", "Two."), ("Third?", "Three.")]


def said(conversation: Conversation) -> list[tuple[str, str]]:
    """Questions and answers of the line that is gone on from."""
    return [(turn.asked, turn.reply.text) for turn in conversation.turns]


async def answered(
    model: Model,
    chat: LiveChat,
    question: str | None,
    text: str,
    again: int | None = None,
) -> None:
    """Ask and let the answer come, whole."""
    model.ask(chat, question, len(chat.conversation.turns), again)
    model.say(ChatDelta(text=text), DONE)
    await until(lambda: not chat.answering)


async def three(model: Model, chat: LiveChat) -> None:
    """Three questions and their answers."""
    for question, text in THREE:
        await answered(model, chat, question, text)


async def test_an_earlier_question_keeps_every_line_that_went_on_from_it(
    tmp_path: Path,
) -> None:
    model = Model()
    async with chats_in(tmp_path) as chats:
        chat = await chats.current("default", MODEL)
        await three(model, chat)
        await answered(model, chat, None, "Deux.", again=1)
        sent = [message.content for message in model.asked[-1].messages]
        assert sent == ["First?", "One.", "Second?"]
        other = [("First?", "One."), ("Second?", "Deux.")]
        assert said(chat.conversation) == other
        await answered(model, chat, "And?", "So.")
        await answered(model, chat, "Eh?", "Un.", again=0)
        assert said(chat.conversation) == [("Eh?", "Un.")]
        assert chat.conversation.title == "Eh?"
    async with chats_in(tmp_path) as chats:
        chat = await chats.current("default", MODEL)
        assert said(chat.conversation) == [("Eh?", "Un.")]
        chat.change(ChatChange(turn=0, shown=0))
        assert said(chat.conversation) == [*other, ("And?", "So.")]
        chat.change(ChatChange(turn=1, shown=0))
        assert said(chat.conversation) == THREE
        chat.change(ChatChange(turn=0, shown=1))
        chat.change(ChatChange(turn=0, shown=0))
        assert said(chat.conversation) == THREE


async def test_while_an_answer_comes_it_is_the_one_that_is_gone_on_from(
    tmp_path: Path,
) -> None:
    """Else its words would be taken for another's."""
    async with a_chat(tmp_path) as (model, chat):
        await three(model, chat)
        model.ask(chat, None, 3, again=0)
        with pytest.raises(ControllerError, match="still coming"):
            chat.change(ChatChange(turn=0, shown=0))
        chat.change(ChatChange(name="Sky"))
        model.say(ChatDelta(text="Un."), DONE)
        await until(lambda: not chat.answering)
        assert said(chat.conversation) == [("First?", "Un.")]


async def test_an_interrupted_answer_costs_nothing_of_the_other_line(
    tmp_path: Path,
) -> None:
    async with a_chat(tmp_path) as (model, chat):
        await three(model, chat)
        model.ask(chat, None, 3, again=0)
        await chat.saved()
        kept = ChatStore(tmp_path).read(chat.conversation.id)
        assert said(kept) == [("First?", "")]
        assert [turn.asked for turn in kept.turns[0].replies[0].then] == [
            "Second?",
            "Third?",
        ]


async def test_what_said_nothing_is_not_kept_beside(tmp_path: Path) -> None:
    async with a_chat(tmp_path) as (model, chat):
        await answered(model, chat, "Frist?", "")
        await answered(model, chat, "First?", "One.", again=0)
        (turn,) = chat.conversation.turns
        assert (turn.question, len(turn.replies)) == ("First?", 1)


async def test_what_was_never_asked_cannot_be_asked_again(tmp_path: Path) -> None:
    async with a_chat(tmp_path) as (model, chat):
        with pytest.raises(UsageError, match="Nothing was asked"):
            model.ask(chat, None, 0, again=0)
        await answered(model, chat, "First?", "One.")
        for again in (1, -1):
            with pytest.raises(UsageError, match="in this chat: there is one"):
                model.ask(chat, None, 1, again=again)
        with pytest.raises(UsageError, match="empty"):
            model.ask(chat, " ", 1, again=0)
        with pytest.raises(UsageError, match="empty"):
            model.ask(chat, None, 1)
        with pytest.raises(UsageError, match="Question 1 has no answer 2"):
            chat.change(ChatChange(turn=0, shown=1))
        assert said(chat.conversation) == [("First?", "One.")]
        assert not chat.answering
