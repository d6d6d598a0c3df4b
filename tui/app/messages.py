"""Messages of panes and flows to the app."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from textual.message import Message


class Copyable(NamedTuple):
    """Something ``y`` can copy: what to call it, and its text."""

    what: str
    text: str


class Raw(NamedTuple):
    """A value of the API whose JSON can be shown, and how to call it."""

    what: str
    value: object


class EditChanged(Message):
    """The edited plan is another one; who shows it reads the editor."""

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, EditChanged)


@dataclass
class LogWanted(Message):
    """The user wants to read the log of a process."""

    process: str


@dataclass
class PeerAdded(Message):
    """The user has added a peer: it is selected as soon as it is there."""

    peer: str
