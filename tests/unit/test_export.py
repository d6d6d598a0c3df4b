"""Copies reach the desktop or a file; a conversation becomes a file."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from backends import clipboard
from backends.errors import DllmError
from backends.state import Conversation, Reply, Turn
from backends.state.chats import ChatBrief, ChatListing
from tests.kit.full_disk import LIMIT_BYTES, little_room
from tui.cli.chats import CHATS
from tui.flows.chat_export import markdown_text, write_export


@pytest.fixture
def desktop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("SSH_CONNECTION", "WAYLAND_DISPLAY", "DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    board = tmp_path / "board"
    for name in ("wl-copy", "xclip"):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\necho {name} $* > {board}\ncat >> {board}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return board


@pytest.mark.parametrize(
    ("variable", "first"),
    [("WAYLAND_DISPLAY", "wl-copy"), ("DISPLAY", "xclip -selection clipboard")],
)
def test_it_goes_to_the_desktop_and_a_file(
    desktop: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    first: str,
) -> None:
    monkeypatch.setenv(variable, "0")
    clipboard.keep("a\nb", tmp_path / "state/copied.txt")
    assert desktop.read_text().splitlines() == [first, "a", "b"]
    kept = tmp_path / "state/copied.txt"
    assert kept.read_text() == "a\nb"
    assert kept.stat().st_mode & 0o077 == 0


def test_over_ssh_the_desktop_is_elsewhere(
    desktop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPLAY", "localhost:10.0")
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 1 10.0.0.2 22")
    clipboard.keep("text", tmp_path / "copied.txt")
    assert not desktop.exists()
    assert (tmp_path / "copied.txt").read_text() == "text"


def test_a_desktop_that_refuses_loses_nothing(
    desktop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAYLAND_DISPLAY", "0")
    (tmp_path / "wl-copy").write_text("#!/bin/sh\nexit 1\n")
    clipboard.keep("text", tmp_path / "copied.txt")
    assert (tmp_path / "copied.txt").read_text() == "text"


def test_a_disk_that_refuses_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DllmError, match="cannot be kept"):
        clipboard.keep("text", tmp_path / "file/copied.txt")


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


def test_a_list_of_chats_fits_80_columns() -> None:
    brief = ChatBrief(
        id="20261128-034900-7b9384",
        cluster="default",
        model="/models/SmolLM2-135M-Instruct.Q4_1.gguf",
        title="Tell a very long story about a river, a mill and a fox",
        turns=12,
        answering=True,
    )
    listing = ChatListing(chats=(brief,))
    assert max(map(len, CHATS.lines(listing))) <= 80
    assert brief.title in CHATS.lines(listing, "wide")[1]
