"""``dllm-tui chat`` and ``chats``: ask what is serving, and the chats that are kept."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import click
import msgspec

from backends.client.client import ChatsClient, ControllerClient, NoSuchChat, find_chat
from backends.errors import ControllerError, ProcessFailed, UsageError
from backends.state import (
    Answering,
    ChatBrief,
    ChatChange,
    ChatDelta,
    ChatListing,
    ChatMessage,
    ChatRequest,
    ChatState,
    ChatTimings,
    Conversation,
    Sampling,
)
from backends.units import format_count, format_seconds, format_speed
from tui.cli.command import Command, Group, Name, cluster_option, options, prompting
from tui.cli.output import Column, Table, say, show, shower, unseen
from tui.model.names import model_name, whole_path
from tui.model.peer_words import age_text

CHAT_EXAMPLES = """
dllm-tui chat "What is a split?"
dllm-tui chat --system "Answer in one word." "Sky colour?" --temperature 0
cat question.txt | dllm-tui chat -
dllm-tui chat --conversation sky "And at night?"   continue that chat
dllm-tui chat --conversation sky --again 1         answer question 1 again
"""
CHATS_EXAMPLES = """
dllm-tui chats list
dllm-tui chats show "the sky"            a name, an id or the first words
dllm-tui chats export "the sky" sky.md   Markdown, or JSON for FILE.json
dllm-tui chats pick "the sky" 1 2        question 1: go on from answer 2
dllm-tui chats rename 20261121-234417-81470f "the sky"
dllm-tui chats delete "the sky"
"""


# --- chat ----------------------------------------------------------------------------


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    reasoning: str
    finish_reason: str
    timings: ChatTimings


@click.command(
    cls=Command,
    watches=True,
    quiet=True,
    examples=CHAT_EXAMPLES,
    notes="Without --conversation nothing is kept and no history is sent. A question "
    "that is asked again keeps its earlier answers and their follow-ups; chats pick "
    "returns to one.",
)
@click.argument("text", required=False)
@options(
    ("--system", "TEXT", "System prompt."),
    ("--max-tokens", click.IntRange(1), "Longest answer, in tokens."),
    ("--temperature", click.FloatRange(0), "Temperature; 0 is greedy."),
    ("--seed", int, "Seed of the sampler."),
    ("--conversation", Name("chats"), "Continue this chat, or start one of that name."),
    ("--again", click.IntRange(1), "Ask this question again, or TEXT instead."),
)
@cluster_option
async def chat(
    client: ControllerClient,
    text: str | None,
    system: str | None,
    max_tokens: int | None,
    temperature: float | None,
    seed: int | None,
    conversation: str | None,
    again: int | None,
    as_json: bool,
) -> Answer:
    """Ask the running model.

    TEXT may be - for standard input. While the cluster starts or recovers, the
    question waits.
    """
    if again is not None and conversation is None:
        raise click.UsageError("--again needs --conversation.")
    prompt = sys.stdin.read() if text == "-" else text
    if not (prompt or "").strip() and (prompt is not None or again is None):
        raise UsageError("The question is empty", "Give some text.")
    sampling = Sampling(temperature=temperature, max_tokens=max_tokens, seed=seed)
    on_text = unseen if as_json else shower()
    if conversation is not None:
        state = await _begun(client, conversation, new=again is None)
        state = await _prepared(client, state.conversation, system, sampling)
        answer = await answered(client, state.conversation, prompt, again, on_text)
    else:
        first = [ChatMessage(role="system", content=system)] if system else []
        messages = (*first, ChatMessage(role="user", content=prompt or ""))
        request = ChatRequest(messages=messages, sampling=sampling)
        answer = await asked(client, request, on_text)
    if not as_json:
        show()
        say(answer_text(answer))
    return answer


async def asked(
    client: ControllerClient, request: ChatRequest, on_text: Callable[[str], None]
) -> Answer:
    """Ask what is serving; ``on_text`` gets the answer as it comes."""
    started = time.monotonic()
    text, reasoning, first_s = "", "", None
    last, told = ChatDelta(), ""
    async with aclosing(client.chat(request)) as deltas:
        async for delta in deltas:
            if delta.failure is not None:
                raise ProcessFailed(delta.failure)
            if first_s is None and (delta.text or delta.reasoning):
                first_s = time.monotonic() - started
            text += delta.text
            reasoning += delta.reasoning
            on_text(delta.text)
            told = _tell_wait(delta, told)
            last = delta if delta.done else last
    if not last.done:
        raise ControllerError("The answer was cut off", "dllm-tui status says why.")
    timings = last.timings or ChatTimings()
    return Answer(
        text=text,
        reasoning=reasoning,
        finish_reason=last.finish_reason,
        timings=msgspec.structs.replace(timings, first_token_s=first_s),
    )


def _tell_wait(now: ChatDelta | Answering, told: str) -> str:
    text = f"{format_count(now.ahead, 'request')} ahead…" if now.ahead else ""
    if now.waiting:
        text = f"Waiting: {now.waiting}…"
    if text and text != told:
        say(text)
    return text


def answer_text(answer: Answer) -> str:
    """``21.3 tok/s · first token 0.88 s · 42 tokens``."""
    timings = answer.timings
    first = format_seconds(timings.first_token_s or 0.0)
    speed = format_speed(timings.tok_per_s)
    return f"{speed} · first token {first} · {format_count(timings.tokens, 'token')}"


async def _begun(client: ControllerClient, name: str, *, new: bool) -> ChatState:
    snapshot = await client.snapshot()
    model = snapshot.plan.model if snapshot.plan else ""
    try:
        found = find_chat(await client.chats.listing(), name, whole=True)
    except NoSuchChat:
        if not new:
            raise
        begun = (await client.chats.begin(model)).conversation
        return await client.chats.change(begun.id, ChatChange(name=name.strip()))
    return await client.chats.open(found.id, model)


async def _prepared(
    client: ControllerClient, now: Conversation, system: str | None, sampling: Sampling
) -> ChatState:
    given = {
        field: value
        for field, value in msgspec.structs.asdict(sampling).items()
        if value is not None
    }
    wanted = msgspec.structs.replace(now.sampling, **given)
    return await client.chats.change(now.id, ChatChange(system=system, sampling=wanted))


async def answered(
    client: ControllerClient,
    conversation: Conversation,
    question: str | None,
    again: int | None,
    on_text: Callable[[str], None],
) -> Answer:
    """Ask in a chat, question ``again`` anew if that is an index.

    Interrupted, it stops the answer; if we are killed, that goes on without us.
    """
    id_, turns = conversation.id, len(conversation.turns)
    index = None if again is None else again - 1
    try:
        await client.chats.ask(id_, question, turns=turns, again=index)
        return await _followed(client, id_, turns if index is None else index, on_text)
    except asyncio.CancelledError:
        await client.chats.stop(id_)
        raise


async def _followed(
    client: ControllerClient, chat: str, turns: int, on_text: Callable[[str], None]
) -> Answer:
    shown, told = 0, ""
    async with aclosing(client.chats.states("", chat=chat)) as states:
        async for state in states:
            if len(state.conversation.turns) <= turns:
                break
            reply = state.conversation.turns[turns].replies[-1]
            on_text(reply.text[shown:])
            shown = len(reply.text)
            told = _tell_wait(state.answering or Answering(), told)
            if reply.failure is not None:
                raise ProcessFailed(reply.failure)
            if reply.done:
                return Answer(
                    text=reply.text,
                    reasoning=reply.reasoning,
                    finish_reason=reply.finish_reason,
                    timings=reply.timings or ChatTimings(),
                )
    raise ControllerError("The answer was cut off", "dllm-tui chats show has the rest.")


# --- chats ---------------------------------------------------------------------------


def _kept_text(listing: ChatListing) -> list[str]:
    where = f"in {listing.folder}" if listing.folder else "on disk: keep_chats = false"
    count = format_count(len(listing.chats), "chat")
    return [*listing.problems, f"{count}; kept {where}"]


def _state_text(brief: ChatBrief) -> str:
    age = age_text(time.time() - brief.changed_at)
    return f"{age}, answering" if brief.answering else age


CHATS = Table(
    columns=[
        Column("ID", lambda brief: brief.id),
        Column("CHANGED", _state_text),
        Column("QUESTIONS", lambda brief: str(brief.turns), right=True),
        Column("MODEL", lambda brief: model_name(brief.model), wide=True),
        Column("TITLE", lambda brief: brief.title, most=24),
    ],
    name=lambda brief: brief.name or brief.id,
    rows=lambda listing: listing.chats,
    none=lambda _: "No chats.",
    footer=_kept_text,
)


@click.group(
    cls=Group,
    default="list",
    examples=CHATS_EXAMPLES,
    notes="Chats are files that only you can read; chats list names their folder. "
    "With keep_chats = false in config.toml none is written.",
)
def chats() -> None:
    """List, read, export, name and delete the console's chats."""


