"""The tokens of a pass, if a link cannot see them for itself.

Tokens leave the cluster as rows of logits, one each, at the worker with the last layer.
Its relay counts them. The others' passes are the same ones, a little earlier. If no
worker has the last layer, llama-server's own counters are asked. So they are if the
head drafts tokens and throws rows away.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import NamedTuple

PASSES_MAX = 8192
WINDOW_TOKENS = 256
"""The server's figure is of at least so many tokens, once there were as many."""
BUSY_TOKENS = 4096
"""A server that is never idle is looked at anew after so many."""


class PassShape(NamedTuple):
    batch: int
    rows: int

    @property
    def generated(self) -> bool:
        """Every token fed brought out another: that is no prompt."""
        return self.rows == self.batch


class Outcomes:
    """The passes of a cluster as the worker with the last layer saw them.

    All relays run on the head, so that their clocks are one.
    """

    def __init__(self) -> None:
        self.known = False
        """True if there is a worker that sees them."""
        self.rows = 0
        """Tokens that came out of all passes."""
        self.first_rows = 0
        """Of these, of passes that were fed a prompt: an answer's first token."""
        self._worker = ""
        self._at_ms: list[float] = []
        self._outcomes: list[PassShape] = []

    def saw(self, worker: str, at_ms: float, outcome: PassShape) -> None:
        """Take a pass; they come in order.

        Where workers compute each layer together, all see what comes out: the first
        one's word is taken.
        """
        self.known = True
        self._worker = self._worker or worker
        if worker != self._worker:
            return
        self.rows += outcome.rows
        self.first_rows += 0 if outcome.generated else outcome.rows
        if len(self._at_ms) >= 2 * PASSES_MAX:
            del self._at_ms[:PASSES_MAX], self._outcomes[:PASSES_MAX]
        self._at_ms.append(at_ms)
        self._outcomes.append(outcome)

    def of(self, at_ms: float) -> PassShape | None:
        """Of the pass that left another worker at this moment; None: not there yet."""
        found = bisect_left(self._at_ms, at_ms)
        return self._outcomes[found] if found < len(self._outcomes) else None


class ServerCount(NamedTuple):
    """llama-server's counts, and the limits of its passes."""

    tokens: int
    """Generated so far."""
    speculative: bool = False
    """Tokens are drafted: not every row that comes out becomes a token."""
    idle: bool = True
    decode_max: int = 1
    """More tokens than so many in one pass are a prompt's."""


class Guesses:
    """Tells generated passes from prompts by their sizes alone; pure.

    For a link where nobody sees what comes out, as when the head has the last layer.
    Slots decode a token each, so their number rises only by a prompt. A pass right
    after a prompt's that is larger than the next is its remainder. A prompt of one
    token is taken for generated all the same. So is a short one (no more tokens than
    slots) that follows a generated pass as large. A draft's passes are of any size up
    to ``decode_max``. So with a draft every prompt that short counts as generated.
    """

    def __init__(self) -> None:
        self.first_tokens = 0
        """Tokens that came out of prompts: one each time generation follows one.

        Of prompts read together it is one for all.
        """
        self._decoding: int | None = None
        """Size of the last pass if it was generated, 0 for a prompt."""

    def generated(
        self, batch: int, following: int | None, server: ServerCount
    ) -> bool | None:
        """True if a pass is generated; None: not to be told without the next one.

        ``following`` is the size of the next pass, where there is one.
        """
        found = self._found(batch, following, server)
        if found is not None:
            self.first_tokens += found and self._decoding == 0
            self._decoding = batch if found else 0
        return found

    def _found(
        self, batch: int, following: int | None, server: ServerCount
    ) -> bool | None:
        if batch > server.decode_max:
            return False
        if server.speculative or batch == 1:
            return True
        if self._decoding:
            return batch <= self._decoding
        return None if following is None else batch <= following


class _Mark(NamedTuple):
    tokens: int
    passes: int


class TokensPerPass:
    """Tokens by the server's count over passes by the relay's; pure.

    Both come at moments of their own, so they are compared over a span that began when
    nothing moved. The span is long unless it ended so as well.
    """

    def __init__(self) -> None:
        self._marks: deque[_Mark] = deque()
        self._now = _Mark(0, 0)

    def read(self, tokens: int, passes: int, *, idle: bool) -> None:
        """Take both totals of generated tokens and passes; neither ever shrinks."""
        before, marks = self._now, self._marks
        self._now = now = _Mark(max(tokens, before.tokens), passes)
        still = idle and now == before and now != (marks[-1] if marks else None)
        if not marks or still or tokens - marks[-1].tokens >= BUSY_TOKENS:
            marks.append(now)
        while len(marks) > 1 and tokens - marks[1].tokens >= WINDOW_TOKENS:
            marks.popleft()

    @property
    def figure(self) -> float | None:
        if not self._marks:
            return None
        tokens = self._now.tokens - self._marks[0].tokens
        passes = self._now.passes - self._marks[0].passes
        return tokens / passes if tokens > 0 and passes > 0 else None
