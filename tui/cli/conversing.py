"""Asking in a conversation that is kept, from the command line."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec

from backends.client.chats import NoSuchChat, find_chat
from backends.client.client import ControllerClient
from backends.errors import ControllerError, ProcessFailed
from backends.state import Answering, ChatChange, ChatState, ChatTimings, Sampling
from tui.cli.session import Answer, tell_wait

if TYPE_CHECKING:
    from collections.abc import Callable


async def go_on(
    name: str,
    question: str | None,
    system: str | None,
    sampling: Sampling,
    cluster: str,
    on_text: Callable[[str], None],
    *,
    again: int | None = None,
) -> Answer:
    """Ask in the chat of that name, or begin one; ``on_text`` gets the answer.

    ``again`` is the index of a question to ask again, in the same words where
    ``question`` is None.

    Interrupted, it stops the answer; killed, the answer goes on without us.

    Raises:
        ControllerError: nothing serves, or an answer is coming there already.
        NoSuchChat: there is none to ask again in.
        ProcessFailed: the answer broke off.
        UsageError: the question to ask again was never asked.
    """
    client = ControllerClient(cluster=cluster)
    chat = await _prepared(client, name, system, sampling, new=again is None)
    turns = len(chat.conversation.turns)
    id_ = chat.conversation.id
    try:
        await client.chats.ask(id_, question, turns=turns, again=again)
        return await _answer(client, id_, turns if again is None else again, on_text)
    except asyncio.CancelledError:
        await client.chats.stop(id_)
        raise


async def _prepared(
    client: ControllerClient,
    name: str,
    system: str | None,
    sampling: Sampling,
    *,
    new: bool,
) -> ChatState:
    """The chat, with the settings that were given; the others stay as they are."""
    chats = client.chats
    chat = await _found(client, name, new=new)
    now = chat.conversation
    given = {
        field: value
        for field, value in msgspec.structs.asdict(sampling).items()
        if value is not None
    }
    wanted = msgspec.structs.replace(now.sampling, **given)
    return await chats.change(now.id, ChatChange(system=system, sampling=wanted))


async def _found(client: ControllerClient, name: str, *, new: bool) -> ChatState:
    """The chat of that name, made the current one; ``new``: or another begun.

    Raises:
        NoSuchChat: there is none, and none is to be begun.
    """
    snapshot = await client.snapshot()
    model = snapshot.plan.model if snapshot.plan else ""
    try:
        chat = find_chat(await client.chats.listing(), name, whole=True)
    except NoSuchChat:
        if not new:
            raise
        begun = (await client.chats.begin(model)).conversation
        return await client.chats.change(begun.id, ChatChange(name=name.strip()))
    return await client.chats.open(chat.id, model)


async def _answer(
    client: ControllerClient, chat: str, turns: int, on_text: Callable[[str], None]
) -> Answer:
    """Follow the newest answer to the question after so many, to its end."""
    shown, told = 0, ""
    async with aclosing(client.chats.states("", chat=chat)) as states:
        async for state in states:
            if len(state.conversation.turns) <= turns:
                break
            reply = state.conversation.turns[turns].replies[-1]
            on_text(reply.text[shown:])
            shown = len(reply.text)
            told = tell_wait(state.answering or Answering(), told)
            if reply.failure is not None:
                raise ProcessFailed(reply.failure)
            if reply.done:
                return Answer(
                    text=reply.text,
                    reasoning=reply.reasoning,
                    finish_reason=reply.finish_reason,
                    timings=reply.timings or ChatTimings(),
                )
    raise ControllerError("The answer broke off", "dllm-tui chats show tells how far.")
