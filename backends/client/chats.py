"""The conversations of a user, as the console and the commands use them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from urllib.parse import quote, urlencode

from backends.client.calls import ControllerConnection
from backends.errors import DllmError, UsageError, did_you_mean
from backends.state import (
    ChatBrief,
    ChatChange,
    ChatFrame,
    ChatListing,
    ChatQuestion,
    ChatState,
)
from backends.state.chats import chat_applied


class NoSuchChat(DllmError):
    """No chat is called so."""


class ChatsClient:
    """Asks, keeps and tells conversations; answers go on when nobody looks.

    Every call raises ``DllmError`` if the controller refuses or is unreachable.
    """

    def __init__(
        self, connection: ControllerConnection, cluster: Callable[[], str]
    ) -> None:
        self._connection = connection
        self._cluster = cluster

    async def listing(self) -> ChatListing:
        return await self._connection.get("/v1/chats", ChatListing)

    async def get(self, chat: str) -> ChatState:
        return await self._connection.get(_path(chat), ChatState)

    def states(self, model: str, *, chat: str = "") -> AsyncGenerator[ChatState, None]:
        """The current conversation with a model, or one by its id, as it changes."""
        target = self._of("/v1/chats/events", model=model, id=chat)
        return self._connection.followed(target, ChatFrame, chat_applied)

    async def begin(self, model: str) -> ChatState:
        """Another conversation with a model becomes the current one."""
        return await self._post(self._of("/v1/chats"), {"model": model})

    async def open(self, chat: str, model: str) -> ChatState:
        """Make a conversation the current one with a model."""
        return await self._post(self._of(_path(chat, "open")), {"model": model})

    async def ask(
        self, chat: str, question: str | None, *, turns: int, again: int | None = None
    ) -> ChatState:
        """Ask in a conversation of so many turns; ``again`` the question of that index.

        None asks it in the same words. Returns once it is kept; the answer comes as
        states, whoever looks.
        """
        asked = ChatQuestion(question=question, turns=turns, again=again)
        return await self._post(self._of(_path(chat, "ask")), asked)

    async def stop(self, chat: str) -> ChatState:
        return await self._post(_path(chat, "stop"))

    async def change(self, chat: str, change: ChatChange) -> ChatState:
        return await self._post(_path(chat, "change"), change)

    async def delete(self, chat: str) -> ChatListing:
        return await self._connection.call("DELETE", _path(chat), ChatListing)

    async def restore(self, chat: str) -> ChatState:
        return await self._post(_path(chat, "restore"))

    async def _post(self, target: str, asked: object = None) -> ChatState:
        return await self._connection.post(target, ChatState, asked)

    def _of(self, path: str, **query: str) -> str:
        return f"{path}?{urlencode({'cluster': self._cluster(), **query})}"


def find_chat(listing: ChatListing, wanted: str, *, whole: bool = False) -> ChatBrief:
    """The chat of that id, else of that name, else that begins with these words.

    ``whole`` leaves the last out, where a name may be meant for a chat to come.

    Raises:
        NoSuchChat: there is none.
        UsageError: there are several.
    """
    text = " ".join(wanted.split()).lower()
    chats = listing.chats if text else ()
    found = (
        [chat for chat in chats if chat.id == wanted.strip()]
        or [chat for chat in chats if " ".join(chat.name.split()).lower() == text]
        or [chat for chat in chats if not whole and chat.title.lower().startswith(text)]
    )
    if len(found) == 1:
        return found[0]
    if found:
        ids = ", ".join(chat.id for chat in found)
        raise UsageError(f"Several chats are called {wanted!r}", f"Give an id: {ids}.")
    guess = did_you_mean(wanted, [chat.title for chat in listing.chats])
    raise NoSuchChat(
        f"There is no chat {wanted!r}", f"{guess}dllm-tui chats list shows them."
    )


def _path(chat: str, verb: str = "") -> str:
    return f"/v1/chats/{quote(chat, safe='')}" + (f"/{verb}" if verb else "")
