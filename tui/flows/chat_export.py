"""A conversation as a file: Markdown to read, JSON to work with."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from backends.errors import DllmError
from backends.state import Conversation, Reply, Turn, to_json
from backends.units import format_count
from backends.writing import write_new
from tui.model.names import model_name
from tui.screens.cluster.chat_text import ended_text
from tui.widgets.safe_text import safe, safe_line

STEM_CHARS = 40


def suggested_file(conversation: Conversation, folder: Path) -> Path:
    """``folder/why-is-the-sky-blue.md``."""
    stem = re.sub(r"[^\w]+", "-", conversation.title.lower()).strip("-")[:STEM_CHARS]
    return folder / f"{stem.strip('-') or 'chat'}.md"


def export_text(conversation: Conversation, file: Path) -> str:
    if file.suffix.lower() == ".json":
        return to_json(conversation, indent=2) + "\n"
    return markdown_text(conversation)


def markdown_text(conversation: Conversation) -> str:
    return "\n\n".join(map(safe, _paragraphs(conversation))) + "\n"


def _paragraphs(conversation: Conversation) -> Iterator[str]:
    yield f"# {safe_line(conversation.title) or 'Chat'}"
    at = time.strftime("%Y-%m-%d %H:%M", time.localtime(conversation.began_at))
    yield f"{model_name(conversation.model)} · {at}".strip(" ·")
    if conversation.system.strip():
        yield _quoted(f"System: {conversation.system}")
    for number, turn in enumerate(conversation.turns, start=1):
        yield from _turn_paragraphs(turn, number)


def _turn_paragraphs(turn: Turn, number: int) -> Iterator[str]:
    """Question, every answer, the figures of each: they are there to be compared."""
    yield f"## You ({number})"
    asked = turn.replies[0].question or turn.question if turn.replies else turn.question
    yield asked
    for index, reply in enumerate(turn.replies):
        if asked != (asked := reply.question or turn.question):
            yield f"## You ({number}, in other words)"
            yield asked
        yield f"## {model_name(reply.model) or 'Model'}"
        yield reply.text.strip() or "(nothing)"
        if figures := ended_text(msgspec.structs.replace(turn, shown=index)):
            yield f"*{safe_line(figures)}*"
        if reply.then:
            yield f"*{_then_text(reply)}*"


def _then_text(reply: Reply) -> str:
    many = len(reply.then) > 1
    followed = format_count(len(reply.then), "question") + " followed this answer"
    return f"{followed}; a file in .json has {'them' if many else 'it'}."


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.splitlines())


def write_export(file: Path, text: str) -> None:
    """Write a file that was not there, whole or not at all, for this user only.

    Raises:
        FileExistsError: it is there.
        DllmError: the disk refuses.
    """
    try:
        write_new(file, text.encode(errors="replace"))
    except FileExistsError:
        raise
    except OSError as error:
        raise DllmError(
            f"Cannot write {file} ({error.strerror}): nothing was written",
            "Make room there, or choose another folder.",
        ) from error
