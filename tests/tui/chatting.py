"""A chat pane whose model is the test: asking it and answering."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from textual.pilot import Pilot

from backends.state import ChatDelta, ChatTimings, Failure, Reply, Sampling, Turn
from tests.tui import scenes
from tests.tui.helpers import until
from tests.tui.stages import ChatStage
from tui.screens.cluster.answer import ChatAnswer
from tui.screens.cluster.chat_pane import Composer

TIMINGS = ChatTimings(tokens=42, tok_per_s=21.34, first_token_s=0.88)

DONE = ChatDelta(done=True, finish_reason="stop", timings=TIMINGS)
FAILED = ChatDelta(done=True, failure=Failure(what="No"))


def said(question: str, answer: str) -> Turn:
    model = scenes.HOMELAB_PLAN.model
    reply = Reply(text=answer, model=model, finish_reason="stop")
    return Turn(question=question, replies=(reply,))


EARLIER = (said("Hello?", "Hello *you*!"),)


@asynccontextmanager
async def chatting(
    width: int = 80, height: int = 24
) -> AsyncIterator[tuple[ChatStage, Pilot[None]]]:
    app = ChatStage()
    async with app.run_test(size=(width, height)) as pilot:
        yield app, pilot


async def ask(app: ChatStage, pilot: Pilot[None], question: str = "Why?") -> ChatAnswer:
    """Type and send a question; the answer that waits."""
    before = len(app.asked)
    app.pane.focus_default()
    await until(pilot, lambda: app.pane.conversation)
    app.query_one(Composer).write(question)
    await pilot.press("enter")
    await until(pilot, lambda: len(app.asked) > before)
    await until(pilot, lambda: app.turns[-1:] == [(question, "")])
    return app.query(ChatAnswer).last()


def drawn_whole(app: ChatStage) -> bool:
    return app.query(ChatAnswer).last().drawn_whole.is_set()


async def answer(app: ChatStage, pilot: Pilot[None], *deltas: ChatDelta) -> None:
    app.give(*deltas)
    await until(pilot, lambda: drawn_whole(app))
    await until(pilot, lambda: not app.pane.answering)


async def talk(
    app: ChatStage, pilot: Pilot[None], question: str, text: str, *deltas: ChatDelta
) -> None:
    """Ask, and answer with a text."""
    await ask(app, pilot, question)
    await answer(app, pilot, ChatDelta(text=text), *(deltas or (DONE,)))


def sampling(app: ChatStage) -> Sampling:
    now = app.pane.conversation
    return now.sampling if now else Sampling()


def request(app: ChatStage, number: int = -1) -> list[str]:
    """What was said to the model in a request."""
    return [message.content for message in app.asked[number].messages]
