"""What panes and flows tell the app."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from textual.message import Message

if TYPE_CHECKING:
    from backends.state import Failure
    from tui.work.event_log import Severity


class Copyable(NamedTuple):
    """Something ``y`` can copy: what to call it, and its text."""

    what: str
    text: str


class Trouble(Message):
    """Something failed: shown as a toast and kept in the event log."""

    def __init__(self, failure: Failure, severity: Severity = "error") -> None:
        """Carry what failed and how bad it is."""
        super().__init__()
        self.failure = failure
        self.severity = severity


class Notice(Message):
    """Something worth a toast and a line in the event log."""

    def __init__(self, text: str, severity: Severity = "information") -> None:
        """Carry the sentence."""
        super().__init__()
        self.text = text
        self.severity = severity


class LogWanted(Message):
    """The user wants to read the log of a process."""

    def __init__(self, process: str) -> None:
        """Name the process."""
        super().__init__()
        self.process = process


class PeerWanted(Message):
    """The user wants something done about a peer."""

    def __init__(self, verb: str, peer: str) -> None:
        """Name what to do, and the peer (empty where there is none)."""
        super().__init__()
        self.verb = verb
        self.peer = peer
