"""Conversations held: answers go on, everybody sees them, nothing is lost."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import stat
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from threading import get_ident

import msgspec
import pytest

from backends.config import Config
from backends.controller import __main__ as controller
from backends.controller.chat.live import LiveChat
from backends.controller.chat.store import VERSION, ChatStore
from backends.errors import ControllerError, DllmError, UsageError
from backends.state import (
    ChatChange,
    ChatDelta,
    ChatFrame,
    ChatRequest,
    ChatState,
    ChatTimings,
    Conversation,
    QuestionRequest,
    Reply,
    Sampling,
)
from backends.state.chats import chat_applied, chat_framed
from tests.kit.chats import (
    DONE,
    MODEL,
    Disk,
    Model,
    a_chat,
    chats_in,
    conversation,
    until_state,
)
from tests.kit.waiting import until


def newest(state: ChatState) -> Reply:
    return state.conversation.turns[-1].replies[-1]


async def test_what_was_asked_and_came_is_on_disk_at_once(tmp_path: Path) -> None:
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


async def test_stopping_keeps_what_came_and_ends_generation(tmp_path: Path) -> None:
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


async def test_one_question_at_time_and_only_to_what_was_seen(tmp_path: Path) -> None:
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
        assert len(chat.conversation.turns) == 1


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


async def test_one_opened_last_is_current_for_cluster_and_model(tmp_path: Path) -> None:
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


async def test_a_deleted_chat_leaves_the_disk_and_can_come_back(tmp_path: Path) -> None:
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


async def test_an_unreadable_file_is_told_in_the_listing(tmp_path: Path) -> None:
    tmp_path.joinpath("bad.json").write_bytes(b"{")
    async with chats_in(tmp_path) as chats:
        (problem,) = (await chats.listing()).problems
        assert "bad.unreadable" in problem


async def said(model: Model, chat: LiveChat, piece: ChatDelta) -> None:
    before = chat.state.seq
    model.say(piece)
    await until(lambda: chat.state.seq > before)


async def test_frames_tell_every_state_and_answers_by_ends(tmp_path: Path) -> None:
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


# --- Questions asked again ---------------------------------------------------


THREE = [("First?", "One."), ("Second?", "Two."), ("Third?", "Three.")]


def line_of(conversation: Conversation) -> list[tuple[str, str]]:
    return [(turn.asked, turn.reply.text) for turn in conversation.turns]


async def answered(
    model: Model,
    chat: LiveChat,
    question: str | None,
    text: str,
    again: int | None = None,
) -> None:
    model.ask(chat, question, len(chat.conversation.turns), again)
    model.say(ChatDelta(text=text), DONE)
    await until(lambda: not chat.answering)


async def three(model: Model, chat: LiveChat) -> None:
    for question, text in THREE:
        await answered(model, chat, question, text)


async def test_an_earlier_question_keeps_lines_gone_on_from_it(tmp_path: Path) -> None:
    model = Model()
    async with chats_in(tmp_path) as chats:
        chat = await chats.current("default", MODEL)
        await three(model, chat)
        await answered(model, chat, None, "Deux.", again=1)
        sent = [message.content for message in model.asked[-1].messages]
        assert sent == ["First?", "One.", "Second?"]
        other = [("First?", "One."), ("Second?", "Deux.")]
        assert line_of(chat.conversation) == other
        await answered(model, chat, "And?", "So.")
        await answered(model, chat, "Eh?", "Un.", again=0)
        assert line_of(chat.conversation) == [("Eh?", "Un.")]
        assert chat.conversation.title == "Eh?"
    async with chats_in(tmp_path) as chats:
        chat = await chats.current("default", MODEL)
        assert line_of(chat.conversation) == [("Eh?", "Un.")]
        chat.change(ChatChange(turn=0, shown=0))
        assert line_of(chat.conversation) == [*other, ("And?", "So.")]
        chat.change(ChatChange(turn=1, shown=0))
        assert line_of(chat.conversation) == THREE
        chat.change(ChatChange(turn=0, shown=1))
        chat.change(ChatChange(turn=0, shown=0))
        assert line_of(chat.conversation) == THREE


async def test_while_an_answer_comes_it_is_the_one_gone_on_from(tmp_path: Path) -> None:
    """Else its words would be taken for another's."""
    async with a_chat(tmp_path) as (model, chat):
        await three(model, chat)
        model.ask(chat, None, 3, again=0)
        with pytest.raises(ControllerError, match="still coming"):
            chat.change(ChatChange(turn=0, shown=0))
        chat.change(ChatChange(name="Sky"))
        model.say(ChatDelta(text="Un."), DONE)
        await until(lambda: not chat.answering)
        assert line_of(chat.conversation) == [("First?", "Un.")]


