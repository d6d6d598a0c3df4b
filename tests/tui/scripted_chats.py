"""Conversations as the controller keeps them, with answers that a test gives."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from backends.controller.chat.store import Chats, ChatStore
from backends.state import PromptCount, QuestionRequest, Reply

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from backends.controller.chat.live import Answers, LiveChat
    from backends.state import (
        ChatChange,
        ChatListing,
        ChatState,
        ClusterSnapshot,
    )
    from tests.tui.scripted import ScriptedCluster

_NOWHERE = Path("/nonexistent")


class ScriptedChats:
    """Implements ``tui.api.services.Chats`` by the controller's own conversations."""

    def __init__(
        self,
        cluster: ScriptedCluster,
        answers: Answers,
        call: Callable[[str, object], None],
        folder: Path | None = None,
    ) -> None:
        self._cluster = cluster
        self._answers = answers
        self._call = call
        self._folder = folder
        self._made: Chats | None = None

    @property
    def _chats(self) -> Chats:
        # Made when first used: a loop must run.
        if self._made is None:
            keep = self._folder is not None
            store = ChatStore(self._folder or _NOWHERE)
            self._made = Chats(store, lambda: keep, save_s=0.0)
        return self._made

    async def listing(self) -> ChatListing:
        self._call("chats", None)
        return await self._chats.listing()

    async def get(self, chat: str) -> ChatState:
        return (await self._chats.get(chat)).state

    async def states(self, model: str) -> AsyncGenerator[ChatState, None]:
        self._call("chat states", model)
        states = self._chats.states(self._cluster.cluster, model)
        async with aclosing(states):
            async for state in states:
                yield state

    async def begin(self, model: str) -> ChatState:
        self._call("chat begin", model)
        return (await self._chats.begin(self._cluster.cluster, model)).state

    async def open(self, chat: str, model: str) -> ChatState:
        self._call("chat open", chat)
        return (await self._chats.open(chat, self._cluster.cluster, model)).state

    async def ask(
        self, chat: str, question: str | None, *, turns: int, again: int | None = None
    ) -> ChatState:
        """The scripted answer begins to come."""
        self._call("chat ask", question)
        live = await self._chats.get(chat)
        reply = _reply(live, self._cluster.now)
        asked = QuestionRequest(question=question, turns=turns, again=again)
        live.ask(asked, reply, self._answers)
        return live.state

    async def stop(self, chat: str) -> ChatState:
        self._call("chat stop", chat)
        live = await self._chats.get(chat)
        await live.stop()
        return live.state

    async def count(
        self, chat: str, question: str, *, again: int | None = None
    ) -> PromptCount:
        """A token for each word."""
        self._call("chat count", question)
        turns = (await self._chats.get(chat)).conversation.turns[:again]
        said = [words for turn in turns for words in (turn.asked, turn.reply.text)]
        tokens = sum(len(text.split()) for text in (*said, question))
        return PromptCount(tokens=tokens, ctx_size=100)

    async def change(self, chat: str, change: ChatChange) -> ChatState:
        self._call("chat change", change)
        live = await self._chats.get(chat)
        live.change(change)
        return live.state

    async def delete(self, chat: str) -> ChatListing:
        self._call("chat delete", chat)
        await self._chats.delete(chat)
        return await self._chats.listing()

    async def restore(self, chat: str) -> ChatState:
        return (await self._chats.restore(chat)).state

    async def put(self, model: str, **fields: object) -> None:
        """Go on with the current conversation, as these fields have it."""
        chat = await self._chats.current(self._cluster.cluster, model)
        chat.put(msgspec.structs.replace(chat.conversation, **fields))


def _reply(chat: LiveChat, now: ClusterSnapshot | None) -> Reply:
    """What the answer to come is made with."""
    plan = now.plan if now else None
    return Reply(
        model=plan.model if plan else "",
        layers=now.planned if now else (),
        sampling=chat.conversation.sampling,
        at=float(len(chat.conversation.turns)) + chat.state.seq / 1000,
    )
