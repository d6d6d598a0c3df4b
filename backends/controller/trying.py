"""A trial: how fast the llama-server that runs now answers some short questions."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, NamedTuple

from backends.controller.together import together
from backends.engine.server import Counts, ServerClient
from backends.errors import ControllerError
from backends.planning.speculating import guesses_since
from backends.state import (
    ChatDelta,
    ChatMessage,
    ChatRequest,
    ChatTimings,
    Guesses,
    Sampling,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

TRIAL_S = 60.0
"""It takes at most so long."""
ANSWER_S = 8.0
"""An answer should take about so long, where the cluster is slow."""
TOKENS_MIN, TOKENS_MAX = 16, 64
QUESTIONS = (
    "Explain in a few sentences what a computer is and how it works.",
    "What is a language model, and what is a token?",
)
ENOUGH_S, ENOUGH_ROUNDS = 2.0, 2 * len(QUESTIONS)
"""Answers that took so long together tell enough, if each was given twice."""
SLOW_S, VERY_SLOW_S = 8.0, 20.0
"""Then each once is enough, or one: what else the machine does matters little."""
ROUNDS_MAX = 12
ASKED_MAX = 3
"""It is asked so often what it counted."""
Told = tuple[str, ChatTimings]
Round = tuple[tuple[ChatTimings, ChatTimings], ...]
"""By slot: the answer to a question, and to the same once more."""


class Found(NamedTuple):
    """What a trial found."""

    tok_per_s: float
    """Of all slots together."""
    tokens: int
    guesses: Guesses


async def counted(port: int) -> Counts:
    """What it counted of all answers until now."""
    async with ServerClient(port) as client:
        return await client.counts()


def _nobody(_number: int) -> None:
    """Hears of no round."""


async def tried(
    port: int, slots: int, begins: Callable[[int], None] = _nobody
) -> Found:
    """Ask with every slot at once: something new, and for the same once more.

    ``begins`` is told the number of each round, of at most ``ROUNDS_MAX``.

    Raises:
        ControllerError: it did not answer, or not in time.
    """
    try:
        async with asyncio.timeout(TRIAL_S), ServerClient(port) as client:
            return await measured(client, slots, begins)
    except TimeoutError as error:
        raise ControllerError(f"The trial took more than {TRIAL_S:g} s") from error


async def measured(
    client: ServerClient, slots: int, begins: Callable[[int], None] = _nobody
) -> Found:
    warm = await _answers(client, slots, _asking(QUESTIONS[-1]), TOKENS_MIN)
    limit = _length(warm)
    before = await _counts(client)
    rounds: list[Round] = []
    while not _is_enough(rounds):
        begins(len(rounds) + 1)
        question = QUESTIONS[len(rounds) % len(QUESTIONS)]
        new = await _answers(client, slots, _asking(question), limit)
        again = await _answers(client, slots, _asking(question, new[0][0]), limit)
        rounds.append(tuple((a[1], b[1]) for a, b in zip(new, again, strict=True)))
    after = await _counts(client)
    rate = sum(map(_rate, zip(*_undisturbed(rounds), strict=True)))
    if rate <= 0:
        raise ControllerError("The answers of the trial were too short")
    return Found(
        rate,
        sum(one.tokens for told in rounds for answers in told for one in answers),
        _guesses_between(before, after),
    )


async def _counts(client: ServerClient) -> Counts:
    """What it counted, asked again where it does not tell in time."""
    for _ in range(ASKED_MAX - 1):
        counts = await client.counts()
        if counts.finished_tokens is not None:
            return counts
    return await client.counts()


def _guesses_between(before: Counts, after: Counts) -> Guesses:
    """What became of them; nothing where it did not tell before or after."""
    if None in (before.finished_tokens, after.finished_tokens):
        return Guesses()
    return guesses_since(after.guesses, before.guesses)


def _is_enough(rounds: Sequence[Round]) -> bool:
    seconds = sum(_seconds(one) for told in rounds for one in told[0])
    if len(rounds) >= ENOUGH_ROUNDS:
        return seconds >= ENOUGH_S or len(rounds) >= ROUNDS_MAX
    limit_s = SLOW_S if len(rounds) >= len(QUESTIONS) else VERY_SLOW_S
    return seconds >= limit_s


def _undisturbed(rounds: Sequence[Round]) -> Iterator[Round]:
    """The fastest round of each question: what else a machine does only slows."""
    for number in range(min(len(QUESTIONS), len(rounds))):
        same = rounds[number :: len(QUESTIONS)]
        yield max(same, key=lambda told: sum(_rate([answers]) for answers in told))


def _asking(question: str, answer: str = "") -> tuple[ChatMessage, ...]:
    """A question; with its answer, that and the question once more."""
    asked = ChatMessage(role="user", content=question)
    if not answer:
        return (asked,)
    return (asked, ChatMessage(role="assistant", content=answer), asked)


async def _answers(
    client: ServerClient, slots: int, messages: Sequence[ChatMessage], tokens: int
) -> list[Told]:
    return await together(
        _answer(client, tuple(messages), tokens) for _ in range(slots)
    )


async def _answer(
    client: ServerClient, messages: tuple[ChatMessage, ...], tokens: int
) -> Told:
    sampling = Sampling(temperature=0.0, max_tokens=tokens)
    request = ChatRequest(messages=messages, sampling=sampling)
    text, last = "", ChatDelta()
    async with contextlib.aclosing(client.chat(request)) as deltas:
        async for delta in deltas:
            if delta.failure is not None:
                raise ControllerError(delta.failure.what)
            text += delta.text + delta.reasoning
            last = delta
    return text, last.timings or ChatTimings()


def _length(warm: Sequence[Told]) -> int:
    """Tokens of an answer that takes about as long as it should."""
    rate = min(timings.tok_per_s for _, timings in warm)
    return max(TOKENS_MIN, min(int(rate * ANSWER_S), TOKENS_MAX))


def _seconds(timings: ChatTimings) -> float:
    return timings.tokens / timings.tok_per_s if timings.tok_per_s else 0.0


def _rate(told: Iterable[tuple[ChatTimings, ChatTimings]]) -> float:
    """Of one slot; the first token of an answer takes no time of its own."""
    timings = [one for answers in told for one in answers]
    seconds = sum(map(_seconds, timings))
    tokens = sum(one.tokens - 1 for one in timings if one.tok_per_s)
    return tokens / seconds if seconds else 0.0
