"""The log of toasts, so that the user can read them again."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

EVENTS_MAX = 200

Severity = Literal["information", "warning", "error"]


class Toast(NamedTuple):
    """One toast."""

    at: float
    """Unix seconds."""
    text: str
    severity: Severity


class ToastHistory:
    """The last toasts, oldest first."""

    def __init__(self) -> None:
        self._events: deque[Toast] = deque(maxlen=EVENTS_MAX)

    def add(self, at: float, text: str, severity: Severity) -> None:
        """Keep one more."""
        self._events.append(Toast(at, text, severity))

    def __iter__(self) -> Iterator[Toast]:
        return iter(self._events)

    def __len__(self) -> int:
        return len(self._events)
