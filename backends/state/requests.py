"""What clients asked of a cluster's API, as its gateway counts it."""

from __future__ import annotations

from backends.state.base import Value


class KeyCounts(Value, frozen=True, kw_only=True):
    """Requests with one API key since the gateway began."""

    requests: int = 0
    in_flight: int = 0
    """At this moment."""
    limited: int = 0
    """Refused because the key allows no more at once, or in a minute."""


class RequestCounts(Value, frozen=True, kw_only=True):
    """Requests for work (whatever is sent by POST) since the gateway began."""

    waiting: int = 0
    """Held at this moment because nothing serves."""
    in_flight: int = 0
    """With llama-server at this moment, or next once a slot is free."""
    fragile: int = 0
    """Of these, answers that no other llama-server could go on with."""
    drains: bool = False
    """Whether what comes waits until what is in flight has ended."""
    passed: int = 0
    """Answered to the end, by whatever status."""
    failed: int = 0
    """Answered by the gateway with an error, or cut."""
    left: int = 0
    """Ended by their clients before the answer was whole."""
    replayed: int = 0
    """Asked again, of another llama-server, before anything had been answered."""
    continued: int = 0
    """Streams that another llama-server went on with after they had broken off."""
    refused: int = 0
    """Not let in: without a key, too long, no JSON, or for a page of another site."""
    held: int = 0
    """That waited and then went on to llama-server."""
    held_longest_s: float = 0.0
    """Longest wait of those that were held last."""
    keys: dict[str, KeyCounts] = {}
    """By the name of the key."""
