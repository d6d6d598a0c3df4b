"""Messages of the bridge to the app about the controller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.message import Message

if TYPE_CHECKING:
    from backends.state import ClusterSnapshot


@dataclass
class SnapshotTaken(Message):
    """A newer snapshot arrived; the app shows it."""

    snapshot: ClusterSnapshot

    def can_replace(self, message: Message) -> bool:
        """Only the newest snapshot is worth drawing."""
        return isinstance(message, SnapshotTaken)


@dataclass
class LinkLost(Message):
    """The controller went away; the bridge is trying to reach it again."""

    reason: str
    """A sentence."""


class LinkRestored(Message):
    """The controller answers again."""
