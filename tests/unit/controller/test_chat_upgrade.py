"""Conversations that an earlier release kept: read whole, and kept as ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from backends.controller.chat.store import VERSION, ChatStore
from backends.errors import ControllerError

if TYPE_CHECKING:
    from pathlib import Path

    from backends.state import Turn

FIRST = {
    "id": "one",
    "cluster": "default",
    "model": "/models/m.gguf",
    "name": "Sky",
    "system": "Be brief.",
    "sampling": {"temperature": 0.5},
    "began_at": 1.0,
    "opened_at": 2.0,
    "changed_at": 3.0,
}
"""A conversation of version 1, without its turns."""


def turn(question: str, *texts: str) -> dict[str, Any]:
    """A turn as version 1 wrote it; the last answer is gone on from."""
    replies = [
        {
            "text": text,
            "model": "/models/m.gguf",
            "layers": [["worker1/CPU", 0, 12]],
            "timings": {"tokens": 4, "tok_per_s": 21.5, "first_token_s": 0.5},
            "finish_reason": "stop",
            "at": 4.0 + index,
        }
        for index, text in enumerate(texts)
    ]
    return {"question": question, "replies": replies, "shown": len(texts) - 1}


def read(folder: Path, turns: list[Any], before: list[Any] | None) -> tuple[Turn, ...]:
    """The turns of a file of version 1, as they are read now and ever after."""
    chat = FIRST | {"turns": turns, "before": before}
    file = folder / "one.json"
    file.write_bytes(msgspec.json.encode({"version": 1, "conversation": chat}))
    store = ChatStore(folder)
    (found,) = store.all()
    assert store.problems == []
    assert (found.name, found.system, found.opened_at) == ("Sky", "Be brief.", 2.0)
    assert found.sampling.temperature == 0.5
    store.save(found)
    assert msgspec.json.decode(file.read_bytes())["version"] == VERSION
    assert store.read("one") == found
    return found.turns


def said(turns: tuple[Turn, ...]) -> list[tuple[str, str]]:
    return [(turn.asked, turn.reply.text) for turn in turns]


def test_what_was_said_is_there_with_its_figures(tmp_path: Path) -> None:
    turns = read(tmp_path, [turn("Why?", "One.", "Two.")], None)
    assert said(turns) == [("Why?", "Two.")]
    assert [reply.text for reply in turns[0].replies] == ["One.", "Two."]
    reply = turns[0].reply
    assert reply.timings is not None
    assert reply.timings.tok_per_s == 21.5
    assert reply.layers[0].device == "worker1/CPU"


def test_questions_that_were_taken_back_are_there_again(tmp_path: Path) -> None:
    every = [turn("Why?", "One."), turn("And?", "Two.")]
    both = [("Why?", "One."), ("And?", "Two.")]
    assert said(read(tmp_path, every[:1], every)) == [
        ("Why?", "One."),
        ("And?", "Two."),
    ]
    assert said(read(tmp_path, [], every)) == both
    assert said(read(tmp_path, every, every[:1])) == [
        ("Why?", "One."),
        ("And?", "Two."),
    ]


def test_questions_whose_place_others_took_stand_beside_them(tmp_path: Path) -> None:
    before = [
        turn("Why?", "One."),
        turn("And?", "Two.", "Three."),
        turn("So?", "Four."),
    ]
    turns = read(tmp_path, [before[0], turn("But?", "Five.")], before)
    assert said(turns) == [("Why?", "One."), ("But?", "Five.")]
    assert [(reply.question, reply.text) for reply in turns[1].replies] == [
        ("And?", "Two."),
        ("And?", "Three."),
        ("", "Five."),
    ]
    assert said(turns[1].replies[1].then) == [("So?", "Four.")]


def test_a_question_asked_again_after_others_were_taken_back(tmp_path: Path) -> None:
    before = [turn("Why?", "One."), turn("And?", "Two.")]
    turns = read(tmp_path, [turn("Why?", "One.", "Three.")], before)
    assert said(turns) == [("Why?", "Three.")]
    kept = [reply for reply in turns[0].replies if reply.then]
    assert [reply.text for reply in kept] == ["One."]
    assert said(kept[0].then) == [("And?", "Two.")]


@pytest.mark.parametrize("before", [b'"x"', b"[1]"])
def test_a_file_that_is_none_is_kept_aside(tmp_path: Path, before: bytes) -> None:
    chat = msgspec.json.encode(FIRST | {"turns": []})
    spoilt = b'{"version":1,"conversation":' + chat[:-1] + b',"before":' + before
    (tmp_path / "one.json").write_bytes(spoilt + b"}}")
    with pytest.raises(ControllerError, match="cannot be understood"):
        ChatStore(tmp_path).read("one")
    assert (tmp_path / "one.unreadable").read_bytes() == spoilt + b"}}"
