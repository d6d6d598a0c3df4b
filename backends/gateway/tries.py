"""What became of one request so far, and which llama-server it is for next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.gateway.language import Mode
from backends.gateway.reply import KEEP_ALIVE_S

if TYPE_CHECKING:
    from backends.gateway.language import Target
    from backends.gateway.reply import Reply

AGAIN_S = 0.25
"""Between two looks for a llama-server that ought to be there, at first."""


class Tries:
    """What became of one request so far."""

    def __init__(self) -> None:
        """Nothing was tried."""
        self.last: Target | None = None
        """What was tried in vain; None where it is to be tried again."""
        self.deadly: set[str] = set()
        """Every llama-server that went while it may have worked on the request."""
        self.begun = False
        """Whether any may have."""
        self.held = 0
        self.pause_s = AGAIN_S
        """Before the same llama-server is tried again."""
        self.events = 0
        """Of the answer, when the last one went."""
        self.weights = ""
        """Those that a part of the answer came from."""

    def lost(self, target: Target, *, accepted: bool) -> None:
        """One more was tried in vain."""
        self.last = target
        if accepted:
            self.begun = True
            self.deadly.add(target.server)

    def are_of(self, target: Target) -> bool:
        """Whether what was answered by now could be that one's."""
        return not self.weights or target.weights in ("", self.weights)

    def look_at(self, reply: Reply, target: Target) -> None:
        """Where more of the answer came, it is not what the others died of."""
        if reply.carries_answer:
            self.weights = self.weights or target.weights
        if reply.events > self.events:
            self.events = reply.events
            self.deadly.clear()
            self.held = 0
            self.pause_s = AGAIN_S

    def is_for(self, target: Target) -> bool:
        """Whether that one takes it: one that drains, only what was begun."""
        return target.mode is Mode.SERVE and (self.begun or not target.drains)

    def may_try(self, target: Target) -> bool:
        """Whether the request, or the rest of its answer, is for that one now."""
        return self.is_for(target) and target != self.last and self.are_of(target)

    def go_on(self) -> None:
        """Another one is there, or the same again."""
        self.last = None
        self.held += 1
        self.pause_s = min(2 * self.pause_s, KEEP_ALIVE_S)
