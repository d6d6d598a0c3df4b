"""Conversations as earlier releases kept them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from backends.state import Reply, Turn, Value

if TYPE_CHECKING:
    from backends.state import Conversation


class _Chat(Value, frozen=True, kw_only=True):
    before: tuple[Turn, ...] | None = None
    """The turns before some were taken back, to be asked otherwise."""


class _First(Value, frozen=True, kw_only=True):
    """A file of version 1, as far as it differs."""

    conversation: _Chat


def upgraded(conversation: Conversation, raw: bytes) -> Conversation:
    """A conversation of version 1; ``raw`` is its file.

    Turns that were taken back become answers beside those that took their place.

    Raises:
        msgspec.MsgspecError: it is no such file.
    """
    before = msgspec.json.decode(raw, type=_First).conversation.before or ()
    turns = _joined(conversation.turns, before)
    return msgspec.structs.replace(conversation, turns=turns)


def _joined(turns: tuple[Turn, ...], before: tuple[Turn, ...]) -> tuple[Turn, ...]:
    """Turns with earlier ones as a branch of them."""
    both = zip(turns, before, strict=False)
    index = next((i for i, (now, then) in enumerate(both) if now != then), None)
    if index is None:
        return max(turns, before, key=len)
    branch = _branch(before[index], turns[index], before[index + 1 :])
    turn = msgspec.structs.replace(
        turns[index],
        replies=(*branch, *turns[index].replies),
        shown=turns[index].shown + len(branch),
    )
    return (*turns[:index], turn, *turns[index + 1 :])


def _branch(left: Turn, now: Turn, then: tuple[Turn, ...]) -> tuple[Reply, ...]:
    """The answers of a turn that another took the place of; no answer twice."""
    question = "" if left.question == now.question else left.question
    return tuple(
        msgspec.structs.replace(
            reply, question=question, then=then if index == left.shown else ()
        )
        for index, reply in enumerate(left.replies or (Reply(finish_reason="stop"),))
        if index == left.shown or reply not in now.replies
    )
