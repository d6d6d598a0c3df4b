"""The tokens of one answer: what another llama-server needs to go on with it."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from backends.state.base import Value

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

TOKENS_MAX = 1 << 18
"""A longer answer is not gone on with: a mebibyte of ids."""
GAPS_MAX = 1024
GAP_CHARACTERS_MAX = 1024
UNKNOWN = -1
TOO_LONG = "the answer is too long to be gone on with"
NOT_TOLD = "llama-server did not tell every token of it"
NOT_SURE = "some of its tokens are not known"
MAY_BE_OVER = "what it said last may be what came before a stop word"


class CannotGoOn(Exception):
    """An answer that broke off cannot be gone on with honestly."""


class Gap(Value, frozen=True):
    """Tokens, perhaps some without ids, and the text that they make together."""

    start: int
    end: int
    text: str


class Tokens:
    """Ids, and how many of them the client has the text of."""

    def __init__(self, *, has_stops: bool = False) -> None:
        """``has_stops``: a stop word may cut the text of the last one."""
        self._ids = array("i")
        self._has_stops = has_stops
        self._gaps: list[Gap] = []
        self._last = Gap(0, 0, "")
        self._holed = False
        self.sent = 0
        """So many tokens the client has the text of."""
        self.why_not = ""
        """Why these cannot be gone on from; empty where they can."""

    def add(self, text: str, token: int | None, count: int) -> None:
        """Add one more; ``count`` says how many there are with it.

        llama-server tells no id of half a character. A chat tells none of a token
        whose text is held back because it may begin a stop word.
        """
        missing = count - 1 - len(self._ids)
        if self.why_not:
            return
        if token is None or missing < 0:
            self.why_not = NOT_TOLD
        elif count > TOKENS_MAX:
            self.why_not = TOO_LONG
        else:
            self._ids.extend([UNKNOWN] * missing)
            self._ids.append(token)
            self._holed = self._holed or missing > 0
            if text:
                self._sent(text, count)

    def _sent(self, text: str, count: int) -> None:
        self._last = Gap(start=self.sent, end=count, text=text)
        if self._holed:
            self._gaps.append(self._last)
            if len(self._gaps) > GAPS_MAX or len(text) > GAP_CHARACTERS_MAX:
                self.why_not = TOO_LONG
        self._holed = False
        self.sent = count

    def __len__(self) -> int:
        """How many there are, with those whose text is held back."""
        return len(self._ids)

    async def until_now(
        self,
        tokenize: Callable[[str], Awaitable[list[int]]],
        detokenize: Callable[[list[int]], Awaitable[str]],
    ) -> list[int]:
        """The ids of all that the client has; what it has not is forgotten.

        Raises:
            CannotGoOn: they are not all known.
        """
        if self.why_not:
            raise CannotGoOn(self.why_not)
        del self._ids[self.sent :]
        self._holed = False
        while self._gaps:
            gap = self._gaps[-1]
            self._fill(gap, await tokenize(gap.text))
            self._gaps.pop()
        ids, last = self._ids.tolist(), self._last
        if self._has_stops and await detokenize(ids[last.start :]) != last.text:
            raise CannotGoOn(MAY_BE_OVER)
        return ids

    def _fill(self, gap: Gap, found: list[int]) -> None:
        """Take the ids that a text has where all we know of them agrees."""
        told = self._ids[gap.start : gap.end]
        agree = (
            one in (UNKNOWN, other) for one, other in zip(told, found, strict=False)
        )
        if len(told) != len(found) or not all(agree):
            raise CannotGoOn(NOT_SURE)
        self._ids[gap.start : gap.end] = array("i", found)
