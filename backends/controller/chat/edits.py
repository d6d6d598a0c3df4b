"""Edit a conversation: ask, take back or choose; pure functions."""

from __future__ import annotations

from msgspec.structs import replace

from backends.errors import UsageError
from backends.state import (
    ChatChange,
    ChatMessage,
    ChatRequest,
    Conversation,
    Reply,
    Turn,
)


def asked(conversation: Conversation, question: str, reply: Reply) -> Conversation:
    """With a new turn, whose answer is to come."""
    _require_words(question)
    turn = Turn(question=question, replies=(reply,))
    turns = (*conversation.turns, turn)
    return replace(conversation, turns=turns, model=reply.model)


def asked_again(
    conversation: Conversation, index: int, question: str | None, reply: Reply
) -> Conversation:
    """With another answer to come to a question; None asks it in the same words.

    Answers that said something are kept, each with what followed it.
    """
    turn = _left(conversation, index)
    words = turn.asked if question is None else question
    _require_words(words)
    said = tuple(one for one in turn.replies if one.said)
    first = turn.question if said else words
    reply = replace(reply, question="" if words == first else words)
    turn = Turn(question=first, replies=(*said, reply), shown=len(said))
    turns = (*conversation.turns[:index], turn)
    return replace(conversation, turns=turns, model=reply.model)


def chosen(conversation: Conversation, index: int, shown: int) -> Conversation:
    """Going on from another answer to a question, with what followed that one."""
    turn = _left(conversation, index)
    if not 0 <= shown < len(turn.replies):
        raise UsageError(f"Question {index + 1} has no answer {shown + 1}")
    then = turn.replies[shown].then
    turn = replace(_with_then(turn, shown, ()), shown=shown)
    return replace(conversation, turns=(*conversation.turns[:index], turn, *then))


def changed(conversation: Conversation, asked: ChatChange) -> Conversation:
    """With another name, other settings, or going on from another answer."""
    wanted = {name: getattr(asked, name) for name in ("name", "system", "sampling")}
    changes = {name: value for name, value in wanted.items() if value is not None}
    conversation = replace(conversation, **changes)
    if asked.shown is None:
        return conversation
    last = len(conversation.turns) - 1
    index = last if asked.turn is None else asked.turn
    return chosen(conversation, index, asked.shown)


def request_of(conversation: Conversation) -> ChatRequest:
    """Return the request for the last question.

    It leaves out earlier questions without an answer: many chat templates require that
    user and assistant take turns.
    """
    *earlier, last = conversation.turns
    messages = []
    if conversation.system.strip():
        messages.append(ChatMessage(role="system", content=conversation.system))
    for turn in earlier:
        if turn.reply.text:
            messages.append(ChatMessage(role="user", content=turn.asked))
            messages.append(ChatMessage(role="assistant", content=turn.reply.text))
    messages.append(ChatMessage(role="user", content=last.asked))
    return ChatRequest(messages=tuple(messages), sampling=conversation.sampling)


def ended(conversation: Conversation, reason: str) -> Conversation:
    """With no answer that is still to come: whoever brought it is gone."""

    def ended_reply(reply: Reply) -> Reply:
        return reply if reply.done else replace(reply, finish_reason=reason)

    turns = tuple(
        replace(turn, replies=tuple(map(ended_reply, turn.replies)))
        for turn in conversation.turns
    )
    return replace(conversation, turns=turns)


def _left(conversation: Conversation, index: int) -> Turn:
    """A turn whose answer keeps what followed it, to go on from another."""
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
