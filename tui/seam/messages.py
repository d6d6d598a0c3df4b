"""What the bridge tells the app of the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.message import Message

if TYPE_CHECKING:
    from backends.state import ClusterSnapshot


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
