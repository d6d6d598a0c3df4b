"""The goal survives its controller; what cannot be read is left alone."""

from __future__ import annotations

import asyncio
import fcntl
import os
from functools import partial
from pathlib import Path
from threading import Event

import msgspec
import pytest

from backends.controller import journal as module
from backends.controller.journal import VERSION, Goal, Journal, Record
from backends.controller.lock import hold_lock, lock_holder
from backends.errors import ControllerError
from backends.state import (
    API_VERSION,
    ControllerInfo,
    Failure,
    Leftover,
    MeasuredSplit,
    Plan,
    Share,
    Split,
)
from backends.writing import write_private
from tests.kit.waiting import PATIENCE_S

PLAN = Plan(
    model="/m.gguf",
    split=Split(n_layer=1, shares=(Share(device="worker1/CPU", layers=2),)),
)


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    record = Record(
        goal=Goal(generation=7, plan=PLAN),
        failure=Failure(what="no"),
        measured=MeasuredSplit(layers=()),
        server="42@1.000000",
        leftovers=(Leftover(name="worker1", peer="ada"),),
    )
    Journal(tmp_path / "default.json").save(record)
    assert Journal(tmp_path / "default.json").load() == record


def test_none_is_an_empty_one(tmp_path: Path) -> None:
    assert Journal(tmp_path / "none.json").load() == Record()


@pytest.mark.parametrize("content", [b"{", b'{"goal": 3}', b"\xff\xfe", b"[]"])
def test_what_is_no_record_is_told_and_kept(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "default.json"
    file.write_bytes(content)
    journal = Journal(file)
    with pytest.raises(ControllerError, match="left alone"):
        journal.load()
    assert file.read_bytes() == content
    journal.set_aside()
    journal.save(Record(goal=Goal(generation=1)))
    assert Journal(file).load().goal.generation == 1
    assert file.with_suffix(".unreadable").read_bytes() == content


def test_a_newer_one_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "default.json"
    file.write_bytes(msgspec.json.encode({"version": VERSION + 1, "goal": []}))
    with pytest.raises(ControllerError, match="newer"):
        Journal(file).load()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Event:
    """A disk that writes nothing until this is set."""
    gate = Event()

    def slow(file: Path, content: bytes) -> None:
        gate.wait(PATIENCE_S)
        write_private(file, content)

    monkeypatch.setattr(module, "write_private", slow)
    return gate


async def test_a_slow_disk_delays_nobody_in_order(tmp_path: Path, gate: Event) -> None:
    journal = Journal(tmp_path / "default.json")
    journal.save(Record(goal=Goal(generation=1)))
    journal.change(server="one")
    committing = asyncio.create_task(
        journal.commit(lambda _: Record(goal=Goal(generation=2, plan=PLAN)))
    )
    await asyncio.sleep(0)
    journal.change(server="two")
    assert journal.record.goal.generation == 1, "what is not written does not count"
    gate.set()
    await committing
    assert journal.record == Record(goal=Goal(generation=2, plan=PLAN))
    assert Journal(tmp_path / "default.json").load() == journal.record


async def test_changes_during_a_write_are_kept(tmp_path: Path, gate: Event) -> None:
    journal = Journal(tmp_path / "default.json")
    change = partial(msgspec.structs.replace, drained_since=1.0)
    committing = asyncio.create_task(journal.commit(change))
    await asyncio.sleep(0)
    journal.change(served_since=2.0)
    assert journal.record.drained_since is None, "what is not written does not count"
    gate.set()
    await committing
    assert journal.record == Record(drained_since=1.0, served_since=2.0)
    assert Journal(tmp_path / "default.json").load() == journal.record


async def test_who_leaves_while_it_is_written_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes, gate = Event(), Event()

    def slow(file: Path, content: bytes) -> None:
        writes.set()
        gate.wait(PATIENCE_S)
        write_private(file, content)

    journal = Journal(tmp_path / "default.json")
    journal.save(Record(goal=Goal(generation=1)))
    assert journal.load().goal.generation == 1
    monkeypatch.setattr(module, "write_private", slow)
    committing = asyncio.create_task(
        journal.commit(lambda _: Record(goal=Goal(generation=2, plan=PLAN)))
    )
    await asyncio.to_thread(writes.wait)
    committing.cancel()
    await asyncio.gather(committing, return_exceptions=True)
    gate.set()
    assert journal.record.goal.generation == 1
    assert Journal(tmp_path / "default.json").load() == journal.record


def test_a_full_disk_costs_no_more_than_adoption(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    journal = Journal(tmp_path / "file" / "default.json")
    journal.save(Record(goal=Goal(generation=3)))
    assert journal.record.goal.generation == 3


# --- One controller per state: who holds the lock says who and where it is ---

INFO = ControllerInfo(api=API_VERSION, version="1.2", pid=4711, socket="/run/x.sock")


def test_one_lock_one_holder(tmp_path: Path) -> None:
    lock = hold_lock(tmp_path / "lock", INFO)
    with pytest.raises(ControllerError, match=r"Another controller.*4711"):
        hold_lock(tmp_path / "lock", INFO)
    assert lock_holder(tmp_path / "lock") == INFO
    os.close(lock)
    assert lock_holder(tmp_path / "lock") is None


def test_a_shorter_signature_leaves_nothing_of_the_one_before(tmp_path: Path) -> None:
    os.close(hold_lock(tmp_path / "lock", INFO))
    short = ControllerInfo(api=1, pid=2)
    lock = hold_lock(tmp_path / "lock", short)
    assert lock_holder(tmp_path / "lock") == short
    os.close(lock)


@pytest.mark.parametrize("content", [b"815", b"", b'{"pid":'])
def test_what_is_no_signature(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "lock"
    file.write_bytes(content)
    with file.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert lock_holder(file) is None


def test_nobody_holds_what_is_not_there(tmp_path: Path) -> None:
    assert lock_holder(tmp_path / "none") is None


def test_who_only_asks_does_not_stop_a_controller_from_starting(tmp_path: Path) -> None:
    """A shared lock held for a moment is waited for."""
    file = tmp_path / "lock"
    file.touch()
    with file.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        with pytest.raises(ControllerError):
            hold_lock(file, INFO)
        fcntl.flock(held, fcntl.LOCK_UN)
        os.close(hold_lock(file, INFO))
