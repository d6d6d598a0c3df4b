"""All conversations: which is the current one of a cluster and model, and who looks.

Each is a file on disk, for this user only, replaced in one step.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from backends.controller.chat.live import SAVE_S, LiveChat
from backends.errors import ControllerError
from backends.state import (
    NOT_JSON,
    ChatBrief,
    ChatListing,
    ChatState,
    Conversation,
    Value,
)
from backends.writing import write_private

log = logging.getLogger(__name__)

VERSION = 2
"""Changes when an older controller would misread a file."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")


class _Version(Value, frozen=True, kw_only=True):
    version: int


class _Kept(Value, frozen=True, kw_only=True):
    version: int = VERSION
    conversation: Conversation


class ChatStore:
    """Reads and writes conversations; a file that it cannot read is never lost.

    The first write makes the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[str] = []
        """A sentence for each file that could not be read."""

    def all(self) -> Iterator[Conversation]:
        """Every conversation that can be read; of the others ``problems`` tells."""
        for unfinished in self.folder.glob(".*.json.*.tmp"):
            # Of a controller that was killed while it wrote: the file itself is whole.
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)
        for file in sorted(self.folder.glob("*.json")):
            conversation = self._read(file)
            if conversation is not None:
                yield conversation

    def read(self, chat: str) -> Conversation:
        if _ID.fullmatch(chat) and self._file(chat).exists():
            conversation = self._read(self._file(chat))
            if conversation is not None:
                return conversation
            raise ControllerError(self.problems[-1])
        raise ControllerError(
            f"There is no chat {chat!r}", "dllm-tui chats list shows those there are."
        )

    def save(self, conversation: Conversation) -> None:
        """Replace a conversation's file.

        Raises:
            OSError: the disk refuses; what was there before still is.
        """
        content = msgspec.json.encode(_Kept(conversation=conversation))
        write_private(self._file(conversation.id), content)

    def delete(self, chat: str) -> None:
        """Remove a conversation's file; fine when there is none.

        Raises:
            OSError: the disk refuses.
        """
        self._file(chat).unlink(missing_ok=True)

    def _file(self, chat: str) -> Path:
        return self.folder / f"{chat}.json"

    def _read(self, file: Path) -> Conversation | None:
        """The conversation of a file; an invalid file is put aside, and reported."""
        try:
            raw = file.read_bytes()
        except OSError as error:
            self._tell(f"The chat {file} cannot be read ({error.strerror})")
            return None
        try:
            version = msgspec.json.decode(raw, type=_Version).version
            if version > VERSION:
                self._tell(
                    f"The chat {file} was written by a newer dllm-tui: it is left alone"
                )
                return None
            if version < VERSION:
                raise ValueError(f"it is of version {version}")
            conversation = msgspec.json.decode(raw, type=_Kept).conversation
            if conversation.id != file.stem:
                raise ValueError("it has the id of another")
        except NOT_JSON as error:
            self._put_aside(file, error)
            return None
        return conversation

    def _put_aside(self, file: Path, error: Exception) -> None:
        aside, number = file.with_suffix(".unreadable"), 1
        while aside.exists():
            number += 1
            aside = file.with_suffix(f".unreadable-{number}")
        what = f"The chat {file} cannot be understood ({error})"
        try:
            # A link first: unlike a rename it never takes another's place.
            os.link(file, aside)
            file.unlink()
        except OSError:
            self._tell(f"{what}: it is left alone")
        else:
            self._tell(f"{what}: it is kept as {aside.name}")

    def _tell(self, problem: str) -> None:
        if problem not in self.problems:
            log.warning("%s", problem)
            self.problems.append(problem)


PACE_S = 0.1
"""Between two states told: faster is not read."""


class Chats:
    """Every conversation of this user; opened ones are held.

    It reads no file before the first request. ``keep`` returns true if conversations
    are to be written. ``save_s`` are the seconds between two writes while an answer
    comes.
    """

    def __init__(
        self, store: ChatStore, keep: Callable[[], bool], *, save_s: float = SAVE_S
    ) -> None:
        self._store = store
        self._keep = keep
        self._save_s = save_s
        self._briefs: dict[str, ChatBrief] = {}
        self._held: dict[str, LiveChat] = {}
        self._deleted: dict[str, Conversation] = {}
        self._changed = asyncio.Event()
        self._closed = False
        # One thread: what is written and deleted is so in the order it was meant.
        self._disk = ThreadPoolExecutor(1, "chats")
        self._loading: asyncio.Future[None] | None = None

    async def loaded(self) -> None:
        """Wait until it is known what is on disk; the first who asks has it read."""
        failed = self._loading and self._loading.done() and self._loading.exception()
        if self._loading is None or failed:
            self._loading = asyncio.ensure_future(self._load())
        await asyncio.shield(self._loading)

    async def _load(self) -> None:
        loop = asyncio.get_running_loop()
        briefs = await loop.run_in_executor(
            self._disk, lambda: [brief_of(found) for found in self._store.all()]
        )
        self._briefs = {brief.id: brief for brief in briefs} | self._briefs

    async def listing(self) -> ChatListing:
        """All of them but blank ones, the one changed last first."""
        await self.loaded()
        briefs = [self._brief(chat) for chat in self._briefs]
        shown = [brief for brief in briefs if brief.turns or brief.name]
        return ChatListing(
            chats=tuple(sorted(shown, key=lambda b: b.changed_at, reverse=True)),
            problems=tuple(self._store.problems),
            folder=str(self._store.folder) if self._keep() else "",
        )

    def _brief(self, chat: str) -> ChatBrief:
        held = self._held.get(chat)
        if held is None:
            return self._briefs[chat]
        return brief_of(held.conversation, answering=held.answering)

    async def get(self, chat: str) -> LiveChat:
        """A conversation, read from disk if it is not held."""
        await self.loaded()
        if chat not in self._held:
            loop = asyncio.get_running_loop()
            try:
                found = await loop.run_in_executor(self._disk, self._store.read, chat)
            except ControllerError:
                # Its file was removed, or put aside, since it was listed.
                if self._briefs.pop(chat, None):
                    self.tell()
                raise
            if chat not in self._held:
                self._hold(found)
        return self._held[chat]

    async def current(self, cluster: str, model: str) -> LiveChat:
        """The conversation with a model on a cluster; a blank one if there is none."""
        await self.loaded()
        while theirs := [
            brief
            for brief in map(self._brief, self._briefs)
            if (brief.cluster, brief.model) == (cluster, model)
        ]:
            with contextlib.suppress(ControllerError):
                return await self.get(max(theirs, key=lambda brief: brief.opened_at).id)
        return self._blank(cluster, model)

    async def begin(self, cluster: str, model: str) -> LiveChat:
        """Make another conversation the current one, with the settings of the last.

        If the current one is blank already, it stays.
        """
        last = await self.current(cluster, model)
        before = last.conversation
        if before.is_blank:
            return last
        chat = self._blank(cluster, model)
        settings = {"system": before.system, "sampling": before.sampling}
        chat.put(msgspec.structs.replace(chat.conversation, **settings))
        return chat

    async def open(self, chat: str, cluster: str, model: str) -> LiveChat:
        """Make a conversation the current one of a cluster and model."""
        found = await self.get(chat)
        present = await self.current(cluster, model)
        now = found.conversation
        if found.answering and (now.cluster, now.model) != (cluster, model):
            raise ControllerError(
                "An answer is still coming in that chat", "Wait for it, or stop it."
            )
        opened = {"cluster": cluster, "model": model, "opened_at": self._newest_at()}
        found.put(msgspec.structs.replace(now, **opened))
        if present is not found and present.conversation.is_blank:
            await self._remove(present.conversation.id)
        return found

    async def delete(self, chat: str) -> None:
        """Remove a conversation, from disk too; it can be restored while we live."""
        found = await self.get(chat)
        if found.answering:
            raise ControllerError(
                "An answer is still coming in that chat", "Stop it first."
            )
        await self._remove(chat)
        self._deleted[chat] = found.conversation

    async def restore(self, chat: str) -> LiveChat:
        """Bring a deleted conversation back, as the current one."""
        found = self._deleted.pop(chat, None)
        if found is None:
            raise ControllerError("That chat cannot be brought back any more")
        self._hold(found)
        return await self.open(chat, found.cluster, found.model)

    def tell(self) -> None:
        event, self._changed = self._changed, asyncio.Event()
        event.set()

    async def states(
        self, cluster: str, model: str, chat: str = ""
    ) -> AsyncGenerator[ChatState, None]:
        """The current conversation (or one by its id) now, then as it changes."""
        last: ChatState | None = None
        while not self._closed:
            changed = self._changed
            found = await (self.get(chat) if chat else self.current(cluster, model))
            if (state := found.state) != last:
                last = state
                yield state
                await asyncio.sleep(PACE_S)
            await changed.wait()

    async def close(self) -> None:
        """End every answer and stream; write what is not yet."""
        self._closed = True
        self.tell()
        await asyncio.gather(*(chat.close() for chat in self._held.values()))
        await asyncio.to_thread(self._disk.shutdown)

    def _blank(self, cluster: str, model: str) -> LiveChat:
        at = self._newest_at()
        name = time.strftime("%Y%m%d-%H%M%S", time.localtime(at))
        blank = Conversation(
            id=f"{name}-{secrets.token_hex(3)}",
            cluster=cluster,
            model=model,
            began_at=at,
            opened_at=at,
            changed_at=at,
        )
        return self._hold(blank)

    def _newest_at(self) -> float:
        # Later than any other was opened, even if the clock was set back.
        opened = (self._brief(chat).opened_at for chat in self._briefs)
        return max(time.time(), max(opened, default=0.0) + 0.001)

    def _hold(self, conversation: Conversation) -> LiveChat:
        chat = LiveChat(
            conversation, keep=self._write, told=self.tell, save_s=self._save_s
        )
        self._held[conversation.id] = chat
        self._briefs[conversation.id] = brief_of(conversation)
        self.tell()
        return chat

    async def _remove(self, chat: str) -> None:
        found = self._held.pop(chat)
        del self._briefs[chat]
        await found.close()
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._disk, self._store.delete, chat)
        except OSError as error:
            self._hold(found.conversation)
            raise ControllerError(
                f"The chat cannot be deleted ({error.strerror})",
                f"It is in {self._store.folder}.",
            ) from error
        finally:
            self.tell()

    async def _write(self, conversation: Conversation) -> None:
        if not self._keep():
            return
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._disk, self._store.save, conversation)


def brief_of(conversation: Conversation, *, answering: bool = False) -> ChatBrief:
    return ChatBrief(
        id=conversation.id,
        cluster=conversation.cluster,
        model=conversation.model,
        title=conversation.title,
        name=conversation.name,
        turns=len(conversation.turns),
        changed_at=conversation.changed_at,
        opened_at=conversation.opened_at,
        answering=answering,
    )
