"""Messages that cross the console: from bridge and panes to the app."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from textual.message import Message

if TYPE_CHECKING:
    from backends.state import ClusterSnapshot, Failure

Severity = Literal["information", "warning", "error"]


class Copyable(NamedTuple):
    """Something ``y`` can copy: what to call it, and its text."""

    what: str
    text: str


class Copies(Protocol):
    """A pane or screen that has something for ``y``."""

    def copyable(self) -> Copyable | None:
        """What ``y`` copies here; None leaves it to the parent."""
        ...


class SnapshotTaken(Message):
    """A newer snapshot arrived; the app shows it."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        """Carry the snapshot."""
        super().__init__()
        self.snapshot = snapshot

    def can_replace(self, message: Message) -> bool:
        """Only the newest snapshot is worth drawing."""
        return isinstance(message, SnapshotTaken)


class LinkLost(Message):
    """The controller went away; the bridge is trying to reach it again."""

    def __init__(self, reason: str) -> None:
        """Say why, in one sentence."""
        super().__init__()
        self.reason = reason


class LinkRestored(Message):
    """The controller answers again."""


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
        """Name the deed, and the peer (empty where there is none)."""
        super().__init__()
        self.verb = verb
        self.peer = peer
