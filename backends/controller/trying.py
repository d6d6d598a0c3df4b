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
    from collections.abc import Callable, Sequence

TRIAL_S = 60.0
"""It takes at most so long."""
ANSWER_S = 8.0
"""An answer should take about so long, where the cluster is slow."""
TOKENS_MIN, TOKENS_MAX = 16, 64
ENOUGH_S = 2.0
"""Answers that took so long together tell enough."""
ROUNDS_MAX = 4
QUESTION = "Explain in a few sentences what a computer is and how it works."
Told = tuple[str, ChatTimings]


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
            return await _tried(client, slots, begins)
    except TimeoutError as error:
        raise ControllerError(f"The trial took more than {TRIAL_S:g} s") from error


async def _tried(
    client: ServerClient, slots: int, begins: Callable[[int], None]
) -> Found:
    warm = await _answers(client, slots, _asking(), TOKENS_MIN)
    limit = _length(warm)
    before = await client.counts()
    rounds: list[list[Told]] = []
    for number in range(1, ROUNDS_MAX + 1):
        begins(number)
        new = await _answers(client, slots, _asking(), limit)
        again = await _answers(client, slots, _asking(new[0][0]), limit)
        rounds += [new, again]
        if sum(_seconds(one[0][1]) for one in rounds) >= ENOUGH_S:
            break
    after = await client.counts()
    by_slot = zip(*rounds, strict=True)
    rate = sum(_rate([timings for _, timings in told]) for told in by_slot)
    if rate <= 0:
        raise ControllerError("The answers of the trial were too short")
    return Found(
        rate,
        sum(timings.tokens for told in rounds for _, timings in told),
        guesses_since(after.guesses, before.guesses),
    )


def _asking(answer: str = "") -> tuple[ChatMessage, ...]:
    """The question; with an answer, that and the question once more."""
    question = ChatMessage(role="user", content=QUESTION)
    if not answer:
        return (question,)
    return (question, ChatMessage(role="assistant", content=answer), question)


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


def _rate(told: Sequence[ChatTimings]) -> float:
    """The first token of an answer takes no time of its own."""
    seconds = sum(map(_seconds, told))
    tokens = sum(timings.tokens - 1 for timings in told if timings.tok_per_s)
    return tokens / seconds if seconds else 0.0
