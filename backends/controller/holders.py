"""Who must stay for a cluster to go on: a client that asks for it until it leaves."""

from __future__ import annotations

from backends.errors import ControllerError


class Holders:
    """The clients that are there, each by a word of its own, and what they hold.

    A client comes before it asks for a launch: whatever happens to it, and however far
    the launch has got by then, its leaving is seen. Who has no word ("") holds nothing.
    """

    def __init__(self) -> None:
        """Nobody is there."""
        self._held: dict[str, set[int]] = {}

    def holds(self, holder: str, generation: int) -> None:
        """One is there from now on, and holds that; nothing (0) before its launch."""
        if holder:
            self._held.setdefault(holder, set()).update({generation} - {0})

    @property
    def anybody(self) -> bool:
        """Whether somebody is there who launches, or has launched."""
        return bool(self._held)

    def left(self, holder: str) -> set[int]:
        """The generations that must not outlive it."""
        return self._held.pop(holder, set())

    def require(self, holder: str) -> None:
        """See that who asks for a launch, and is to hold it, is still there.

        Raises:
            ControllerError: it left.
        """
        if holder and holder not in self._held:
            raise ControllerError("Whoever asked for this launch is gone")
