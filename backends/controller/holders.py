"""Track the clients that a cluster needs: it ends when its client leaves."""

from __future__ import annotations

from backends.errors import ControllerError


class Holders:
    """The connected clients, each by its own token, and the clusters they hold.

    A client registers before it requests a launch. Its leaving is seen at any stage of
    the launch. A client without a token ("") holds no cluster.
    """

    def __init__(self) -> None:
        self._held: dict[str, set[int]] = {}

    def holds(self, holder: str, generation: int) -> None:
        """One is there from now on, and holds that; nothing (0) before its launch."""
        if holder:
            self._held.setdefault(holder, set()).update({generation} - {0})

    @property
    def anybody(self) -> bool:
        """Return true if a connected client launches, or has launched."""
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
