"""The client's facts in every request, and the requests it may make."""

from __future__ import annotations

import re
from contextvars import ContextVar

from backends.errors import UsageError
from backends.state import Value


class ClientFacts(Value, frozen=True, kw_only=True):
    """The client's facts of this process."""

    program: str = ""
    readonly: bool = False
    """True if it only watches: nothing is asked that would change anything."""


_ANYBODY = ClientFacts()
ASKING: ContextVar[ClientFacts] = ContextVar("asking", default=_ANYBODY)
"""Set once by the program that the user started."""

_HARMLESS = re.compile(
    "/v1/(?:propose|prepare|memory|chat|chats|chats/.*|peers/[^/]+/probe"
    "|models/hash|models/cache)"
)
"""Requests by POST that change nothing of a cluster: plans are reckoned, machines
looked at, a model is asked."""


class ReadOnly(UsageError):
    """A read-only client requested a change."""

    def __init__(self, what: str = "This") -> None:
        super().__init__(
            f"{what} is refused: read-only, nothing changed",
            "To make changes leave out --readonly, or readonly in config.toml.",
        )


def require_allowed(method: str, target: str) -> None:
    """Refuse a request of a read-only client that would change something.

    What is not known to be harmless is refused.

    Raises:
        ReadOnly: it would.
    """
    path = target.partition("?")[0]
    harmless = method == "GET" or (method == "POST" and _HARMLESS.fullmatch(path))
    if ASKING.get().readonly and not harmless:
        raise ReadOnly()
