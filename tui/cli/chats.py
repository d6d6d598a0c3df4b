"""``dllm-tui chats``: the conversations that are kept."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from backends.errors import UsageError
from backends.units import format_count
from tui.cli.options import completing
from tui.cli.output import emit_json, json_option, run, say, show
from tui.work.names import model_name
from tui.work.peer_words import since_text

if TYPE_CHECKING:
    from backends.client.chats import ChatsClient
    from backends.state import ChatBrief, ChatListing, ChatState

EXAMPLES = """
\b
Examples:
  dllm-tui chats list
  dllm-tui chats show "the sky"              by its name, its id or its first words
  dllm-tui chats export "the sky" sky.md     Markdown; a name in .json gives JSON
  dllm-tui chats pick "the sky" 1 2          goes on from answer 2 to question 1
  dllm-tui chats rename 20261121-234417-81470f "the sky"
  dllm-tui chats delete "the sky"

They are files in the folder that chats list names, for you alone to read; with
keep_chats = false in config.toml none is written.
"""


@click.group(epilog=EXAMPLES, invoke_without_command=True)
@json_option
@click.pass_context
def chats(ctx: click.Context, as_json: bool) -> None:
    """List, read, export, name and delete the console's chats."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_chats, as_json=as_json)


chat_argument = click.argument("chat", shell_complete=completing("chats"))


@chats.command("list")
@json_option
def list_chats(as_json: bool) -> None:
    """List the chats, the one changed last first."""
    listing = run(_listing())
    if as_json:
        emit_json(listing)
        return
    for chat in listing.chats:
        show(_line(chat))
    for problem in listing.problems:
        say(problem)
    where = f"in {listing.folder}" if listing.folder else "on disk: keep_chats = false"
    say(f"{format_count(len(listing.chats), 'chat')}; kept {where}")


@chats.command("show")
@chat_argument
@json_option
def show_chat(chat: str, as_json: bool) -> None:
    """Print a chat: questions, answers, and what each was answered with."""
    state = run(_state(chat))
    if as_json:
        emit_json(state.conversation)
        return
    from tui.flows.chat_export import markdown_text

    show(markdown_text(state.conversation), end="")


@chats.command("export")
@chat_argument
@click.argument("file")
def export_chat(chat: str, file: str) -> None:
    """Write a chat to a new FILE: Markdown, or JSON where it ends in .json."""
    from tui.flows.chat_export import export_text, whole_path, write_export

    state, path = run(_state(chat)), whole_path(file)
    try:
        write_export(path, export_text(state.conversation, path))
    except FileExistsError:
        raise UsageError(f"{path} exists", "Give another name.") from None
    say(f"Wrote {path}")


@chats.command("pick")
@chat_argument
@click.argument("question", type=click.IntRange(1))
@click.argument("answer", type=click.IntRange(1))
def pick_answer(chat: str, question: int, answer: int) -> None:
    """Go on from an ANSWER to a QUESTION that was asked again; both by their numbers.

    What followed that answer is shown again; the other answers stay, each with what
    followed it.
    """
    state = run(_pick(chat, question - 1, answer - 1))
    turns = format_count(len(state.conversation.turns), "question")
    say(f"Goes on from answer {answer} to question {question}; {turns} asked")


@chats.command("rename")
@chat_argument
@click.argument("name")
def rename_chat(chat: str, name: str) -> None:
    """Give a chat a NAME; an empty one lets its first question name it."""
    run(_rename(chat, name.strip()))
    say(f"Named it {name.strip()}" if name.strip() else "Took its name away")


@chats.command("delete")
@click.argument("chat", required=False, shell_complete=completing("chats"))
@click.option("--all", "everything", is_flag=True, help="Every chat there is.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete_chat(chat: str | None, everything: bool, yes: bool) -> None:
    """Delete a chat from disk; --all deletes every one."""
    if (chat is None) is not everything:
        raise UsageError("Name one chat, or say --all", "See dllm-tui chats list.")
    found = run(_meant(chat))
    if not yes and not _agreed(found):
        say("Nothing was deleted.")
        sys.exit(1)
    run(_delete(found))
    say(f"Deleted {format_count(len(found), 'chat')}.")


def _agreed(found: tuple[ChatBrief, ...]) -> bool:
    """Ask, where somebody is there to answer."""
    if not sys.stdin.isatty():
        raise UsageError("This deletes what cannot be brought back", "Add --yes.")
    for brief in found:
        say(_line(brief))
    return click.confirm(f"Delete {format_count(len(found), 'chat')}?", err=True)


def _client() -> ChatsClient:
    from backends.client.client import ControllerClient

    return ControllerClient().chats


async def _listing() -> ChatListing:
    return await _client().listing()


async def _state(chat: str) -> ChatState:
    client = _client()
    return await client.get((await _found(client, chat)).id)


async def _pick(chat: str, turn: int, shown: int) -> ChatState:
    from backends.state import ChatChange

    client = _client()
    found = await _found(client, chat)
    return await client.change(found.id, ChatChange(turn=turn, shown=shown))


async def _rename(chat: str, name: str) -> None:
    from backends.state import ChatChange

    client = _client()
    found = await _found(client, chat)
    await client.change(found.id, ChatChange(name=name))


async def _meant(chat: str | None) -> tuple[ChatBrief, ...]:
    client = _client()
    if chat is not None:
        return (await _found(client, chat),)
    return (await client.listing()).chats


async def _found(client: ChatsClient, chat: str) -> ChatBrief:
    """The chat that is meant."""
    from backends.client.chats import find_chat

    return find_chat(await client.listing(), chat)


async def _delete(found: tuple[ChatBrief, ...]) -> None:
    client = _client()
    for brief in found:
        await client.delete(brief.id)


def _line(chat: ChatBrief) -> str:
    """Id, age, length, model and title, in columns."""
    age = since_text(time.time() - chat.changed_at) or "now"
    coming = "  (an answer is coming)" if chat.answering else ""
    model = model_name(chat.model)
    return (
        f"{chat.id:25} {age:>5} {chat.turns:>4} asked  {model:24} {chat.title}{coming}"
    )
