"""The conversations on disk: a file each, for this user only, replaced in one step."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from backends.errors import ControllerError
from backends.state import NOT_JSON, Conversation, Value
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
