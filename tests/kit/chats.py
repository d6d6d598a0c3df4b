"""Conversations in a folder, answered by a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from backends.controller.chat import live
from backends.controller.chat.live import LiveChat
from backends.controller.chat.store import Chats, ChatStore
from backends.state import (
    ChatDelta,
    ChatRequest,
    ChatState,
    Conversation,
    QuestionRequest,
    Reply,
    Turn,
)

MODEL = "/models/m.gguf"
DONE = ChatDelta(done=True, finish_reason="stop")


def conversation(chat: str = "one", **fields: object) -> Conversation:
    reply = Reply(text="Because.", model=MODEL, finish_reason="stop")
    turns = (Turn(question="Why?", replies=(reply,)),)
    values = {"cluster": "default", "model": MODEL, "turns": turns} | fields
    return Conversation(id=chat, **values)  # type: ignore[arg-type]


class Model:
    def __init__(self) -> None:
        self.asked: list[ChatRequest] = []
        self.deltas: asyncio.Queue[ChatDelta] = asyncio.Queue()
        self.closed = 0

    async def answers(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        self.asked.append(request)
        try:
            while True:
                delta = await self.deltas.get()
                yield delta
                if delta.done:
                    return
        finally:
            self.closed += 1

    def say(self, *deltas: ChatDelta) -> None:
        for delta in deltas:
            self.deltas.put_nowait(delta)

    def ask(
        self,
        chat: LiveChat,
        question: str | None,
        turns: int = 0,
        again: int | None = None,
    ) -> None:
        asked = QuestionRequest(question=question, turns=turns, again=again)
        at = float(len(self.asked))
        chat.ask(asked, Reply(model=MODEL, at=at), self.answers)


@asynccontextmanager
async def chats_in(folder: Path, *, keep: bool = True) -> AsyncIterator[Chats]:
    chats = Chats(ChatStore(folder), lambda: keep, save_s=0.01)
    yield chats
    await chats.close()


@asynccontextmanager
async def a_chat(folder: Path) -> AsyncIterator[tuple[Model, LiveChat]]:
    async with chats_in(folder) as chats:
        yield Model(), await chats.current("default", MODEL)


class Disk:
    """A disk that is full until it is not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = True
        save = ChatStore.save

        def save_or_not(store: ChatStore, value: Conversation) -> None:
            if self.full:
                raise OSError(28, "No space left on device")
            save(store, value)

        monkeypatch.setattr(live, "RETRY_S", 0.01)
        monkeypatch.setattr(ChatStore, "save", save_or_not)


async def until_state(
    states: AsyncGenerator[ChatState, None], condition: Callable[[ChatState], object]
) -> ChatState:
    async with asyncio.timeout(60):
        async for state in states:
            if condition(state):
                return state
    raise AssertionError("the stream ended")
