"""How a trial measures: on a machine that does other things too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from backends.controller.trying import ASKED_MAX, QUESTIONS, ROUNDS_MAX, measured
from backends.engine.server import Counts, ServerClient
from backends.errors import ControllerError
from backends.state import ChatDelta, ChatRequest, ChatTimings, Guesses

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator


class Server(ServerClient):
    """Answers in so many tokens, each time as fast as is told next."""

    def __init__(self, speeds: Iterator[float], tokens: int = 32) -> None:
        self._speeds = speeds
        self._tokens = tokens
        self.asked: list[ChatRequest] = []
        self.told = [
            Counts(finished_tokens=tokens, guesses=Guesses(guessed=tokens))
            for tokens in (100, 160)
        ]
        """What it counted before a trial, and after it."""

    async def counts(self) -> Counts:
        return self.told.pop(0)

    async def chat(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        self.asked.append(request)
        tokens = min(self._tokens, request.sampling.max_tokens or self._tokens)
        yield ChatDelta(text="word " * tokens)
        timings = ChatTimings(tokens=tokens, tok_per_s=next(self._speeds))
        yield ChatDelta(timings=timings)


def always(speed: float) -> Iterator[float]:
    while True:
        yield speed


def but_slow(speed: float, *numbers: int) -> Iterator[float]:
    """The answers of these numbers take ten times as long."""
    for number, one in enumerate(always(speed)):
        yield one / 10 if number in numbers else one


async def test_what_else_the_machine_does_is_not_measured() -> None:
    undisturbed = await measured(Server(always(100.0)), 1)
    assert undisturbed.tok_per_s == pytest.approx(100 * 31 / 32)
    disturbed = await measured(Server(but_slow(100.0, 1, 4)), 1)
    assert disturbed.tok_per_s == pytest.approx(undisturbed.tok_per_s)


async def test_slots_are_counted_together() -> None:
    found = await measured(Server(always(50.0)), 4)
    assert found.tok_per_s == pytest.approx(4 * 50 * 31 / 32)


@pytest.mark.parametrize("untold", [0, 1])
async def test_counts_that_do_not_come_in_time_tell_of_no_guesses(untold: int) -> None:
    server = Server(always(50.0))
    assert (await measured(server, 1)).guesses.guessed == 60
    late = Server(always(50.0))
    late.told.insert(untold, Counts())
    assert (await measured(late, 1)).guesses.guessed == 60
    silent = Server(always(50.0))
    silent.told[untold : untold + 1] = [Counts()] * ASKED_MAX
    assert (await measured(silent, 1)).guesses == Guesses()


async def test_a_fast_cluster_answers_everything_twice() -> None:
    server = Server(always(1000.0))
    await measured(server, 1)
    texts = [request.messages[-1].content for request in server.asked[1:]]
    assert all(texts.count(question) >= 4 for question in QUESTIONS)


async def test_a_slow_one_is_not_asked_for_long() -> None:
    server = Server(always(1.0))
    await measured(server, 1)
    assert len(server.asked) == 3


async def test_each_round_is_told_before_it_begins() -> None:
    server, begun = Server(always(1000.0)), list[tuple[int, int]]()
    await measured(server, 2, lambda number: begun.append((number, len(server.asked))))
    # Warmed up by every slot at once, then a question and the same once more.
    assert begun == [(n, 2 + 4 * (n - 1)) for n in range(1, ROUNDS_MAX + 1)]


async def test_an_answer_of_one_token_tells_nothing() -> None:
    with pytest.raises(ControllerError, match="too short"):
        await measured(Server(always(100.0), tokens=1), 1)
