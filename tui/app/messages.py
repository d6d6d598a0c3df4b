"""Messages of panes and flows to the app."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from textual.message import Message

if TYPE_CHECKING:
    from backends.state import Failure
    from tui.model.events import Severity


class Copyable(NamedTuple):
    """Something ``y`` can copy: what to call it, and its text."""

    what: str
    text: str


@dataclass
class Trouble(Message):
    """Something failed: shown as a toast and kept in the event log."""

    failure: Failure
    severity: Severity = "error"


@dataclass
class Notice(Message):
    """A sentence worth a toast and a line in the event log."""

    text: str
    severity: Severity = "information"


class EditChanged(Message):
    """The edited plan is another one; who shows it reads the editor."""

    def can_replace(self, message: Message) -> bool:
        """A newer one says as much."""
        return isinstance(message, EditChanged)


@dataclass
class LogWanted(Message):
    """The user wants to read the log of a process."""

    process: str


@dataclass
class PeerWanted(Message):
    """The user wants something done about a peer."""

    verb: str
    peer: str
    """Empty where there is none."""