chat_argument = click.argument("chat", type=Name("chats"))


@chats.command("list", shows=CHATS, watches=True)
async def list_chats(client: ControllerClient) -> ChatListing:
    """List the chats, the latest first."""
    return await client.chats.listing()


@chats.command("show", watches=True, shows=lambda found: [_markdown(found)])
@chat_argument
async def show_chat(client: ControllerClient, chat: str) -> Conversation:
    """Print a chat: questions, answers, models and settings."""
    return (await _state(client.chats, chat)).conversation


def _markdown(conversation: Conversation) -> str:
    from tui.flows.chat_export import markdown_text

    return markdown_text(conversation).rstrip("\n")


@chats.command("export", watches=True)
@chat_argument
@click.argument("file")
async def export_chat(client: ControllerClient, chat: str, file: str) -> dict[str, str]:
    """Write a chat to FILE, as Markdown or JSON.

    FILE must be new. A name that ends in .json gives JSON.
    """
    from tui.flows.chat_export import export_text, write_export

    state, path = await _state(client.chats, chat), Path(whole_path(file))
    try:
        write_export(path, export_text(state.conversation, path))
    except FileExistsError:
        raise UsageError(f"{path} exists", "Give another name.") from None
    say(f"Wrote {path}")
    return {"file": str(path)}


