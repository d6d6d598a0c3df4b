"""One conversation: edited, answered whoever looks, and kept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing

from msgspec.structs import replace

from backends.errors import ControllerError, DllmError, UsageError
from backends.state import (
    Answering,
    ChatChange,
    ChatDelta,
    ChatMessage,
    ChatRequest,
    ChatState,
    ChatTimings,
    Conversation,
    Failure,
    LayerRange,
    QuestionRequest,
    Reply,
    Turn,
)
from backends.state.chats import with_newest
from backends.tasks import end_tasks

Answers = Callable[[ChatRequest], AsyncGenerator[ChatDelta, None]]

SAVE_S = 0.4
"""Between two writes while an answer comes."""
RETRY_S = 5.0
"""Until the next try after the disk refused."""


class LiveChat:
    """A conversation, the answer that comes, and the subscribers of both.

    An answer that was unfinished when the conversation was stored is abandoned.
    ``keep`` writes the conversation to disk, and raises OSError if that fails. ``told``
    is called after every change. ``save_s`` are the seconds between two writes while an
    answer comes.
    """

    def __init__(
        self,
        conversation: Conversation,
        *,
        keep: Callable[[Conversation], Awaitable[None]],
        told: Callable[[], None],
        save_s: float,
    ) -> None:
        self._conversation = without_pending(conversation, "interrupted")
        self._keep = keep
        self._told = told
        self._save_s = save_s
        self._texts: list[str] = []
        self._reasonings: list[str] = []
        self._timings: ChatTimings | None = None
        self._layers: tuple[LayerRange, ...] = ()
        self._answering: Answering | None = None
        self._answer: asyncio.Task[None] | None = None
        self._stopped_for = "interrupted"
        self._saver: asyncio.Task[None] | None = None
        self._unsaved = False
        self._next_save_at = 0.0
        self._problem = ""
        self._seq = 0

    @property
    def conversation(self) -> Conversation:
        """It, with all that came of the answer so far."""
        if self._texts or self._reasonings or self._timings is not None:
            reply = self._conversation.turns[-1].replies[-1]
            reply = replace(
                reply,
                text=reply.text + "".join(self._texts),
                reasoning=reply.reasoning + "".join(self._reasonings),
                timings=self._timings,
            )
            self._texts, self._reasonings = [], []
            if not self.answering:
                self._timings = None
            self._conversation = with_newest(self._conversation, reply)
        return self._conversation

    @property
    def state(self) -> ChatState:
        return ChatState(
            conversation=self.conversation,
            answering=self._answering,
            problem=self._problem,
            seq=self._seq,
        )

    @property
    def answering(self) -> bool:
        return self._answering is not None

    def put(self, conversation: Conversation) -> None:
        self._conversation = replace(conversation, changed_at=time.time())
        self._touch()

    def change(self, asked: ChatChange) -> None:
        if asked.shown is not None:
            self._require_idle()
        self.put(with_change(self.conversation, asked))

    def ask(self, asked: QuestionRequest, reply: Reply, answers: Answers) -> None:
        """Begin a turn, or another answer to a question; it comes by itself."""
        self._require_idle()
        if asked.turns != len(self._conversation.turns):
            raise ControllerError(
                "The chat was gone on with from elsewhere", "Look at it, then ask."
            )
        now = self.conversation
        if asked.again is None:
            now = with_turn(now, asked.question or "", reply)
        else:
            now = with_reply(now, asked.again, asked.question, reply)
        self._answering = Answering()
        self.put(now)
        request = request_of(now)
        self._answer = asyncio.ensure_future(self._take(answers(request)))

    def _require_idle(self) -> None:
        if self.answering:
            raise ControllerError(
                "An answer is still coming in this chat", "Stop it, or wait for it."
            )

    async def stop(self, reason: str = "stopped") -> None:
        """End the answer; what came of it stays."""
        if self._answer is not None:
            self._stopped_for = reason
            self._answer.cancel()
            await asyncio.wait([self._answer])
        if self.answering:  # It was cancelled before it began.
            self._end(reason, None)

    async def saved(self) -> None:
        """Wait until it has been written as it is now, or the disk refused."""
        if not await self._save():
            self._next_save_at = asyncio.get_running_loop().time() + RETRY_S
            self._begin_saver()

    async def close(self) -> None:
        """End the answer, and write what is not yet."""
        await self.stop("interrupted")
        await end_tasks(self._saver)
        if self._unsaved:
            await self._save()

    async def _take(self, deltas: AsyncGenerator[ChatDelta, None]) -> None:
        reason, failure = "stop", None
        try:
            async with aclosing(deltas):
                async for delta in deltas:
                    self._add(delta)
                    if delta.done:
                        reason, failure = delta.finish_reason or reason, delta.failure
        except asyncio.CancelledError:
            reason = self._stopped_for
        except DllmError as error:
            failure = error.failure(time.time())
        except Exception as error:
            failure = Failure(what=f"The answer broke: {type(error).__name__}: {error}")
        self._end("error" if failure else reason, failure)

    def _add(self, delta: ChatDelta) -> None:
        if delta.text:
            self._texts.append(delta.text)
        if delta.reasoning:
            self._reasonings.append(delta.reasoning)
        self._timings = delta.timings or self._timings
        self._layers = delta.layers or self._layers
        self._answering = Answering(
            ahead=delta.ahead,
            waiting=delta.waiting,
            prompt_progress=delta.prompt_progress,
        )
        self._touch()

    def _end(self, reason: str, failure: Failure | None) -> None:
        self._answering = None
        reply = self.conversation.turns[-1].replies[-1]
        reply = replace(
            reply,
            finish_reason=reason,
            failure=failure,
            layers_after=() if self._layers == reply.layers else self._layers,
        )
        self._timings = self._answer = None
        self._layers = ()
        self.put(with_newest(self._conversation, reply))

    def _touch(self) -> None:
        self._unsaved = True
        self._begin_saver()
        self._tell()

    def _begin_saver(self) -> None:
        if self._saver is None or self._saver.done():
            self._saver = asyncio.ensure_future(self._save_until_still())

    def _tell(self) -> None:
        self._seq += 1
        self._told()

    async def _save_until_still(self) -> None:
        loop = asyncio.get_running_loop()
        while self._unsaved:
            await asyncio.sleep(self._next_save_at - loop.time())
            fine = await self._save()
            pause_s = self._save_s if fine else RETRY_S
            self._next_save_at = loop.time() + pause_s

    async def _save(self) -> bool:
        """Write it; False if the disk refuses, which is shown until it does not."""
        problem = ""
        self._unsaved = False
        try:
            await self._keep(self.conversation)
        except asyncio.CancelledError:
            self._unsaved = True  # It may still have waited for its turn at the disk.
            raise
        except OSError as error:
            self._unsaved = True
            problem = (
                f"The chat cannot be saved ({error.strerror or error}): "
                "free some space, or it is lost when the controller ends"
            )
        if problem != self._problem:
            self._problem = problem
            self._tell()
        return not problem


def with_turn(conversation: Conversation, question: str, reply: Reply) -> Conversation:
    """With a new turn, whose answer is to come."""
    _require_words(question)
    turn = Turn(question=question, replies=(reply,))
    turns = (*conversation.turns, turn)
    return replace(conversation, turns=turns, model=reply.model)


def with_reply(
    conversation: Conversation, index: int, question: str | None, reply: Reply
) -> Conversation:
    """With another answer to come to a question; None asks it in the same words."""
    turn = _left(conversation, index)
    words = turn.asked if question is None else question
    _require_words(words)
    said = tuple(one for one in turn.replies if one.said)
    first = turn.question if said else words
    reply = replace(reply, question="" if words == first else words)
    turn = Turn(question=first, replies=(*said, reply), shown=len(said))
    turns = (*conversation.turns[:index], turn)
    return replace(conversation, turns=turns, model=reply.model)


def going_on_from(conversation: Conversation, index: int, shown: int) -> Conversation:
    """Going on from another answer to a question, with what followed that one."""
    turn = _left(conversation, index)
    if not 0 <= shown < len(turn.replies):
        raise UsageError(f"Question {index + 1} has no answer {shown + 1}")
    then = turn.replies[shown].then
    turn = replace(_with_then(turn, shown, ()), shown=shown)
    return replace(conversation, turns=(*conversation.turns[:index], turn, *then))


def with_change(conversation: Conversation, asked: ChatChange) -> Conversation:
    """With another name, other settings, or going on from another answer."""
    wanted = {name: getattr(asked, name) for name in ("name", "system", "sampling")}
    changes = {name: value for name, value in wanted.items() if value is not None}
    conversation = replace(conversation, **changes)
    if asked.shown is None:
        return conversation
    last = len(conversation.turns) - 1
    index = last if asked.turn is None else asked.turn
    return going_on_from(conversation, index, asked.shown)


def request_of(conversation: Conversation) -> ChatRequest:
    """Return the request for the last question.

    It leaves out earlier questions without an answer: many chat templates require that
    user and assistant take turns.
    """
    *earlier, last = conversation.turns
    messages = messages_of(conversation, earlier, last.asked)
    return ChatRequest(messages=messages, sampling=conversation.sampling)


def messages_of(
    conversation: Conversation, earlier: Iterable[Turn], question: str
) -> tuple[ChatMessage, ...]:
    """Return the messages of earlier turns that were answered, and of a question."""
    messages = []
    if conversation.system.strip():
        messages.append(ChatMessage(role="system", content=conversation.system))
    for turn in earlier:
        if turn.reply.text:
            messages.append(ChatMessage(role="user", content=turn.asked))
            messages.append(ChatMessage(role="assistant", content=turn.reply.text))
    return (*messages, ChatMessage(role="user", content=question))


def without_pending(conversation: Conversation, reason: str) -> Conversation:
    """With no answer that is still to come: whoever brought it is gone."""

    def ended_reply(reply: Reply) -> Reply:
        return reply if reply.done else replace(reply, finish_reason=reason)

    turns = tuple(
        replace(turn, replies=tuple(map(ended_reply, turn.replies)))
        for turn in conversation.turns
    )
    return replace(conversation, turns=turns)


def _left(conversation: Conversation, index: int) -> Turn:
    turns = conversation.turns
    if not turns:
        raise UsageError("Nothing was asked in this chat yet", "Ask something first.")
    if not 0 <= index < len(turns):
        asked = f"there are {len(turns)}" if len(turns) > 1 else "there is one"
        raise UsageError(f"There is no question {index + 1} in this chat: {asked}")
    turn, then = turns[index], turns[index + 1 :]
    return _with_then(turn, turn.shown, then) if turn.replies else turn


def _with_then(turn: Turn, shown: int, then: tuple[Turn, ...]) -> Turn:
    replies = list(turn.replies)
    replies[shown] = replace(replies[shown], then=then)
    return replace(turn, replies=tuple(replies))


def _require_words(question: str) -> None:
    if not question.strip():
        raise UsageError("The question is empty", "Give some text.")
