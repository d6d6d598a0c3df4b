"""One trial of a way to guess: its rounds, and what it finds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from backends.controller import trying
from backends.controller.trying import ENOUGH_S, ROUNDS_MAX, tried
from backends.engine.server import Counts
from backends.errors import ControllerError
from backends.state import ChatDelta, ChatTimings, Failure, Guesses

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from backends.state import ChatRequest

TOKENS = 17


class Server:
    """Answers so many tokens a second; half of what it guesses is right."""

    def __init__(self, tok_per_s: float) -> None:
        self.tok_per_s = tok_per_s
        self.asked: list[ChatRequest] = []
        self.failure: Failure | None = None

    async def __aenter__(self) -> Server:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def counts(self) -> Counts:
        answers = len(self.asked)
        return Counts(guesses=Guesses(guessed=8 * answers, accepted=4 * answers))

    async def chat(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        self.asked.append(request)
        timings = ChatTimings(tokens=TOKENS, tok_per_s=self.tok_per_s)
        yield ChatDelta(text="A machine.", timings=timings, failure=self.failure)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server: Any = Server(100.0)
    monkeypatch.setattr(trying, "ServerClient", lambda _port: server)
    return server  # type: ignore[no-any-return]


async def test_each_round_is_told_before_it_begins(server: Server) -> None:
    begun: list[tuple[int, int]] = []
    found = await tried(8080, 2, lambda n: begun.append((n, len(server.asked))))
    # Warmed up by every slot at once, then something new and the same once more.
    assert begun == [(n, 2 + 4 * (n - 1)) for n in range(1, ROUNDS_MAX + 1)]
    assert found.guesses == Guesses(guessed=8 * 16, accepted=4 * 16)
    assert found.tokens == TOKENS * 16
    assert found.tok_per_s == pytest.approx(2 * 100 * (TOKENS - 1) / TOKENS)


async def test_where_answers_take_long_fewer_rounds_tell_enough(server: Server) -> None:
    server.tok_per_s = 2 * TOKENS / ENOUGH_S
    begun: list[int] = []
    await tried(8080, 1, begun.append)
    assert begun == [1]


async def test_an_answer_that_fails_ends_it(server: Server) -> None:
    server.failure = Failure(what="It broke")
    with pytest.raises(ControllerError, match="It broke"):
        await tried(8080, 1)
