"""Conversations held: answers go on, everybody sees them, nothing is lost."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec
import pytest

from backends.controller.chat.store import ChatStore
from backends.errors import ControllerError, UsageError
from backends.state import (
    ChatChange,
    ChatDelta,
    ChatFrame,
    ChatState,
    ChatTimings,
    Sampling,
)
from backends.state.chats import chat_applied, chat_framed
from tests.kit.waiting import until
from tests.unit.controller.chatting import (
    DONE,
    MODEL,
    Disk,
    Model,
    a_chat,
    chats_in,
    conversation,
    until_state,
)

if TYPE_CHECKING:
    from pathlib import Path

    from backends.controller.chat.live import LiveChat
    from backends.state import Reply


def newest(state: ChatState) -> Reply:
    return state.conversation.turns[-1].replies[-1]


async def test_what_was_asked_and_came_is_on_disk_before_the_answer_ends(
    tmp_path: Path,
) -> None:
    """As a kill -9 in the middle of it would find it."""
    async with a_chat(tmp_path) as (model, chat):
        model.ask(chat, "Why?")
        await chat.saved()
        (kept,) = ChatStore(tmp_path).all()
        assert kept.turns[0].question == "Why?"
        model.say(ChatDelta(text="Half an "), ChatDelta(text="ans"))
        found = ChatStore(tmp_path)
        await until(lambda: found.read(kept.id).turns[0].reply.text == "Half an ans")
        async with chats_in(tmp_path) as later:
            again = (await later.current("default", MODEL)).conversation
            assert again.turns[0].reply.text == "Half an ans"
            assert again.turns[0].reply.finish_reason == "interrupted"
        model.say(ChatDelta(text="wer"), DONE)
        await until(lambda: not chat.answering)
        await until(lambda: found.read(kept.id).turns[0].reply.done)
        assert found.read(kept.id) == chat.conversation


async def test_an_answer_goes_on_when_nobody_looks(tmp_path: Path) -> None:
    model = Model()
    async with chats_in(tmp_path) as chats:
        chat = await chats.current("default", MODEL)
        async with aclosing(chats.states("default", MODEL)) as states:
            model.ask(chat, "Why?")
            model.say(ChatDelta(text="One "))
            await until_state(
                states, lambda state: state.answering and newest(state).text == "One "
            )
        model.say(ChatDelta(text="two."), DONE)
        await until(lambda: not chat.answering)
        assert newest(chat.state).text == "One two."
        assert model.closed == 1


async def test_two_who_look_see_the_same_and_no_word_twice(tmp_path: Path) -> None:
    model = Model()
    async with chats_in(tmp_path) as chats:
        one, two = (chats.states("default", MODEL) for _ in range(2))
        assert (await anext(one)).conversation.turns == ()
        model.ask(await chats.current("default", MODEL), "Why?")
        words = [f"{number} " for number in range(50)]
        model.say(*(ChatDelta(text=word) for word in words), DONE)
        ends = [
            await until_state(states, lambda s: s.conversation.turns and newest(s).done)
            for states in (one, two)
        ]
        assert ends[0] == ends[1]
        assert newest(ends[0]).text == "".join(words)
        await one.aclose()
        await two.aclose()


async def test_stopping_keeps_what_came_and_ends_the_generation(
    tmp_path: Path,
) -> None:
    async with a_chat(tmp_path) as (model, chat):
        model.ask(chat, "Why?")
        model.say(ChatDelta(text="Half"))
        await until(lambda: newest(chat.state).text)
        await chat.stop()
        assert (newest(chat.state).text, newest(chat.state).finish_reason) == (
            "Half",
            "stopped",
        )
        assert model.closed == 1


async def test_a_controller_that_ends_says_so_in_the_answer(tmp_path: Path) -> None:
    async with a_chat(tmp_path) as (model, chat):
        model.ask(chat, "Why?")
        model.say(ChatDelta(text="Half"))
        await until(lambda: newest(chat.state).text)
    (kept,) = ChatStore(tmp_path).all()
    assert kept.turns[0].reply.text == "Half"
    assert kept.turns[0].reply.finish_reason == "interrupted"


async def test_one_question_at_a_time_and_only_to_what_was_seen(
    tmp_path: Path,
) -> None:
    model = Model()
    async with chats_in(tmp_path) as chats:
        chat = await chats.current("default", MODEL)
        model.ask(chat, "Why?")
        with pytest.raises(ControllerError, match="still coming"):
            model.ask(chat, "Me too?", turns=1)
        with pytest.raises(ControllerError, match="still coming"):
            await chats.delete(chat.conversation.id)
        model.say(ChatDelta(text="So."), DONE)
        await until(lambda: not chat.answering)
        with pytest.raises(ControllerError, match="gone on with from elsewhere"):
            model.ask(chat, "Me too?", turns=0)
        with pytest.raises(UsageError, match="empty"):
            model.ask(chat, " \n", turns=1)
        assert len(chat.conversation.turns) == 1


async def test_an_answer_asked_again_stands_beside_and_is_gone_on_from(
    tmp_path: Path,
) -> None:
    async with a_chat(tmp_path) as (model, chat):
        for turns, text in enumerate(("One.", "Two.")):
            question, again = (None, 0) if turns else ("Why?", None)
            model.ask(chat, question, turns=turns, again=again)
            model.say(ChatDelta(text=text), DONE)
            await until(lambda: not chat.answering)
        (turn,) = chat.conversation.turns
        assert [reply.text for reply in turn.replies] == ["One.", "Two."]
        assert turn.shown == 1
        with pytest.raises(UsageError, match="no answer 4"):
            chat.change(ChatChange(shown=3))
        chat.change(ChatChange(shown=0))
        model.ask(chat, "And?", turns=1)
        await until(lambda: len(model.asked) == 3)
        said = [message.content for message in model.asked[-1].messages]
        assert said == ["Why?", "One.", "And?"]


async def test_questions_without_an_answer_are_not_sent_along(tmp_path: Path) -> None:
    async with a_chat(tmp_path) as (model, chat):
        chat.change(ChatChange(system="Be brief.", sampling=Sampling(top_k=1)))
        model.ask(chat, "lost")
        model.say(DONE)
        await until(lambda: not chat.answering)
        model.ask(chat, "And?", turns=1)
        await until(lambda: len(model.asked) == 2)
        roles = [(m.role, m.content) for m in model.asked[-1].messages]
        assert roles == [("system", "Be brief."), ("user", "And?")]
        assert model.asked[-1].sampling.top_k == 1


async def test_the_one_opened_last_is_current_for_cluster_and_model(
    tmp_path: Path,
) -> None:
    store = ChatStore(tmp_path)
    store.save(conversation("old", opened_at=1.0))
    store.save(conversation("new", opened_at=2.0))
    store.save(conversation("elsewhere", opened_at=3.0, cluster="other"))
    store.save(conversation("other-model", opened_at=4.0, model="/models/n.gguf"))
    async with chats_in(tmp_path) as chats:
        assert (await chats.current("default", MODEL)).conversation.id == "new"
        await chats.open("old", "default", MODEL)
        assert (await chats.current("default", MODEL)).conversation.id == "old"
        blank = await chats.begin("default", MODEL)
        assert (await chats.begin("default", MODEL)) is blank
    async with chats_in(tmp_path) as chats:
        again = (await chats.current("default", MODEL)).conversation
        assert again.id == blank.conversation.id
        assert again.id not in [chat.id for chat in (await chats.listing()).chats]
        await chats.open("other-model", "default", MODEL)
        now = (await chats.current("default", MODEL)).conversation
        assert now.id == "other-model"
        assert len((await chats.listing()).chats) == 4
    assert not (tmp_path / f"{again.id}.json").exists()


async def test_a_deleted_chat_leaves_the_disk_at_once_and_can_come_back(
    tmp_path: Path,
) -> None:
    ChatStore(tmp_path).save(conversation())
    async with chats_in(tmp_path) as chats:
        await chats.delete("one")
        assert list(ChatStore(tmp_path).all()) == []
        assert (await chats.listing()).chats == ()
        with pytest.raises(ControllerError, match="There is no chat"):
            await chats.get("one")
        await (await chats.restore("one")).saved()
        assert ChatStore(tmp_path).read("one").turns == conversation().turns
        with pytest.raises(ControllerError, match="cannot be brought back"):
            await chats.restore("one")


async def test_nothing_is_written_where_none_is_to_be_kept(tmp_path: Path) -> None:
    model = Model()
    async with chats_in(tmp_path / "chats", keep=False) as chats:
        chat = await chats.current("default", MODEL)
        model.ask(chat, "Why?")
        model.say(ChatDelta(text="So."), DONE)
        await until(lambda: not chat.answering)
        await chat.saved()
        assert len((await chats.listing()).chats) == 1
        assert (await chats.listing()).folder == ""
    assert not (tmp_path / "chats").exists()


async def test_a_full_disk_is_told_until_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    async with a_chat(tmp_path) as (model, chat):
        model.ask(chat, "Why?")
        model.say(ChatDelta(text="So."), DONE)
        await until(lambda: "No space left on device" in chat.state.problem)
        assert newest(chat.state).text == "So."
        disk.full = False
        await until(lambda: not chat.state.problem)
        assert ChatStore(tmp_path).read(chat.conversation.id).turns[0].reply.text


async def test_an_unreadable_file_is_told_in_the_listing(tmp_path: Path) -> None:
    tmp_path.joinpath("bad.json").write_bytes(b"{")
    async with chats_in(tmp_path) as chats:
        (problem,) = (await chats.listing()).problems
        assert "bad.unreadable" in problem


async def said(model: Model, chat: LiveChat, piece: ChatDelta) -> None:
    """The chat has taken a piece in."""
    before = chat.state.seq
    model.say(piece)
    await until(lambda: chat.state.seq > before)


async def test_frames_tell_every_state_and_answers_by_their_ends(
    tmp_path: Path,
) -> None:
    """What goes over the socket for a token does not grow with the conversation."""
    long = conversation(system="x" * 10_000)
    ChatStore(tmp_path).save(long)
    model = Model()
    async with chats_in(tmp_path) as chats:
        chat = await chats.get("one")
        model.ask(chat, "And?", turns=1)
        last: ChatState | None = None
        told: ChatState | None = None
        frames: list[ChatFrame] = []
        timings = ChatTimings(tokens=2, tok_per_s=10.0)
        pieces = [
            ChatDelta(ahead=1),
            ChatDelta(prompt_progress=0.5),
            ChatDelta(reasoning="Hm"),
            ChatDelta(text="Be", timings=timings),
            ChatDelta(text="cause"),
            DONE,
        ]
        for piece in (None, *pieces):
            if piece is not None:
                await said(model, chat, piece)
            state = chat.state
            frame = chat_framed(state, last)
            told = chat_applied(_over_the_wire(frame), told)
            assert told == state
            frames.append(frame)
            last = state
        assert [frame.whole is not None for frame in frames] == [
            True,
            *[False] * 5,
            True,
        ]
        assert all(len(msgspec.json.encode(frame)) < 300 for frame in frames[1:6])


def _over_the_wire(frame: ChatFrame) -> ChatFrame:
    return msgspec.json.decode(msgspec.json.encode(frame), type=type(frame))


def test_a_stream_that_begins_in_the_middle_is_not_understood() -> None:
    with pytest.raises(ValueError, match="middle"):
        chat_applied(ChatFrame(text="x"), None)