@chats.command("pick")
@chat_argument
@click.argument("question", type=click.IntRange(1))
@click.argument("answer", type=click.IntRange(1))
async def pick_answer(
    client: ControllerClient, chat: str, question: int, answer: int
) -> Conversation:
    """Continue a chat from another ANSWER to a QUESTION.

    Both are numbers. The other answers stay, each with its follow-ups.
    """
    brief = await _found(client.chats, chat)
    change = ChatChange(turn=question - 1, shown=answer - 1)
    conversation = (await client.chats.change(brief.id, change)).conversation
    turns = format_count(len(conversation.turns), "question")
    say(f"Continues from answer {answer} to question {question} ({turns}).")
    return conversation


@chats.command("rename")
@chat_argument
@click.argument("name")
async def rename_chat(client: ControllerClient, chat: str, name: str) -> dict[str, str]:
    """Name a chat; an empty NAME removes the name."""
    brief, name = await _found(client.chats, chat), name.strip()
    await client.chats.change(brief.id, ChatChange(name=name))
    say(f"Renamed to {name}." if name else "Removed its name.")
    return {"id": brief.id, "name": name}


@chats.command("delete")
@click.argument("chat", required=False, type=Name("chats"))
@options(
    ("--all everything", bool, "Delete every chat."), ("-y --yes", bool, "Do not ask.")
)
async def delete_chat(
    client: ControllerClient, chat: str | None, everything: bool, yes: bool
) -> dict[str, list[str]]:
    """Delete a chat, or all of them."""
    if (chat is None) is not everything:
        raise UsageError("Name one chat, or give --all", "See dllm-tui chats list.")
    listing = await client.chats.listing()
    found = listing.chats if chat is None else (await _found(client.chats, chat),)
    if not yes:
        _require_agreed(found)
    for brief in found:
        await client.chats.delete(brief.id)
    say(f"Deleted {format_count(len(found), 'chat')}.")
    return {"deleted": [brief.id for brief in found]}


def _require_agreed(found: tuple[ChatBrief, ...]) -> None:
    if not sys.stdin.isatty():
        raise UsageError("Deleting cannot be undone", "Add --yes.")
    for brief in found:
        say(f"{brief.id}  {brief.title}")
    question = f"Delete {format_count(len(found), 'chat')}?"
    with prompting():
        agreed = click.confirm(question, err=True)
    if not agreed:
        say("Nothing was deleted.")
        raise click.exceptions.Exit(1)


async def _state(client: ChatsClient, chat: str) -> ChatState:
    return await client.get((await _found(client, chat)).id)


async def _found(client: ChatsClient, chat: str) -> ChatBrief:
    return find_chat(await client.listing(), chat)
