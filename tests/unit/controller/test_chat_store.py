"""Conversations on disk: private, whole, and never lost for being unreadable."""

from __future__ import annotations

import multiprocessing
import os
import stat
from pathlib import Path
from threading import get_ident

import msgspec
import pytest

from backends.controller.chat.store import VERSION, ChatStore
from backends.errors import ControllerError
from tests.kit.chats import conversation


def test_what_is_saved_is_read_again(tmp_path: Path) -> None:
    store = ChatStore(tmp_path / "chats")
    store.save(conversation())
    assert store.read("one") == conversation()
    assert list(ChatStore(tmp_path / "chats").all()) == [conversation()]
    (file,) = (tmp_path / "chats").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("spoil", ["truncated", "garbage", "deep", "another's", "lost"])
def test_a_file_that_is_not_understood_is_kept_aside_and_told(
    tmp_path: Path, spoil: str
) -> None:
    store = ChatStore(tmp_path)
    store.save(conversation("fine"))
    store.save(conversation("bad"))
    file = tmp_path / "bad.json"
    raw = file.read_bytes()
    spoilt = {
        "truncated": raw[: len(raw) // 2],
        "garbage": b"\xff\x00",
        "deep": b"[" * 100_000,
        "another's": (tmp_path / "fine.json").read_bytes(),
        "lost": _going_on_from(9),
    }[spoil]
    file.write_bytes(spoilt)
    (tmp_path / "bad.unreadable").write_bytes(b"an earlier one")
    assert [found.id for found in store.all()] == ["fine"]
    assert (tmp_path / "bad.unreadable").read_bytes() == b"an earlier one"
    assert (tmp_path / "bad.unreadable-2").read_bytes() == spoilt
    (problem,) = store.problems
    assert "bad.json" in problem
    assert "kept as bad.unreadable-2" in problem
    assert "Why?" not in problem


def test_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    store = ChatStore(tmp_path)
    file = tmp_path / "later.json"
    raw = b'{"version":%d,"chat":"other"}' % (VERSION + 1)
    file.write_bytes(raw)
    assert list(store.all()) == []
    assert file.read_bytes() == raw
    assert "newer dllm-tui" in store.problems[0]
    with pytest.raises(ControllerError, match="newer dllm-tui"):
        store.read("later")


def test_a_file_with_more_than_we_know_is_read(tmp_path: Path) -> None:
    store = ChatStore(tmp_path)
    store.save(conversation())
    file = tmp_path / "one.json"
    value = msgspec.json.decode(file.read_bytes())
    value["conversation"]["colour"] = "blue"
    file.write_bytes(msgspec.json.encode(value))
    assert store.read("one") == conversation()


@pytest.mark.parametrize("chat", ["none", "../clusters/default", "", "a/b"])
def test_there_is_no_such_chat(tmp_path: Path, chat: str) -> None:
    with pytest.raises(ControllerError, match="There is no chat"):
        ChatStore(tmp_path).read(chat)


def test_a_full_disk_costs_nothing_that_was_there(tmp_path: Path) -> None:
    store = ChatStore(tmp_path)
    store.save(conversation())
    # Where nothing can be written, root or not.
    blocked = tmp_path / f".one.json.{os.getpid()}-{get_ident()}.tmp"
    blocked.mkdir()
    with pytest.raises(OSError, match=r"."):
        store.save(conversation(name="another"))
    assert store.read("one").name == ""


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    store = ChatStore(tmp_path)
    store.save(conversation())
    (tmp_path / ".one.json.4711.tmp").write_bytes(b'{"version":1,"conv')
    assert [found.id for found in store.all()] == ["one"]
    assert [file.name for file in tmp_path.iterdir()] == ["one.json"]


def _write_often(folder: str, name: str) -> None:
    store = ChatStore(Path(folder))
    for _ in range(60):
        store.save(conversation(name=name, system=name * 5000))


def test_of_two_writers_one_is_read_whole(tmp_path: Path) -> None:
    store = ChatStore(tmp_path)
    store.save(conversation(name="a", system="a" * 5000))
    context = multiprocessing.get_context("fork")
    writers = [
        context.Process(target=_write_often, args=(str(tmp_path), name))
        for name in ("a", "b")
    ]
    for writer in writers:
        writer.start()
    reads = 0
    while any(writer.is_alive() for writer in writers):
        found = store.read("one")
        assert found.system == found.name * 5000
        reads += 1
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert reads
    assert store.problems == []


def _going_on_from(shown: int) -> bytes:
    turn = {"question": "Why?", "replies": [{"text": "So."}], "shown": shown}
    kept = {"id": "bad", "cluster": "default", "turns": [turn]}
    return msgspec.json.encode({"version": VERSION, "conversation": kept})
