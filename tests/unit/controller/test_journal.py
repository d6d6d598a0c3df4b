"""The goal survives its controller; what cannot be read is left alone."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from threading import Event

import msgspec
import pytest

from backends.controller import journal as module
from backends.controller.journal import VERSION, Goal, Journal, Record
from backends.errors import ControllerError
from backends.state import Failure, Leftover, MeasuredSplit, Plan, Share, Split
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
def test_what_cannot_be_understood_is_told_and_kept(
    tmp_path: Path, content: bytes
) -> None:
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


async def test_a_slow_disk_holds_nobody_up_and_keeps_the_order(
    tmp_path: Path, gate: Event
) -> None:
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


async def test_what_changes_while_it_is_written_is_kept(
    tmp_path: Path, gate: Event
) -> None:
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
