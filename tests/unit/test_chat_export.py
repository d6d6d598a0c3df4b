"""A chat as a file: whole or not there, with every answer that can be compared."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

import pytest

from backends.errors import DllmError
from backends.state import Conversation, Reply, Turn
from tests.kit.full_disk import LIMIT_BYTES, little_room
from tui.flows.chat_export import markdown_text, write_export

if TYPE_CHECKING:
    from pathlib import Path


def test_a_full_disk_leaves_no_half_of_it(tmp_path: Path) -> None:
    file = tmp_path / "sky.md"
    with little_room(), pytest.raises(DllmError) as raised:
        write_export(file, "x" * (LIMIT_BYTES + 1))
    assert (
        raised.value.what
        == f"Cannot write {file} (File too large): nothing was written"
    )
    assert raised.value.hint == "Make room there, or choose another folder."
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("links", [True, False])
def test_it_is_written_whole_and_takes_no_other_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """Also on a file system that knows no links."""
    if not links:
        monkeypatch.setattr(os, "link", _refused)
    file = tmp_path / "sky.md"
    write_export(file, "blue\udcff")
    assert file.read_text() == "blue?"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        write_export(file, "green")
    assert [left.read_text() for left in tmp_path.iterdir()] == ["blue?"]


def _refused(*_: object) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


def test_every_answer_is_told_apart_and_what_followed_is_counted() -> None:
    then = (Turn(question="Secret?"), Turn(question="Secret too?"))
    done = {"finish_reason": "stop", "model": "/m/glm.gguf"}
    replies = (
        Reply(text="One.", then=then, **done),  # type: ignore[arg-type]
        Reply(text="Two.", question="Why, really?", **done),  # type: ignore[arg-type]
    )
    chat = Conversation(
        id="one",
        cluster="default",
        turns=(Turn(question="Why?", replies=replies, shown=1),),
    )
    lines = [line for line in markdown_text(chat).splitlines() if line]
    assert lines[0] == "# Why, really?"
    assert lines[2:] == [
        "## You (1)",
        "Why?",
        "## glm",
        "One.",
        "*answer 1 of 2*",
        "*2 questions followed this answer; a file in .json has them.*",
        "## You (1, in other words)",
        "Why, really?",
        "## glm",
        "Two.",
        "*answer 2 of 2*",
    ]
