"""The arguments that make llama-server guess ahead, as its own help names them.

``--device`` is also where a draft model goes that has no ``-devd`` and ``-ngld`` of its
own: through the workers, which costs more than it gives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.engine.ask import SPEC_TYPE, spec_type
from backends.errors import EngineError
from backends.state import MTP_DRAFT, NGRAM_DRAFT

if TYPE_CHECKING:
    from collections.abc import Collection

    from backends.state import Speculation

DRAFT_MODEL = "draft-simple"
TABLES = ("ngram-map-k", "ngram-map-k4v", "ngram-simple")
"""Ways to guess from what was said before, the best first; all take two sizes."""
LOOKUP_TOKENS = 4
"""Tokens that must have been said before in this order."""
MTP = "draft-mtp"
"""By layers of the model itself."""
_NEEDED = ("-md", "-devd", "-ngld")
_LENGTHS = ("--spec-draft-n-max", "--draft-max")
"""How to say how far to guess; where the first is known, the second only complains."""
ONE_THREAD_BYTES = 16 << 20
"""Threads wait for one another in every layer: weights no larger than this (1 to 2 ms
of one core's memory bandwidth a token) are read sooner by one, above all where others
want the cores too."""
_THREADS = "-td"
_BUILD = "Build a newer one: dllm-tui engine build."


def knows(flags: Collection[str], way: str) -> bool:
    """Whether an engine can guess that way."""
    return spec_type(way) in flags


def ways_known(flags: Collection[str]) -> frozenset[str]:
    """All ways to guess of an engine, as it calls them."""
    before = spec_type("")
    return frozenset(f.removeprefix(before) for f in flags if f.startswith(before))


def way_to_guess(flags: Collection[str], draft: str, head: str = "") -> str:
    """What this engine calls the way that a draft guesses.

    ``head`` is the way that the draft is a head for, where it is no model of its own.

    Raises:
        EngineError: it knows none.
    """
    if draft == NGRAM_DRAFT:
        known = [way for way in TABLES if knows(flags, way)]
        if known:
            return known[0]
        raise EngineError("This llama.cpp cannot guess without a draft model", _BUILD)
    if draft == MTP_DRAFT:
        head = MTP
    if head and not knows(flags, head):
        raise EngineError(f"This llama.cpp does not know the way {head}", _BUILD)
    if draft == MTP_DRAFT:
        return MTP
    typed = SPEC_TYPE not in flags or knows(flags, head or DRAFT_MODEL)
    if not typed or not set(flags).issuperset(_NEEDED):
        raise EngineError(
            "This llama.cpp cannot keep a draft model on the head alone", _BUILD
        )
    return head or DRAFT_MODEL


def guessing_argv(
    flags: Collection[str],
    guess: Speculation,
    model_path: str,
    tokens: int,
    *,
    is_alone: bool = False,
) -> tuple[str, ...]:
    """Guess so many tokens at a time, all of the work of a draft being the head's own.

    ``model_path`` is where the head keeps the draft model. ``is_alone``: the model
    itself has nothing for the head's CPU to compute, whose threads would only wait.
    """
    typed = (SPEC_TYPE, guess.type) if SPEC_TYPE in flags else ()
    length = next((flag for flag in _LENGTHS if flag in flags), "")
    limit = (length, str(tokens)) if length else ()
    if guess.draft == MTP_DRAFT:
        return (*typed, *limit)
    if not guess.model:
        sizes = (("n", LOOKUP_TOKENS), ("m", tokens))
        named = ((f"--spec-{guess.type}-size-{name}", n) for name, n in sizes)
        told = [part for flag, n in named if flag in flags for part in (flag, str(n))]
        return (*typed, *told)
    name = guess.device.rpartition("/")[2]
    on_cpu = name == "CPU"
    placed = ("-devd", "none" if on_cpu else name)
    layers = ("-ngld", "0" if on_cpu else str(guess.n_layer + 1))
    threads = _threads(flags, guess, is_alone=is_alone) if on_cpu else ()
    return ("-md", model_path, *placed, *layers, *typed, *limit, *threads)


def _threads(
    flags: Collection[str], guess: Speculation, *, is_alone: bool
) -> tuple[str, ...]:
    """Of a draft model on the CPU; else as many as llama-server has."""
    weights = sum(one.model_bytes for one in guess.memory)
    if not 0 < weights <= ONE_THREAD_BYTES or _THREADS not in flags:
        return ()
    return (_THREADS, "1", *(("-t", "1") if is_alone else ()))
