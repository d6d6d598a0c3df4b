"""The answers that models are known to give, and how another one differs.

Each was computed once, greedily, on a CPU. The candidates at each of its tokens lie so
far apart that no rounding changes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from backends.demo import MODEL_PATH, is_bundled
from backends.engine.server import GreedyToken
from backends.models.download import DEMO_PACKAGE, PACKAGES, demo_model
from backends.units import three_figures

LOGPROB_OFF = 0.05
SECOND_OFF = 0.6
"""Half precision and other orders of addition stay below these."""


class KnownAnswer(NamedTuple):
    """The tokens of a prompt and its answer, with the best two probabilities each."""

    size_bytes: int
    """Of the model, of which workers are sent a part."""
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    second_logprobs: tuple[float, ...]

    def difference(self, answer: Sequence[GreedyToken]) -> str:
        """The first difference of an answer, a clause; empty without one."""
        count = len(self.tokens)
        if len(answer) != count:
            return f"its answer has {len(answer)} tokens instead of {count}"
        for at, token in enumerate(answer):
            if token.id != self.tokens[at]:
                return f"its answer is another from token {at + 1} of {count} on"
        firsts = zip(answer, self.logprobs, strict=True)
        first = [abs(token.logprob - known) for token, known in firsts]
        seconds = zip(answer, self.second_logprobs, strict=True)
        second = [abs(token.second_logprob - known) for token, known in seconds]
        # What is not a number is within nothing.
        if all(o <= LOGPROB_OFF for o in first) and all(
            o <= SECOND_OFF for o in second
        ):
            return ""
        off = max((o for o in (*first, *second) if math.isfinite(o)), default=math.inf)
        return f"its probabilities are off by up to {three_figures(off)} (logarithms)"


BUNDLED = KnownAnswer(
    size_bytes=10_213_312,
    # "Who are you?" in its chat template.
    prompt=(1, 456, 273, 201, 57, 274, 471, 299, 33, 2, 201, 1, 67, 585, 301, 389, 201),
    # "I am a tiny llama model that ships with dllm-tui, so that a first launch …"
    tokens=(
        *(43, 491, 262, 973, 484, 316, 453, 1424, 85, 522, 383, 15),
        *(371, 14, 492, 453, 262, 604, 617, 857, 1066, 1182, 268, 405),
    ),
    logprobs=(
        *(-0.0166, -0.0421, -0.0935, -0.0, -0.0007, -0.0001, -0.0001, -0.0),
        *(-0.0, -0.0, -0.0, -0.0001, -0.0001, -0.0002, -0.0, -0.0),
        *(-0.0, -0.0001, -0.0003, -0.0, -0.0003, -0.0004, -0.0001, -0.0005),
    ),
    second_logprobs=(
        *(-4.68, -3.69, -2.54, -12.38, -7.84, -10.44, -10.39, -10.94),
        *(-11.56, -12.18, -12.97, -11.07, -9.27, -9.35, -11.01, -10.7),
        *(-11.45, -10.82, -10.07, -10.96, -9.93, -8.72, -9.71, -9.03),
    ),
)


SMOLLM2 = KnownAnswer(
    size_bytes=PACKAGES[DEMO_PACKAGE].size_bytes,
    # "1, 2, 3" and so on to "12,"
    prompt=(
        *(33, 28, 216, 34, 28, 216, 35, 28, 216, 36, 28, 216),
        *(37, 28, 216, 38, 28, 216, 39, 28, 216, 40, 28, 216),
        *(41, 28, 216, 33, 32, 28, 216, 33, 33, 28, 216, 33),
        *(34, 28),
    ),
    # " 13, 14, 15, 16, 17, 18,"
    tokens=(
        *(216, 33, 35, 28, 216, 33, 36, 28, 216, 33, 37, 28),
        *(216, 33, 38, 28, 216, 33, 39, 28, 216, 33, 40, 28),
    ),
    logprobs=(
        *(-0.0288, -0.0016, -0.0112, -0.0513, -0.0132, -0.0009, -0.0013, -0.0435),
        *(-0.0076, -0.0013, -0.0112, -0.1109, -0.018, -0.0033, -0.0074, -0.0344),
        *(-0.0054, -0.0021, -0.0022, -0.0279, -0.0051, -0.0037, -0.0023, -0.0597),
    ),
    second_logprobs=(
        *(-4.21, -6.8, -5.21, -4.47, -5.03, -7.3, -7.45, -4.47),
        *(-5.65, -6.87, -4.66, -3.95, -5.08, -5.85, -5.35, -4.91),
        *(-6.06, -6.33, -6.59, -5.21, -6.54, -5.71, -6.27, -4.53),
    ),
)


def known_model(model_dirs: Iterable[str]) -> tuple[Path, KnownAnswer] | None:
    """A model here whose answer is known: the smallest; None if there is none."""
    if is_bundled():
        return MODEL_PATH, BUNDLED
    got = demo_model(model_dirs)
    return (got, SMOLLM2) if got else None
