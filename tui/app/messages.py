"""Messages of panes and flows to the app."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from textual.message import Message
from textual.screen import Screen


class Copyable(NamedTuple):
    """Something ``y`` can copy: what to call it, and its text."""

    what: str
    text: str


class Raw(NamedTuple):
    """A value of the API whose JSON can be shown, and how to call it."""

    what: str
    value: object


Offer = TypeVar("Offer", Copyable, Raw)


def offered(screen: Screen[Any], method: str, kind: type[Offer]) -> Offer | None:
    """Ask the focused widget by that method, and then what is around it."""
    for node in (screen.focused or screen).ancestors_with_self:
        found = getattr(node, method)() if hasattr(node, method) else None
        if isinstance(found, kind):
            return found
    return None


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
