"""The goal survives its controller; what cannot be read is left alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from backends.controller.journal import VERSION, Goal, Journal, Record
from backends.errors import ControllerError
from backends.state import Failure, Leftover, MeasuredSplit, Plan, Share, Split

if TYPE_CHECKING:
    from pathlib import Path

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


def test_a_full_disk_costs_no_more_than_adoption(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    journal = Journal(tmp_path / "file" / "default.json")
    journal.save(Record(goal=Goal(generation=3)))
    assert journal.record.goal.generation == 3