async def test_interrupted_answer_costs_nothing_of_other_line(tmp_path: Path) -> None:
    async with a_chat(tmp_path) as (model, chat):
        await three(model, chat)
        model.ask(chat, None, 3, again=0)
        await chat.saved()
        kept = ChatStore(tmp_path).read(chat.conversation.id)
        assert line_of(kept) == [("First?", "")]
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
        assert line_of(chat.conversation) == [("First?", "One.")]
        assert not chat.answering


# --- Where the disk, a file or the moment is against them --------------------


async def test_a_change_that_could_not_be_written_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nothing more is done with the chat."""
    ChatStore(tmp_path).save(conversation())
    disk = Disk(monkeypatch)
    async with chats_in(tmp_path) as chats:
        chat = await chats.get("one")
        chat.change(ChatChange(name="Sky"))
        await chat.saved()
        assert "No space left" in chat.state.problem
        disk.full = False
        await until(lambda: ChatStore(tmp_path).read("one").name == "Sky")
        await until(lambda: not chat.state.problem)


async def test_a_change_that_waits_for_the_disk_at_the_end_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its turn had not come yet when all conversations were closed."""
    for name in ("one", "two"):
        ChatStore(tmp_path).save(conversation(name))
    busy, free = threading.Event(), threading.Event()
    save = ChatStore.save

    def save_late(store: ChatStore, value: Conversation) -> None:
        busy.set()
        assert free.wait(60)
        save(store, value)

    monkeypatch.setattr(ChatStore, "save", save_late)
    async with chats_in(tmp_path) as chats:
        for name in ("one", "two"):
            (await chats.get(name)).change(ChatChange(name="Sky"))
        await until(busy.is_set)
        asyncio.get_running_loop().call_later(0.05, free.set)
    kept = ChatStore(tmp_path).all()
    assert [found.name for found in kept] == ["Sky", "Sky"]


