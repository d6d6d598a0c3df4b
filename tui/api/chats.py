"""The requests about conversations.

``backends.client.chats.ChatsClient`` is the real one; tests script their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from backends.state import ChatChange, ChatListing, ChatState


class Chats(Protocol):
    """Conversations are the controller's; every call may raise ``DllmError``."""

    async def listing(self) -> ChatListing:
        """Every conversation, the one changed last first."""
        ...

    async def get(self, chat: str) -> ChatState:
        """One conversation by its id."""
        ...

    def states(self, model: str) -> AsyncIterator[ChatState]:
        """The current conversation with a model, as it changes."""
        ...

    async def begin(self, model: str) -> ChatState:
        """Another conversation with a model becomes the current one."""
        ...

    async def open(self, chat: str, model: str) -> ChatState:
        """Make a conversation the current one with a model."""
        ...

    async def ask(
        self, chat: str, question: str | None, *, turns: int, again: int | None = None
    ) -> ChatState:
        """Ask in a conversation of so many turns; ``again`` the question of that index.

        None asks it in the same words.
        """
        ...

    async def stop(self, chat: str) -> ChatState:
        """End the answer that comes; what came stays."""
        ...

    async def change(self, chat: str, change: ChatChange) -> ChatState:
        """Name it, set what answers are made with, or go on from another."""
        ...

    async def delete(self, chat: str) -> ChatListing:
        """Remove a conversation, from disk too; those that are left."""
        ...

    async def restore(self, chat: str) -> ChatState:
        """Bring back one that this controller has deleted."""
        ...
