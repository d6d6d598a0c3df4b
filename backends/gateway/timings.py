"""What an answer of several llama-servers took, told as that of one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from backends.state.base import Value

if TYPE_CHECKING:
    from collections.abc import Mapping


class Timings(Value, frozen=True):
    """Of one answer so far, in the words of llama-server."""

    cache_n: int = 0
    prompt_n: int = 0
    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0

    @property
    def prompt_tokens(self) -> int:
        """Of the whole prompt, read now or earlier."""
        return self.cache_n + self.prompt_n

    def and_then(self, last: Mapping[str, Any]) -> dict[str, Any]:
        """These with those of the last llama-server.

        The prompt is that of the client alone; what was read again, and the time
        without any llama-server, is not counted.
        """
        predicted_n = self.predicted_n + int(last.get("predicted_n", 0))
        predicted_ms = self.predicted_ms + float(last.get("predicted_ms", 0.0))
        return {
            **last,
            "cache_n": self.cache_n,
            "prompt_n": self.prompt_n,
            "prompt_ms": self.prompt_ms,
            **_rates("prompt", self.prompt_n, self.prompt_ms),
            "predicted_n": predicted_n,
            "predicted_ms": predicted_ms,
            **_rates("predicted", predicted_n, predicted_ms),
        }


def _rates(what: str, number: int, duration_ms: float) -> dict[str, float]:
    return {
        f"{what}_per_token_ms": duration_ms / number if number else 0.0,
        f"{what}_per_second": 1000 * number / duration_ms if duration_ms else 0.0,
    }


class Stopwatch:
    """Measures what one llama-server takes, which tells it only at the end."""

    def __init__(self) -> None:
        """The question was just asked."""
        self._asked = time.monotonic()
        self._first: float | None = None
        self._last = 0.0

    def token(self) -> None:
        """A token came."""
        self._last = time.monotonic()
        if self._first is None:
            self._first = self._last

    @property
    def prompt_ms(self) -> float:
        """Until the first token."""
        return 1000 * (self._first - self._asked) if self._first is not None else 0.0

    @property
    def predicted_ms(self) -> float:
        """From the first token to the last."""
        return 1000 * (self._last - self._first) if self._first is not None else 0.0