async def test_mistake_of_ours_ends_the_answer_and_not_the_chat(tmp_path: Path) -> None:
    async def broken(_: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        yield ChatDelta(text="Half")
        raise ValueError("oops")

    async with a_chat(tmp_path) as (model, chat):
        asked = QuestionRequest(question="Why?", turns=0)
        chat.ask(asked, Reply(model=MODEL, at=0.0), broken)
        await until(lambda: not chat.answering)
        reply = chat.conversation.turns[0].reply
        assert (reply.text, reply.finish_reason) == ("Half", "error")
        assert reply.failure is not None
        assert "ValueError: oops" in reply.failure.what
        model.ask(chat, "Again?", 1)
        model.say(ChatDelta(text="Yes."), DONE)
        await until(lambda: not chat.answering)
        assert chat.conversation.turns[1].reply.text == "Yes."


async def test_a_file_that_is_gone_stands_in_nobodys_way(tmp_path: Path) -> None:
    store = ChatStore(tmp_path)
    store.save(conversation("old", opened_at=1.0))
    store.save(conversation("new", opened_at=2.0))
    async with chats_in(tmp_path) as chats:
        await chats.listing()
        (tmp_path / "new.json").unlink()
        assert (await chats.current("default", MODEL)).conversation.id == "old"
        assert [chat.id for chat in (await chats.listing()).chats] == ["old"]
        with pytest.raises(ControllerError, match="There is no chat"):
            await chats.get("new")


async def test_a_folder_that_could_not_be_read_is_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ChatStore(tmp_path).save(conversation())
    with monkeypatch.context() as broken:
        broken.setattr(ChatStore, "all", _refused)
        async with chats_in(tmp_path) as chats:
            with pytest.raises(PermissionError):
                await chats.listing()
            broken.undo()
            assert len((await chats.listing()).chats) == 1


def _refused(store: ChatStore) -> None:
    raise PermissionError(13, "Permission denied", str(store.folder))


async def test_an_answer_stopped_before_it_began_has_ended(tmp_path: Path) -> None:
    async with chats_in(tmp_path) as chats:
        chat = await chats.current("default", MODEL)
        Model().ask(chat, "Why?")
        await chat.stop()
        assert not chat.answering
        assert chat.conversation.turns[-1].reply.finish_reason == "stopped"


def test_where_settings_cannot_be_read_no_chat_is_written(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("keep_chats = ")
    keeps = controller._keeps_chats(_Readers(file), file)  # type: ignore[arg-type]
    assert not keeps()
    file.write_text("keep_chats = true")
    assert keeps()
    file.write_text("keep_chats = false")
    assert not keeps()
    file.unlink()
    assert not keeps(), "it is being replaced"


class _Readers:
    def __init__(self, file: Path) -> None:
        self._file = file

    def config(self) -> Config:
        if not self._file.exists():
            return Config()
        try:
            return msgspec.toml.decode(self._file.read_bytes(), type=Config)
        except ValueError as error:
            raise DllmError(str(error)) from error


# --- Conversations on disk: private, whole, and never lost for being unreadable ---


def test_what_is_saved_is_read_again(tmp_path: Path) -> None:
    store = ChatStore(tmp_path / "chats")
    store.save(conversation())
    assert store.read("one") == conversation()
    assert list(ChatStore(tmp_path / "chats").all()) == [conversation()]
    (file,) = (tmp_path / "chats").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("spoil", ["truncated", "garbage", "deep", "another's", "lost"])
def test_a_file_of_no_chat_is_kept_aside_and_told(tmp_path: Path, spoil: str) -> None:
    store = ChatStore(tmp_path)
    store.save(conversation("fine"))
    store.save(conversation("bad"))
    file = tmp_path / "bad.json"
    raw = file.read_bytes()
    spoilt = {
        "truncated": raw[: len(raw) // 2],
        "garbage": b"\xff\x00",
        "deep": b"[" * 100_000,
        "another's": (tmp_path / "fine.json").read_bytes(),
        "lost": _going_on_from(9),
    }[spoil]
    file.write_bytes(spoilt)
    (tmp_path / "bad.unreadable").write_bytes(b"an earlier one")
    assert [found.id for found in store.all()] == ["fine"]
    assert (tmp_path / "bad.unreadable").read_bytes() == b"an earlier one"
    assert (tmp_path / "bad.unreadable-2").read_bytes() == spoilt
    (problem,) = store.problems
    assert "bad.json" in problem
    assert "kept as bad.unreadable-2" in problem
    assert "Why?" not in problem


def test_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    store = ChatStore(tmp_path)
    file = tmp_path / "later.json"
    raw = b'{"version":%d,"chat":"other"}' % (VERSION + 1)
    file.write_bytes(raw)
    assert list(store.all()) == []
    assert file.read_bytes() == raw
    assert "newer dllm-tui" in store.problems[0]
    with pytest.raises(ControllerError, match="newer dllm-tui"):
        store.read("later")


def test_a_file_with_more_than_we_know_is_read(tmp_path: Path) -> None:
    store = ChatStore(tmp_path)
    store.save(conversation())
    file = tmp_path / "one.json"
    value = msgspec.json.decode(file.read_bytes())
    value["conversation"]["colour"] = "blue"
    file.write_bytes(msgspec.json.encode(value))
    assert store.read("one") == conversation()


@pytest.mark.parametrize("chat", ["none", "../clusters/default", "", "a/b"])
def test_there_is_no_such_chat(tmp_path: Path, chat: str) -> None:
    with pytest.raises(ControllerError, match="There is no chat"):
        ChatStore(tmp_path).read(chat)


def test_a_full_disk_costs_nothing_that_was_there(tmp_path: Path) -> None:
    store = ChatStore(tmp_path)
    store.save(conversation())
    # Where nothing can be written, root or not.
    blocked = tmp_path / f".one.json.{os.getpid()}-{get_ident()}.tmp"
    blocked.mkdir()
    with pytest.raises(OSError, match=r"."):
        store.save(conversation(name="another"))
    assert store.read("one").name == ""


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    store = ChatStore(tmp_path)
    store.save(conversation())
    (tmp_path / ".one.json.4711.tmp").write_bytes(b'{"version":1,"conv')
    assert [found.id for found in store.all()] == ["one"]
    assert [file.name for file in tmp_path.iterdir()] == ["one.json"]


def _write_often(folder: str, name: str) -> None:
    store = ChatStore(Path(folder))
    for _ in range(60):
        store.save(conversation(name=name, system=name * 5000))


def test_of_two_writers_one_is_read_whole(tmp_path: Path) -> None:
    store = ChatStore(tmp_path)
    store.save(conversation(name="a", system="a" * 5000))
    context = multiprocessing.get_context("fork")
    writers = [
        context.Process(target=_write_often, args=(str(tmp_path), name))
        for name in ("a", "b")
    ]
    for writer in writers:
        writer.start()
    reads = 0
    while any(writer.is_alive() for writer in writers):
        found = store.read("one")
        assert found.system == found.name * 5000
        reads += 1
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert reads
    assert store.problems == []


def _going_on_from(shown: int) -> bytes:
    turn = {"question": "Why?", "replies": [{"text": "So."}], "shown": shown}
    kept = {"id": "bad", "cluster": "default", "turns": [turn]}
    return msgspec.json.encode({"version": VERSION, "conversation": kept})
