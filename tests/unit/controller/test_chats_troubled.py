"""Conversations where the disk, a file or the moment is against them."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import msgspec
import pytest

from backends.config import Config
from backends.controller import __main__ as controller
from backends.controller.chat.store import ChatStore
from backends.errors import ControllerError, DllmError
from backends.state import ChatChange, ChatDelta, ChatQuestion, Reply
from tests.kit.waiting import until
from tests.unit.controller.chatting import (
    DONE,
    MODEL,
    Disk,
    Model,
    a_chat,
    chats_in,
    conversation,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from backends.state import ChatRequest, Conversation


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


async def test_a_mistake_of_ours_ends_the_answer_and_not_the_chat(
    tmp_path: Path,
) -> None:
    async def broken(_: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        yield ChatDelta(text="Half")
        raise ValueError("oops")

    async with a_chat(tmp_path) as (model, chat):
        asked = ChatQuestion(question="Why?", turns=0)
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
    """Read the settings of one file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def config(self) -> Config:
        if not self._file.exists():
            return Config()
        try:
            return msgspec.toml.decode(self._file.read_bytes(), type=Config)
        except ValueError as error:
            raise DllmError(str(error)) from error
